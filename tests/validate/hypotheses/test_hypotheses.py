"""H1, H2, H3: each statistic against a closed form or brute force, each verdict on draws of known truth."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm
from scipy.stats import t as student
from simulated import ANCHOR, ANCHOR_FLOOR_MS, GPUS, MOE, SIBLING, SMALL, simulate

from rooffloor.validate.common.files import json_dumps
from rooffloor.validate.estimates.cell_draws import IMPUTED, MEASURED, Draws
from rooffloor.validate.hypotheses.frequentist_h1 import errors
from rooffloor.validate.hypotheses.h1 import h1
from rooffloor.validate.hypotheses.h2 import h2
from rooffloor.validate.hypotheses.h3 import PRIOR_SCALES, _log_evidence, explanation_weights, h3
from rooffloor.validate.hypotheses.level import (
    by_unit,
    correlation_by_unit,
    left_out_error,
    level_error,
    pool,
    pool_here,
    pooled_below,
)
from rooffloor.validate.hypotheses.result import (
    NEGLIGIBLE,
    NOT_TESTED,
    REFUTED,
    STATEMENTS,
    SUPPORTED,
    UNDECIDED,
    UNTESTABLE,
    Result,
    say,
    verdict_of,
)
from rooffloor.validate.hypotheses.slope import collinearity, offset_slope, pooled_slope, slope, slope_summary
from rooffloor.validate.hypotheses.test import TESTS
from rooffloor.validate.study.margins import Margins

MARGINS = Margins()
LABELS = pytest.mark.parametrize("label", [MEASURED, IMPUTED])


def with_cells(draws: Draws, mask: np.ndarray, **columns: np.ndarray) -> Draws:
    """The draws with some arrays replaced on some cells."""
    changed = {}
    for name, values in columns.items():
        array = np.array(getattr(draws, name))
        array[:, mask] = values
        changed[name] = array
    return replace(draws, **changed)


# ---- verdicts and words ----------------------------------------------------------------------------------------


def test_the_verdict_turns_at_the_probability_and_at_its_complement():
    found = [verdict_of(p, MARGINS) for p in (1.0, 0.95, 0.9499, 0.5, 0.0501, 0.05, 0.0)]
    assert found == [SUPPORTED] * 2 + [UNDECIDED] * 3 + [REFUTED] * 2
    assert verdict_of(0.91, Margins(probability=0.9)) == SUPPORTED


@pytest.mark.parametrize(
    ("p", "words"),
    [(1.0, "above 0.99"), (0.9901, "above 0.99"), (0.99, "0.99"), (0.5, "0.50"), (0.01, "0.01"), (0.0, "below 0.01")],
)
def test_probabilities_are_said_with_two_digits_and_never_as_certain(p: float, words: str):
    assert say(p) == words


# ---- pieces -----------------------------------------------------------------------------------------------------


@LABELS
def test_level_error_of_a_perfect_floor_is_the_noise_and_of_a_wrong_one_the_bias(label: str):
    draws = simulate(label, noise=0.02)
    mask = draws.mask(SIBLING, "H100")
    relative = draws.noise_ms[:, mask] / draws.mean_ms[:, mask]
    exact = level_error(draws, mask, draws.floor_ms)
    assert exact == pytest.approx(100 * np.sqrt(2 / np.pi) * relative.mean(-1), rel=0.03)
    off = level_error(draws, mask, draws.floor_ms + 0.5 * draws.mean_ms)
    assert off == pytest.approx(50, abs=0.5)


@LABELS
def test_slope_is_that_of_weighted_least_squares(label: str):
    draws = simulate(label, scales={SIBLING: 1.1}, noise=0.02)
    mask = draws.mask(SIBLING, "H200")
    means, sds = slope(draws, mask)
    for row in (0, 57, 199):
        T, sd = draws.gpu_ms[row, mask], draws.noise_ms[row, mask]
        y = draws.step_ms[row if label == IMPUTED else 0, mask]
        fit = sm.WLS(y, sm.add_constant(T), weights=1 / sd**2).fit()
        assert means[row] == pytest.approx(fit.params[1])
        assert sds[row] == pytest.approx(np.sqrt(fit.normalized_cov_params[1, 1]))  # the noise is known


def test_slope_is_unknown_where_T_does_not_vary():
    draws = simulate(grid=[(4, 2048)])
    mask = draws.mask(SIBLING, "H100")
    assert np.isinf(slope(draws, mask)[1]).all()
    found = slope_summary(draws, mask, MARGINS)
    assert found == {"slope": None, "slope_in_rope": None, "slope_verdict": UNTESTABLE, "varying_share": 0.0}


def test_slope_summary_finds_a_planted_slope_and_where_it_lies():
    draws = simulate(scales={SIBLING: 1.3})
    found = slope_summary(draws, mask := draws.mask(SIBLING, "H100"), MARGINS)
    means, sds = slope(draws, mask)
    inside = norm.cdf((1.12 - means) / sds) - norm.cdf((0.88 - means) / sds)
    low, high = found["slope"]["intervals"]["90"]
    assert found["slope"]["value"] == pytest.approx(1.3, abs=0.05)
    assert high - low == pytest.approx(2 * 1.645 * np.hypot(sds.mean(), means.std()), rel=0.2)
    assert found["slope_in_rope"]["value"] == pytest.approx(inside.mean(), abs=1e-9)
    T = draws.gpu_ms[:, mask]
    assert found["varying_share"] == pytest.approx((1 - T.min(-1) / T.max(-1)).mean())
    assert found["slope_verdict"] == REFUTED


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, SUPPORTED), (0.7, REFUTED), (1.12, UNDECIDED)])
def test_slope_verdict(scale: float, verdict: str):
    draws = simulate(scales={SIBLING: scale}, noise=0.002)
    # what a floor leaves over of a wrong slope is not known noise: judge all three by the same noise
    draws = replace(draws, noise_ms=0.002 * draws.mean_ms)
    if scale == 1.12:
        draws = replace(draws, noise_ms=0.02 * draws.mean_ms)
    assert slope_summary(draws, draws.mask(SIBLING, "A100-40GB"), MARGINS)["slope_verdict"] == verdict


def test_a_slope_that_is_merely_unknown_is_not_refuted():
    draws = simulate()
    vague = replace(draws, noise_ms=100 * draws.noise_ms)
    found = slope_summary(vague, draws.mask(SIBLING, "H100"), MARGINS)
    assert found["slope_in_rope"]["value"] < 0.3
    vaguer = replace(draws, noise_ms=1_000 * draws.noise_ms)
    found = slope_summary(vaguer, draws.mask(SIBLING, "H100"), MARGINS)
    assert found["slope_in_rope"]["value"] < 0.05
    assert found["slope_verdict"] == UNTESTABLE  # "undecided" beside such a probability would say that it is known


def integrated(means: np.ndarray, sds: np.ndarray, margin: float, scale: float) -> float:
    """P(mean below the margin) by adaptive quadrature over tau of the marginal likelihood with a flat mean."""

    def both(angle: float) -> tuple[float, float]:
        variance = sds**2 + (scale * np.tan(angle)) ** 2
        precision = (1 / variance).sum()
        centre = (means / variance).sum() / precision
        density = np.exp(-0.5 * ((means - centre) ** 2 / variance).sum()) / np.sqrt(variance.prod() * precision)
        return density, density * norm.cdf((margin - centre) * np.sqrt(precision))

    end = np.pi / 2 - 1e-9
    total, below = (quad(lambda a, k=k: both(a)[k], 0, end, limit=500)[0] for k in (0, 1))
    return below / total


@pytest.mark.parametrize(
    ("means", "sds"),
    [
        ([0.5, 1.5, 3.0], [0.4, 0.6, 0.5]),
        ([0.0, 0.1, -0.2], [0.3, 0.3, 0.3]),
        ([-1.0, 4.0], [1.0, 0.2]),
        ([6.0, 1.0, 2.5, 2.0, 1.8], [0.5, 0.9, 0.1, 2.0, 0.7]),
    ],
)
@pytest.mark.parametrize("margin", [0.5, 2.0, 4.0])
def test_pooled_below_is_the_integral_over_the_spread_between_gpus(means: list[float], sds: list[float], margin: float):
    m, s = np.array(means), np.array(sds)
    assert pooled_below(m, s, margin, 2.5) == pytest.approx(integrated(m, s, margin, 2.5), abs=0.006)


def test_pooled_below_without_spread_is_the_normal_of_the_precision_weighted_mean():
    means, sds = np.array([0.5, 1.5, 3.0]), np.array([0.4, 0.6, 0.5])
    w = 1 / sds**2
    expected = norm.cdf((2.0 - w @ means / w.sum()) * np.sqrt(w.sum()))
    assert pooled_below(means, sds, 2.0, 1e-8) == pytest.approx(expected, abs=1e-6)


def test_pooled_below_of_one_gpu_keeps_the_prior_on_the_spread():
    def prior(angle: float) -> float:
        return 2 / np.pi * norm.cdf((2.0 - 0.3) / np.hypot(0.2, 2.5 * np.tan(angle)))

    expected = quad(prior, 0, np.pi / 2)[0]
    assert pooled_below(np.array([0.3]), np.array([0.2]), 2.0, 2.5) == pytest.approx(expected, abs=0.003)
    assert 0.6 < expected < 0.85


def test_pooled_below_of_exact_means_and_a_wide_prior_is_students_t():
    """A flat prior on tau and on the mean, no error on K means: t with K - 2 degrees of freedom."""
    means = np.array([-90.0, 20.0, 60.0, 110.0, 40.0, -10.0])
    K, centre, square = len(means), means.mean(), ((means - means.mean()) ** 2).sum()
    for margin in (0.0, 60.0, 100.0):
        expected = student.cdf((margin - centre) / np.sqrt(square / (K * (K - 2))), K - 2)
        assert pooled_below(means, np.full(K, 1e-3), margin, 700.0) == pytest.approx(expected, abs=0.015)


def test_pooled_below_counts_errors_that_all_gpus_share_once():
    """Without spread: the normal of generalised least squares. Errors that are one tell no more than one GPU does."""
    means, sds = np.array([0.5, 1.5, 3.0]), np.array([0.4, 0.6, 0.5])
    correlation = np.array([[1.0, 0.7, 0.5], [0.7, 1.0, 0.6], [0.5, 0.6, 1.0]])
    inverse = np.linalg.inv(correlation * np.outer(sds, sds))
    expected = norm.cdf((2.0 - (inverse @ means).sum() / inverse.sum()) * np.sqrt(inverse.sum()))
    assert pooled_below(means, sds, 2.0, 1e-8, correlation) == pytest.approx(expected, abs=1e-6)
    alike, same = np.full((3, 3), 1 - 1e-9) + 1e-9 * np.eye(3), np.full(3, 0.5)
    one = norm.cdf((1.0 - 0.6) / 0.5)
    assert pooled_below(np.full(3, 0.6), same, 1.0, 1e-8, alike) == pytest.approx(one, abs=1e-3)
    assert pooled_below(means, sds, 2.0, 2.5, np.eye(3)) == pytest.approx(float(pooled_below(means, sds, 2.0, 2.5)))


def test_pooled_draws_are_those_of_the_mixture():
    rng = np.random.default_rng(4)
    means, sds = np.tile([0.5, 1.5, 3.0], (40_000, 1)), np.tile([0.4, 0.6, 0.5], (40_000, 1))
    for pooled in (pool(means, sds, 2.5), pool_here(means, sds, 2.5)):
        drawn = pooled.sample(rng)
        for margin in (0.5, 1.7, 2.5):
            assert (drawn < margin).mean() == pytest.approx(pooled.below(margin)[0], abs=0.01)


def test_pool_here_is_the_mean_of_the_skus_at_hand():
    """By brute force: spread and mean over grids, values of the SKUs drawn given both."""
    means, sds, scale = np.array([0.9, 1.1, 1.3]), np.array([0.05, 0.1, 0.2]), 0.06
    rng = np.random.default_rng(5)
    tau = np.abs(scale * np.tan(np.pi * (rng.random(400_000) - 0.5)))
    mu = rng.uniform(0.5, 1.8, 400_000)
    variance = sds**2 + tau[:, None] ** 2
    weight = np.exp(-0.5 * (np.log(variance) + (means - mu[:, None]) ** 2 / variance).sum(-1))
    own = tau[:, None] ** 2 / variance
    centre = (own * means + (1 - own) * mu[:, None]).mean(-1)
    sd = np.sqrt((own * sds**2).sum(-1)) / 3
    for margin in (0.9, 1.0, 1.1):
        expected = np.average(norm.cdf((margin - centre) / np.maximum(sd, 1e-9)), weights=weight)
        assert pool_here(means, sds, scale).below(margin) == pytest.approx(expected, abs=0.015)
    narrow, wide = pool_here(means, sds, scale), pool(means, sds, scale)
    assert (narrow.precision > wide.precision).all()


@LABELS
def test_pooled_slope_finds_a_slope_that_no_gpu_alone_decides(label: str):
    draws = simulate(label, models=(ANCHOR, SMALL), floors={SMALL: 7.0}, noise=0.015, seed=3)
    masks = [draws.mask(SMALL, gpu) for gpu in GPUS]
    alone = [slope_summary(draws, mask, MARGINS) for mask in masks]
    pooled = pooled_slope(draws, masks, MARGINS)
    width = [np.diff(one["slope"]["intervals"]["90"])[0] for one in (pooled, *alone)]
    assert width[0] < min(width[1:])
    assert pooled["slope_in_rope"]["value"] > max(one["slope_in_rope"]["value"] for one in alone)
    assert pooled_slope(draws, masks[:1], MARGINS)["slope_in_rope"]["value"] == pytest.approx(
        alone[0]["slope_in_rope"]["value"], abs=0.02
    )


def test_pooled_slope_leaves_out_gpus_where_T_does_not_vary():
    flat = simulate(grid=[(4, 2048)])
    masks = [flat.mask(SIBLING, gpu) for gpu in GPUS]
    assert pooled_slope(flat, masks, MARGINS) == {"slope": None, "slope_in_rope": None, "slope_verdict": UNTESTABLE}


def test_pooled_below_broadcasts_over_imputations():
    rng = np.random.default_rng(1)
    means, sds = rng.normal(size=(7, 3)), rng.uniform(0.1, 1, (7, 3))
    together = pooled_below(means, sds, 0.5, 2.5)
    assert together == pytest.approx([float(pooled_below(m, s, 0.5, 2.5)) for m, s in zip(means, sds, strict=True)])


def test_by_unit_gives_each_imputation_its_mean_sd_and_weight():
    draws = simulate(IMPUTED, draws=60, units=6)
    values = np.random.default_rng(2).normal(size=(60, 2))
    means, sds, mass = by_unit(draws, values)
    for k in range(6):
        rows = slice(10 * k, 10 * k + 10)
        assert means[k] == pytest.approx(values[rows].mean(0))
        assert sds[k] == pytest.approx(values[rows].std(0))
        assert mass[k] == pytest.approx(draws.weight[rows].sum())
    means, sds, mass = by_unit(simulate(MEASURED, draws=60), values)
    assert (means, sds, mass) == (
        pytest.approx(values.mean(0)[None]),
        pytest.approx(values.std(0)[None]),
        pytest.approx([1.0]),
    )


# ---- offset or scale --------------------------------------------------------------------------------------------


def brute_force_weights(T: np.ndarray, y: np.ndarray, left: np.ndarray, scale: float) -> dict[str, float]:
    """Evidence by summing the likelihood over grids of offset, slope and noise."""
    b, z = np.linspace(-4, 4, 321), np.linspace(-2.5, 3.5, 61)
    prior_b, prior_z = norm.pdf(b), norm.pdf(z)
    offset, tilt = 5.0 * scale / y, 0.5 * scale * T / y
    sigma = 0.06 * np.exp(0.7 * z)

    def evidence(fit: np.ndarray, prior: np.ndarray) -> float:
        square = ((left / y - fit) ** 2).sum(-1)
        return sum(
            p * (prior * np.exp(-0.5 * square / s**2)).sum() / s ** len(y) for p, s in zip(prior_z, sigma, strict=True)
        )

    step = b[1] - b[0]
    one = {name: evidence(b[:, None] * c, prior_b) * step for name, c in (("offset", offset), ("scale", tilt))}
    pair = evidence(b[:, None, None] * offset + b[None, :, None] * tilt, prior_b[:, None] * prior_b[None]) * step**2
    total = one["offset"] + one["scale"] + pair
    return {"offset only": one["offset"] / total, "scale only": one["scale"] / total, "both": pair / total}


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_explanation_weights_are_ratios_of_integrals(scale: float):
    draws = simulate(MEASURED, models=(ANCHOR, SMALL), gpus=("H100",), draws=4, units=2)
    at = np.flatnonzero(draws.mask(SMALL, "H100"))[[0, 5, 11, 14]]
    mask = np.isin(np.arange(len(draws.cells)), at)
    T = np.tile([2.0, 5.0, 9.0, 14.0], (4, 1))
    y = np.array([[7.4, 10.0, 17.0, 22.5]])  # between an offset of 1.3 and a slope of 1.3 beside the anchor's 4 ms
    draws = with_cells(draws, mask, gpu_ms=T, step_ms=y, anchor_floor_ms=np.full((4, 4), 4.0))
    expected = brute_force_weights(T[0], y[0], y[0] - T[0] - 4.0, scale)
    found = explanation_weights(draws, [mask], scale)
    assert found == pytest.approx(expected, abs=0.003)
    assert min(found.values()) > 0.01  # a case that could go either way


@pytest.mark.parametrize("cells", [5, 60])
@pytest.mark.parametrize("sigma", [0.004, 0.3])
def test_evidence_is_accurate_for_many_cells_and_any_noise(cells: int, sigma: float):
    rng = np.random.default_rng(cells)
    design = rng.normal(size=(1, cells, 2))
    residual = design @ np.array([0.4, -0.8]) + sigma * rng.normal(size=(1, cells))
    z = np.linspace(-7, 5, 301)
    logs = np.array(
        [
            multivariate_normal.logpdf(
                residual[0], cov=design[0] @ design[0].T + (0.06 * np.exp(0.7 * v)) ** 2 * np.eye(cells)
            )
            for v in z
        ]
    )
    expected = np.log((np.exp(logs - logs.max()) * norm.pdf(z)).sum() * (z[1] - z[0])) + logs.max()
    assert _log_evidence(residual, design) == pytest.approx([expected], abs=0.02)


@LABELS
@pytest.mark.parametrize(
    ("truth", "winner"),
    [
        ({"floors": {SMALL: 7.0}}, "offset only"),
        ({"scales": {SMALL: 3.0}}, "scale only"),
        ({"floors": {SMALL: 9.0}, "scales": {SMALL: 2.0}}, "both"),
    ],
)
def test_the_planted_explanation_wins(label: str, truth: Mapping[str, Any], winner: str):
    draws = simulate(label, models=(ANCHOR, SMALL), gpus=("A100-40GB",), noise=0.003, **truth)
    found = explanation_weights(draws, [draws.mask(SMALL, "A100-40GB")], 1.0)
    assert sum(found.values()) == pytest.approx(1)
    assert found[winner] > 0.9


def test_imputations_count_by_their_weight():
    draws = simulate(IMPUTED, models=(ANCHOR, SMALL), gpus=("H100",), units=2, noise=0.003, floors={SMALL: 7.0})
    other = simulate(IMPUTED, models=(ANCHOR, SMALL), gpus=("H100",), units=2, noise=0.003, scales={SMALL: 3.0})
    second = draws.unit == 1
    mixed = replace(
        draws,
        step_ms=np.where(second[:, None], other.step_ms, draws.step_ms),
        gpu_ms=np.where(second[:, None], other.gpu_ms, draws.gpu_ms),
        anchor_floor_ms=np.where(second[:, None], other.anchor_floor_ms, draws.anchor_floor_ms),
        weight=np.where(second, 0.2, 0.8) / 100,
    )
    found = explanation_weights(mixed, [draws.mask(SMALL, "H100")], 1.0)
    assert found["offset only"] == pytest.approx(0.8, abs=0.07)
    assert found["scale only"] == pytest.approx(0.2, abs=0.05)


@LABELS
def test_left_out_error_is_an_explicit_leave_one_out(label: str):
    draws = simulate(label, models=(ANCHOR, SMALL), gpus=("H100",), noise=0.05, floors={SMALL: 6.0})
    mask = draws.mask(SMALL, "H100")
    found = left_out_error(draws, mask)
    for row in (0, 199):
        T = draws.gpu_ms[row, mask]
        y = draws.step_ms[row if label == IMPUTED else 0, mask]
        errors = []
        for out in range(len(y)):
            kept = np.arange(len(y)) != out
            offset = np.average((y - T)[kept], weights=1 / y[kept] ** 2)
            errors.append(abs(T[out] + offset - y[out]) / y[out])
        assert found[row] == pytest.approx(100 * np.mean(errors))


def test_collinearity_is_the_squared_cosine_of_the_weighted_columns():
    draws = simulate(MEASURED)
    mask = draws.mask(SIBLING, "H100")
    expected = []
    for T, sd in zip(draws.gpu_ms[:, mask], draws.noise_ms[:, mask], strict=True):
        one, slope = 1 / sd, T / sd
        expected.append((one @ slope / np.linalg.norm(one) / np.linalg.norm(slope)) ** 2)
    assert collinearity(draws, mask) == pytest.approx(np.mean(expected))
    flat = simulate(grid=[(4, 2048)])
    assert collinearity(flat, flat.mask(SIBLING, "H100")) == pytest.approx(1)
    assert collinearity(draws, mask) < 0.999


@LABELS
def test_offset_and_slope_are_the_moments_of_weighted_least_squares_mixed_over_draws(label: str):
    draws = simulate(label)
    mask = draws.mask(SIBLING, "H100")
    steps = np.broadcast_to(draws.step_ms, draws.gpu_ms.shape)
    means, seconds = [], []
    for T, y, sd, floor in zip(
        draws.gpu_ms[:, mask],
        steps[:, mask],
        draws.noise_ms[:, mask],
        draws.anchor_floor_ms[:, mask][:, 0],
        strict=True,
    ):
        design = np.stack([np.ones_like(T), T], -1) / sd[:, None]
        covariance = np.linalg.inv(design.T @ design)
        mean = covariance @ design.T @ (y / sd) - [floor, 0.0]
        means.append(mean)
        seconds.append(covariance + np.outer(mean, mean))
    mean = np.average(means, axis=0, weights=draws.weight)
    covariance = np.average(seconds, axis=0, weights=draws.weight) - np.outer(mean, mean)
    found = offset_slope(draws, mask)
    assert found is not None
    assert found["mean"] == pytest.approx(mean)
    assert np.array(found["covariance"]) == pytest.approx(covariance, rel=1e-6, abs=1e-9)
    assert found["cos2"] == collinearity(draws, mask)
    low, high = draws.gpu_ms[:, mask].min(), draws.gpu_ms[:, mask].max()
    assert low < found["mean_gpu_ms"] < high


def test_offset_and_slope_of_a_T_that_does_not_vary_are_none():
    flat = simulate(grid=[(4, 2048)])
    assert offset_slope(flat, flat.mask(SIBLING, "H100")) is None


# ---- H1 ---------------------------------------------------------------------------------------------------------


@LABELS
def test_h1_is_supported_by_a_family_with_the_anchors_floor(label: str):
    found = h1(simulate(label), MARGINS)
    family = found.data["families"][0]
    assert (found.verdict, family["verdict"], family["family"]) == (SUPPORTED, SUPPORTED, SIBLING)
    assert family["difference"]["value"] == pytest.approx(0, abs=0.5)
    assert {row["slope_verdict"] for row in family["per_sku"]} == {SUPPORTED}
    assert family["joint"]["value"] > 0.95
    assert family["by_die"] > 0.9  # two dies say less than three GPUs
    schools = "schools agree" if label == MEASURED else "no p of one data set"
    assert [("every one" in s, schools in s) for s in found.sentences[1:]] == [(True, False), (False, True)]
    assert "above 0.99" in found.sentences[0]
    assert "H1 is supported for it." in " ".join(found.text.split())


@LABELS
def test_h1_is_refuted_by_an_error_of_a_quarter_in_T_and_the_slope_shows_it(label: str):
    found = h1(simulate(label, scales={SIBLING: 1.25}, noise=0.005), MARGINS)
    family = found.data["families"][0]
    assert found.verdict == REFUTED
    assert family["probability"]["value"] < 0.05
    rows = {row["gpu"]: row for row in family["per_sku"]}
    assert list(rows) == list(GPUS)
    assert rows["H100"]["slope"]["value"] == pytest.approx(1.25, abs=0.05)
    assert any("outside 1 +- 0.12" in s and "A100-40GB" in s for s in found.sentences)


def test_h1_is_refuted_by_a_floor_of_its_own_without_a_word_on_the_slope():
    found = h1(simulate(floors={SIBLING: 14.0}), MARGINS)
    assert found.verdict == REFUTED
    assert not any("slope" in s for s in found.sentences)


def test_h1_reports_a_slope_that_the_level_hides():
    grid = [(b, c) for b in (1, 2, 4, 8) for c in (512, 1024, 2048)]
    draws = simulate(grid=grid, noise=0.001)
    T = draws.gpu_ms.mean(0)
    tilted = np.array(draws.step_ms)
    for gpu in draws.cells.gpus:
        mask = draws.mask(SIBLING, gpu)
        tilted[:, mask] += 0.25 * (T[mask] - T[mask].mean())
    found = h1(replace(draws, step_ms=tilted), MARGINS)
    (family,) = found.data["families"]
    assert family["probability"]["value"] > 0.95
    assert family["slope_verdict"] == REFUTED
    assert found.verdict == UNDECIDED  # a level within the margin does not support a branch whose shape is wrong
    assert "the level alone does not support H1" in found.sentences[-2]
    assert "The level alone would not show it." in found.sentences[-1]


def collinear(count: int, seed: int = 1, **floors: float) -> Draws:
    """Draws in which T_gpu and floors are known as their sum only, as in a cut: one T_gpu for ten draws each."""
    draws = simulate(noise=0.02, draws=10 * count, units=count, seed=seed, floors=floors)
    off = np.repeat(np.random.default_rng(seed).normal(0.0, 0.12, count), 10)[:, None]
    T = draws.gpu_ms * (1 + off)
    moved = {n: np.array(getattr(draws, n)) for n in ("floor_ms", "anchor_floor_ms")}
    for model, gpu, mask in draws.pairs():
        change = (T - draws.gpu_ms)[:, mask].mean(-1, keepdims=True)
        moved["floor_ms"][:, mask] -= change
        if model == ANCHOR:
            moved["anchor_floor_ms"][:, draws.cells.gpu == gpu] -= change
    given = {"calibrated_floor_ms": moved["anchor_floor_ms"], "own_calibrated_floor_ms": moved["floor_ms"]}
    return replace(draws, gpu_ms=T, **moved, **given)


def test_floors_that_go_with_their_draw_decide_what_their_mean_leaves_open():
    draws = collinear(100)
    mean_floor = replace(draws, calibrated_floor_ms=None, own_calibrated_floor_ms=None)
    paired, unpaired = (h1(d, MARGINS).data["families"][0] for d in (draws, mean_floor))
    row, apart = paired["per_sku"][0], unpaired["per_sku"][0]
    width, wide = (np.diff(r["level"]["intervals"]["90"])[0] for r in (row, apart))
    assert row["level"]["value"] < 0.6 * apart["level"]["value"]
    assert width < 0.3 * wide
    assert paired["verdict"] == SUPPORTED
    assert paired["absolute_probability"]["value"] > unpaired["absolute_probability"]["value"]


def test_both_schools_pair_each_floor_with_its_draw():
    draws = collinear(60)
    mask = draws.mask(SIBLING, "H100")
    rows = np.zeros(1, dtype=np.int64)
    found = errors(draws, SIBLING, GPUS, rows)["family"][0, 0]
    predicted = draws.weight @ (draws.gpu_ms + draws.calibrated_ms)[:, mask]
    order = np.lexsort((draws.context[0, mask], draws.batch[0, mask]))
    expected = 100 * np.abs(predicted / draws.step_ms[0, mask] - 1)
    np.testing.assert_allclose(found, expected[order])


def test_the_monte_carlo_error_shows_how_few_draws_of_the_constants_there_are():
    whole = collinear(400, **{SIBLING: 4.25})
    for count in (24, 100):
        found = []
        rng = np.random.default_rng(count)
        for _ in range(40):
            units = rng.choice(400, count, replace=False)
            family = h1(whole.rows(np.isin(whole.unit, units)), MARGINS, both_schools=False).data["families"][0]
            level = family["per_sku"][0]["level"]
            told = family["probability"]
            found.append((level["value"], level["mcse"], told["value"], told["mcse"]))
        values, errors_, chances, chance_errors = np.array(found).T
        assert values.std() == pytest.approx(errors_.mean(), rel=0.45)
        assert chances.std() == pytest.approx(chance_errors.mean(), rel=0.5)


def test_h1_is_undecided_near_the_margin_and_with_one_gpu():
    near = h1(simulate(floors={SIBLING: ANCHOR_FLOOR_MS + 0.22}), MARGINS)
    assert near.verdict == UNDECIDED
    assert 1 < near.data["families"][0]["difference"]["value"] < 2
    one = h1(simulate(gpus=("H100",)), MARGINS)
    assert one.verdict == UNDECIDED
    assert one.data["families"][0]["per_sku"][0]["probability"]["value"] > 0.95  # as good as it gets
    tests = one.data["families"][0]["frequentist"]["tests"]
    assert tests["t_per_gpu"]["p_value"] is None
    assert "No test over GPUs is possible" in one.sentences[-1]
    assert "one GPU does not show" in one.sentences[1]


@LABELS
def test_h1_numbers_are_those_of_its_pieces(label: str):
    draws = simulate(label, floors={SIBLING: 4.15})  # P about 0.9: the width of the prior on the spread counts
    family = h1(draws, MARGINS).data["families"][0]
    level, gap = (np.empty((200, 3)) for _ in range(2))
    for k, gpu in enumerate(GPUS):
        level[:, k] = level_error(draws, draws.mask(SIBLING, gpu), draws.calibrated_ms)
        gap[:, k] = level[:, k] - level_error(draws, draws.mask(ANCHOR, gpu), draws.calibrated_ms)
        row = family["per_sku"][k]
        assert row["level"]["value"] == pytest.approx(draws.weight @ level[:, k])
        assert row["difference"]["value"] == pytest.approx(draws.weight @ gap[:, k])
        assert row["probability"]["value"] == pytest.approx(draws.weight @ (gap[:, k] < 2.0))
    means, sds, mass = by_unit(draws, gap)
    pooled = mass @ np.array([integrated(m, np.maximum(s, 1e-6), 2.0, 2.5) for m, s in zip(means, sds, strict=True)])
    assert family["probability"]["value"] == pytest.approx(pooled, abs=0.005)
    die = np.stack([gap[:, :2].mean(-1), gap[:, 2]], -1)  # H100 and H200 are one die
    die_means, die_sds, _ = by_unit(draws, die)
    alike = correlation_by_unit(draws, die) if label == MEASURED else None
    assert family["by_die"] == pytest.approx(mass @ pooled_below(die_means, die_sds, 2.0, 2.5, alike))
    assert family["joint"]["value"] == pytest.approx(draws.weight @ (gap < 2.0).all(-1))
    curve = {point["margin"]: point["probability"] for point in family["margins"]}
    assert list(curve) == pytest.approx(np.arange(21) / 4)
    assert curve[2.0] == pytest.approx(family["probability"]["value"])
    assert (np.diff(list(curve.values())) >= 0).all()
    assert family["margins"][8]["on H200"] == pytest.approx(draws.weight @ (gap[:, 1] < 2.0))


def test_h1_is_refuted_where_the_anchor_is_as_badly_predicted_as_the_family():
    family = h1(simulate(noise=0.3), MARGINS).data["families"][0]
    assert family["difference"]["value"] < 2  # the anchor is no better
    assert family["probability"]["value"] > 0.5
    assert family["absolute_probability"]["value"] < 0.05
    assert family["verdict"] == REFUTED


def test_h1_takes_the_worst_of_several_families():
    draws = simulate(models=(ANCHOR, SIBLING, "Mistral-7B-v0.3"), scales={"Mistral-7B-v0.3": 1.5})
    found = h1(draws, MARGINS)
    assert [f["verdict"] for f in found.data["families"]] == [SUPPORTED, REFUTED]
    assert found.verdict == REFUTED


# ---- H2 ---------------------------------------------------------------------------------------------------------


def moe(label: str = MEASURED, **truth: Any) -> Draws:
    return simulate(label, models=(ANCHOR, MOE), gpus=("H100",), **{"noise": 0.005, **truth})


@LABELS
def test_h2_is_supported_under_the_anchors_floor(label: str):
    found = h2(moe(label), MARGINS)
    verdicts = {key: part["verdict"] for key, part in found.data["parts"].items()}
    assert (found.verdict, verdicts) == (SUPPORTED, {"a": SUPPORTED, "b": NEGLIGIBLE, "c": SUPPORTED})
    assert len(found.sentences) == 3


@LABELS
def test_h2_is_refuted_by_a_floor_of_its_own_though_the_shape_holds(label: str):
    draws = moe(label, floors={MOE: 10.0})
    found = h2(draws, MARGINS)
    a, b, c = (found.data["parts"][k]["per_sku"][0] for k in "abc")
    assert (found.verdict, a["verdict"], c["verdict"]) == (REFUTED, REFUTED, SUPPORTED)
    assert a["floor_above_anchor"]["value"] == pytest.approx(6.0, abs=0.05)
    y, mask = draws.step_ms.mean(0), draws.mask(MOE, "H100")
    assert a["level"]["value"] == pytest.approx(100 * (6.0 / y[mask]).mean(), rel=0.03)
    assert c["own_level"]["value"] < 1
    assert (c["corner"]["batch"], c["corner"]["context"]) == (16, 8192)
    at = np.flatnonzero(mask)[-1]
    predicted = draws.gpu_ms[:, at] + draws.own_calibrated_ms[:, at]
    error = draws.weight @ (100 * (predicted / draws.step_ms[:, at] - 1))
    assert c["corner"]["error"]["value"] == pytest.approx(error)
    assert b["verdict"] == NEGLIGIBLE


def test_h2_finds_a_wrong_shape():
    found = h2(moe(scales={MOE: 1.5}), MARGINS)
    assert found.data["parts"]["c"]["verdict"] == REFUTED
    assert found.data["parts"]["c"]["per_sku"][0]["slope"]["value"] == pytest.approx(1.5, abs=0.1)


def test_the_sd_of_the_dispatch_factor_is_that_of_least_squares_beside_a_floor():
    draws = moe(draws=20)
    row = h2(draws, MARGINS).data["parts"]["b"]["per_sku"][0]
    mask = draws.mask(MOE, "H100")
    sds = []
    for D, sd, y in zip(draws.dispatch_ms[:, mask], draws.noise_ms[:, mask], draws.gpu_ms[:, mask], strict=True):
        fit = sm.WLS(y, np.stack([np.ones(len(D)), D], -1), weights=1 / sd**2).fit()
        sds.append(np.sqrt(fit.normalized_cov_params[1, 1]))
    assert row["kappa_sd"] == pytest.approx(np.exp(np.log(sds).mean()), rel=1e-4)
    assert row["term"]["value"] == pytest.approx(np.median(draws.dispatch_ms[:, mask], -1).mean())


def test_h2b_is_untestable_refuted_or_negligible():
    draws = moe()
    unseen = h2(draws, Margins(dispatch_percent=0.001)).data["parts"]["b"]
    assert (unseen["verdict"], unseen["per_sku"][0]["probability"]["value"]) == (UNTESTABLE, 0)
    assert unseen["per_sku"][0]["kappa_sd"] > 0.5
    assert "cannot be tested here" in unseen["sentences"][0]
    large = replace(draws, dispatch_ms=300 * draws.dispatch_ms)
    seen = h2(large, MARGINS).data["parts"]["b"]
    assert (seen["verdict"], seen["per_sku"][0]["kappa_sd"] < 0.5) == (REFUTED, True)  # P(negligible) is 0
    assert "cannot be tested here" not in seen["sentences"][0]


def test_h2_takes_the_worst_gpu_of_each_part():
    draws = simulate(models=(ANCHOR, MOE), noise=0.005)
    mask = draws.mask(MOE, "H200")
    shifted = with_cells(draws, mask, step_ms=draws.step_ms[:, mask] + 9, floor_ms=draws.floor_ms[:, mask] + 9)
    part = h2(shifted, MARGINS).data["parts"]["a"]
    assert [row["verdict"] for row in part["per_sku"]] == [SUPPORTED, REFUTED, SUPPORTED]
    assert part["verdict"] == REFUTED


def test_h2c_is_untestable_with_one_cell():
    found = h2(moe(grid=[(4, 2048)]), MARGINS).data["parts"]["c"]
    assert found["verdict"] == UNTESTABLE
    assert "there is no slope" in found["sentences"][0]


# ---- H3 ---------------------------------------------------------------------------------------------------------


def small(label: str = MEASURED, **truth: Any) -> Draws:
    return simulate(label, models=(ANCHOR, SMALL), **{"noise": 0.002, **truth})


@LABELS
def test_h3_is_supported_by_a_planted_floor(label: str):
    found = h3(small(label, floors={SMALL: 7.0}, gpus=("A100-40GB",)), MARGINS)
    (row,) = found.data["per_sku"]
    assert (found.verdict, row["verdict"]) == (SUPPORTED, SUPPORTED)
    assert row["floor_above_anchor"]["value"] == pytest.approx(3.0, abs=0.1)
    assert row["own_level"]["value"] < 1 < 10 < row["level"]["value"]
    assert set(row["weights"]) == set(PRIOR_SCALES)
    (pooled,) = found.data["pooled"]
    assert (pooled["gpus"], pooled["verdict"], pooled["joined"]) == (["A100-40GB"], SUPPORTED, None)
    assert found.sentences[0].startswith(f"{SMALL} diverges on A100-40GB.")
    assert "would look like such a floor" in found.sentences[-1]


@LABELS
def test_h3_is_refuted_by_a_planted_scale(label: str):
    found = h3(small(label, scales={SMALL: 3.0}), MARGINS)
    assert found.verdict == REFUTED
    assert all(row["weights"][name]["offset only"] < 0.05 for row in found.data["per_sku"] for name in PRIOR_SCALES)
    assert len(found.sentences) == 4


def test_h3_is_undecided_where_noise_hides_the_shape():
    found = h3(small(floors={SMALL: 7.0}, noise=0.05), MARGINS)
    assert found.verdict == UNDECIDED
    assert all(row["diverges"]["value"] > 0.95 for row in found.data["per_sku"])


def test_h3_is_not_supported_by_an_offset_that_leaves_too_much_over():
    draws = small(floors={SMALL: 7.0}, gpus=("A100-40GB",))
    tight = Margins(h1_absolute=0.01)  # no offset brings the cells within a hundredth of a percent
    found = h3(draws, tight)
    assert found.data["per_sku"][0]["recovered"]["value"] < 0.05
    assert found.verdict == UNDECIDED


def test_h3_counts_the_pairs_that_diverge():
    draws = small()
    mask = draws.mask(SMALL, "A100-40GB")
    shifted = with_cells(draws, mask, step_ms=draws.step_ms[:, mask] + 4, floor_ms=draws.floor_ms[:, mask] + 4)
    found = h3(shifted, MARGINS)
    assert [row["verdict"] for row in found.data["per_sku"]] == [NOT_TESTED, NOT_TESTED, SUPPORTED]
    assert found.verdict == SUPPORTED
    assert "diverges on A100-40GB." in found.sentences[0]
    assert ["nothing to test there" in s for s in found.sentences[1:4]] == [True, True, False]


def test_h3_leaves_larger_models_and_single_cells_out():
    larger = h3(simulate(models=(ANCHOR, "Llama-2-70B"), floors={"Llama-2-70B": 90.0}), MARGINS)
    assert larger.verdict == NOT_TESTED
    single = h3(small(grid=[(4, 2048)], floors={SMALL: 7.0}), MARGINS)
    assert single.verdict == NOT_TESTED


# ---- what is not tested, and what is written -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "models", "why"),
    [
        (h1, (ANCHOR, SMALL, MOE), "No model of the anchor's class (dense 5-10B)"),
        (h2, (ANCHOR, SIBLING, SMALL), "No mixture of experts"),
        (h3, (ANCHOR, SIBLING, MOE), "No smaller dense model"),
    ],
)
def test_what_was_not_measured_is_not_tested(test: Callable[..., Result], models: tuple[str, ...], why: str):
    found = test(simulate(models=models), MARGINS)
    assert (found.verdict, found.data["verdict"]) == (NOT_TESTED, NOT_TESTED)
    assert found.sentences[0].startswith(why)
    assert found.data["statement"] == STATEMENTS[found.name]


def test_nothing_is_tested_on_gpus_without_the_anchor():
    everything = (ANCHOR, SIBLING, SMALL, MOE)
    draws = simulate(models=everything, anchor_on=("H200",))
    assert [r["gpu"] for r in h1(draws, MARGINS).data["families"][0]["per_sku"]] == ["H200"]
    assert [r["gpu"] for r in h2(draws, MARGINS).data["parts"]["a"]["per_sku"]] == ["H200"]
    assert [r["gpu"] for r in h3(draws, MARGINS).data["per_sku"]] == ["H200"]
    nowhere = simulate(models=everything[1:])
    assert all(TESTS[name](nowhere, MARGINS).verdict == NOT_TESTED for name in TESTS)


def test_h3_without_divergence_is_not_tested():
    found = h3(small(), MARGINS)
    assert found.verdict == NOT_TESTED
    assert found.sentences[-1] == "No smaller model is shown to diverge under the anchor's floor."


@LABELS
@pytest.mark.parametrize("name", list(TESTS))
def test_results_are_json_and_tell_all_sentences(label: str, name: str):
    draws = simulate(label, models=(ANCHOR, SIBLING, SMALL, MOE), floors={SMALL: 8.0, MOE: 12.0}, noise=0.02)
    found = TESTS[name](draws, MARGINS)
    assert json_dumps(found.data)
    assert repr(found) == f"{name}: {found.verdict}"
    assert found.data["sentences"] == found.sentences
    assert all(s.endswith(".") and "nan" not in s and "  " not in s and "-0 " not in s for s in found.sentences)
    again = TESTS[name](draws, MARGINS)
    assert json_dumps(again.data) == json_dumps(found.data)


@pytest.mark.parametrize(("name", "rows"), [("H1", 3), ("H2", 9), ("H3", 3)])
def test_results_are_tables_and_a_figure(name: str, rows: int, tmp_path: Path):
    draws = simulate(models=(ANCHOR, SIBLING, SMALL, MOE), floors={SMALL: 8.0, MOE: 12.0}, noise=0.02)
    found = TESTS[name](draws, MARGINS)
    table = found.to_frame()
    assert (len(table), list(dict.fromkeys(table["gpu"]))) == (rows, list(GPUS))
    level = table.dropna(subset="level")
    assert (level["level_low"] < level["level"]).all()
    assert (level["level"] < level["level_high"]).all()
    text = found.to_csv(tmp_path / "found.csv")
    assert (tmp_path / "found.csv").read_text(encoding="utf-8") == text
    assert pd.read_csv(tmp_path / "found.csv").shape == table.shape
    axes = found.plot()
    assert [label.get_text().split(", ")[1] for label in axes.get_yticklabels()] == list(GPUS)
    assert found.verdict in axes.get_title(loc="left")
    assert found.plot(axes) is axes
    plt.close(axes.figure)
