"""One likelihood of a step: every place that writes it in a form of its own agrees with `inference.noise`."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference import one_pair, prior_density, quadrature, step_distribution
from rooffloor.models.inference.noise import log_density, variance_ms2
from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.models.specs.cells import Cells

CELLS = Cells.from_columns(
    ["m", "m", "m", "n", "n"], ["A", "A", "B", "A", "B"], [1, 8, 1, 2, 4], [512, 512, 2048, 4096, 512]
)
CLASSES = {"m": "small", "n": "large"}
PER_MODEL = FloorStructure("gpu, model")

type Array = NDArray[np.float64]


def evidence(residual: Array, variance: Array, root: Array) -> float:
    """log N(residual; 0, diag(variance) + root root')."""
    return float(stats.multivariate_normal(cov=np.diag(variance) + root @ root.T).logpdf(residual))


def test_the_density_is_the_normal_one() -> None:
    rng = np.random.default_rng(0)
    y, step = rng.uniform(5.0, 20.0, (2, 6))
    relative, absolute, known = rng.uniform(0.01, 0.2, (3, 6))
    variance = variance_ms2(step, relative, absolute, known)
    np.testing.assert_allclose(variance, absolute**2 + known**2 + (relative * step) ** 2)
    np.testing.assert_allclose(log_density(y, step, variance), stats.norm(step, np.sqrt(variance)).logpdf(y))


@pytest.mark.parametrize("structure", [PER_MODEL, FloorStructure("gpu", "overlapped"), FloorStructure("none")])
def test_the_sampled_model(structure: FloorStructure) -> None:
    from dataclasses import replace

    from pytensor.compile.mode import Mode

    from rooffloor.models.inference.step_model import build_model

    rng = np.random.default_rng(1)
    T, y, known = rng.uniform(3.0, 8.0, 5), rng.uniform(8.0, 14.0, 5), rng.uniform(0.05, 0.3, 5)
    cells = replace(CELLS, step_ms=y, step_sd_ms=known)
    model = build_model(cells, None, CLASSES, structure, "fixed", gpu_ms=T)
    names = [n for n in ("floor_ms", "q", "noise_relative", "noise_ms") if n in model.named_vars]
    values = model.replace_rvs_by_values([model[n] for n in names])
    (density,) = model.logp(vars=[model["step_ms"]], sum=False)
    compiled = model.compile_fn(
        [*values, density], inputs=model.value_vars, mode=Mode("py", None), point_fn=False, on_unused_input="ignore"
    )
    start = model.initial_point()
    for _ in range(3):
        point = [rng.normal(0.0, 0.5, np.shape(start[value.name])) for value in model.value_vars]
        *found, density_found = compiled(*point)
        said = dict(zip(names, found, strict=True))
        step = T
        if structure.sharing is not None:
            floor = said["floor_ms"]
            floor = floor[CELLS.gpu_code] if floor.ndim == 1 else floor[CELLS.gpu_code, CELLS.model_code]
            step = structure.step_ms(T, floor, said.get("q", 1.0))
        variance = variance_ms2(step, said["noise_relative"][CELLS.model_code], said["noise_ms"], known)
        np.testing.assert_allclose(density_found, log_density(y, step, variance), rtol=1e-9)


def test_what_draws_predict() -> None:
    rng = np.random.default_rng(2)
    prior = prior_density.sample_prior(rng, 7, CELLS, CLASSES, PER_MODEL, constants="fixed")
    T, known, y = rng.uniform(3.0, 8.0, 5), rng.uniform(0.05, 0.3, 5), rng.uniform(8.0, 14.0, 5)
    cells = Cells.from_columns(list(CELLS.model), list(CELLS.gpu), CELLS.batch, CELLS.context, step_sd_ms=known)
    found = step_distribution.step_distribution(prior, cells, CLASSES, PER_MODEL, gpu_ms=T)
    step = T + prior["floor_ms"].to_numpy()[0][:, CELLS.gpu_code, CELLS.model_code]
    relative = prior["noise_relative"].to_numpy()[0][:, CELLS.model_code]
    variance = variance_ms2(step, relative, prior["noise_ms"].to_numpy()[0][:, None], known)
    np.testing.assert_allclose(found.sd_ms**2, variance)
    np.testing.assert_allclose(found.log_density(y), log_density(y, step, variance))


def test_quadrature() -> None:
    rng = np.random.default_rng(3)
    layout = quadrature._Layout(
        np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]), np.array([0, 0, 1, 2, 3]), CELLS.model_code, 2, DEFAULT_PRIORS
    )
    y, T = rng.uniform(8.0, 14.0, (2, 5)), rng.uniform(3.0, 8.0, (2, 5))
    theta, step = rng.normal(-2.0, 0.5, (2, 6, 7)), y + 1.0
    told = quadrature._told(layout, theta, y, T, step)
    variance = variance_ms2(
        step[:, None], np.exp(theta[..., :2])[..., CELLS.model_code], np.exp(theta[..., 2])[..., None]
    )
    np.testing.assert_allclose(told[2], variance)
    found = quadrature._log_marginal(layout, theta, y, T, told) - layout.log_prior(theta)
    member = np.eye(4)[layout.pair_code]
    roots = member @ np.linalg.cholesky(layout.covariance(theta))
    wanted = [[evidence(y[s] - T[s], variance[s, p], roots[s, p]) for p in range(6)] for s in range(2)]
    np.testing.assert_allclose(found - np.array(wanted), (found - np.array(wanted))[0, 0], rtol=1e-8)


@pytest.mark.parametrize("structure", [PER_MODEL, FloorStructure("gpu, model", "overlapped")])
@pytest.mark.parametrize("known", [0.0, 0.2])
def test_one_pair(structure: FloorStructure, known: float) -> None:
    rng = np.random.default_rng(4)
    y, T, q = rng.uniform(8.0, 14.0, (3, 5)), rng.uniform(3.0, 8.0, (3, 5)), rng.uniform(0.1, 1.0, 3)
    floor_prior, noise_prior = (1.0, 2.0), (-3.0, 0.8)
    host = rng.uniform(0.0, 1.0, (3, 5))
    data = one_pair._Data(T, y, host, q, np.full(5, known), structure, floor_prior, noise_prior)
    x, found = one_pair._grid(data, (np.full(3, 0.5), np.full(3, 2.0)), 11)
    floor = np.exp(x) if structure.positive else x
    step = structure.step_ms(T[:, None], floor[..., None] + host[:, None], q[:, None, None])[:, :, None]
    variance = variance_ms2(step, np.exp(data.noises)[:, None, :, None], known_sd_ms=known)
    wanted = log_density(y[:, None, None], step, variance).sum(-1)
    wanted += stats.norm(*floor_prior).logpdf(x)[..., None] + stats.norm(*noise_prior).logpdf(data.noises)[:, None]
    np.testing.assert_allclose(found, wanted)


def test_explanations_of_a_family() -> None:
    from rooffloor.validate.transfer.explanations import SMOOTH, Gap, _Told

    rng = np.random.default_rng(5)
    sku = np.array([0, 0, 0, 1, 1])
    gap = Gap(
        rng.normal(1.0, 1.0, 5),
        np.ones(5),
        rng.normal(0.0, 0.3, (5, 2)),
        rng.uniform(0.05, 0.3, 5),
        rng.normal(0.0, 0.5, (5, 2)),
        rng.uniform(5.0, 12.0, 5),
        (0.04, 0.6),
        sku,
        {"whole": rng.uniform(3.0, 8.0, 5)},
        {"whole": ("whole",)},
        np.array([1.0, 4.0, 16.0, 1.0, 16.0]),
        np.array([512.0, 512.0, 2048.0, 512.0, 2048.0]),
    )
    z, wanted = np.linspace(-4.0, 6.0, 61), []
    for one, share in product(z, SMOOTH):  # a share of the leftover is smooth, so that it is common to cells
        sd = 0.04 * np.exp(0.6 * one)
        variance = variance_ms2(gap.scale_ms, sd * np.sqrt(1.0 - share), known_sd_ms=gap.known_sd_ms)
        root = np.hstack([gap.root_ms, sd * np.sqrt(share) * gap.scale_ms[:, None] * gap.smooth])
        prior = stats.norm.logpdf(one) + np.log((z[1] - z[0]) / len(SMOOTH))
        wanted.append(evidence(gap.gap_ms, variance, root) + prior)
    found, *_ = _Told.of(gap).fit(False, None, 0.05, 1.0)
    assert found == pytest.approx(logsumexp(wanted))


def test_outlook_of_a_plan() -> None:
    """The precision of a floor given cells is the curvature of their density, its mean the top of it."""
    from rooffloor.validate.transfer.plan import outlook

    rng = np.random.default_rng(6)
    gpu, sets = np.array([0, 0, 0, 1, 1]), np.array([[0, 2, 3]])
    mean, noise, nothing = rng.normal(2.0, 1.0, (4, 2)), rng.uniform(0.02, 0.1, (4, 2)), np.zeros(5)
    cells: Any = [SimpleNamespace(step_ms=step) for step in (12.0, 9.0, 8.5, np.nan, 14.0)]
    p = outlook.Prospect(
        gpus=("A", "B"),
        cells=tuple(cells),
        gpu=gpu,
        candidates=5,
        inside=np.ones(5, dtype=bool),
        gpu_ms=rng.uniform(3.0, 8.0, (4, 5)),
        least_ms=nothing,
        anchor_ms=mean,
        mean_ms=mean,
        variance=rng.uniform(0.5, 3.0, (4, 2)),
        least_floor_ms=mean - 9.0,
        floor_ms=mean,
        noise=noise,
        columns={},
        join=np.add,
    )
    variance = variance_ms2(p.step_ms, p.noise[:, gpu])
    np.testing.assert_allclose(p.noise_squared, variance)
    measured = rng.uniform(8.0, 14.0, (1, 3))
    mean, left = (found[:, 0] for found in outlook._updated(p, sets, measured))

    def density(floor: Array) -> Array:
        """[draw, gpu]: prior and cells of each floor."""
        cells = log_density(measured, (p.gpu_ms + floor[:, gpu])[:, sets[0]], variance[:, sets[0]])
        own = np.stack([cells[:, gpu[sets[0]] == g].sum(-1) for g in (0, 1)], -1)
        return own + stats.norm(p.mean_ms, np.sqrt(p.variance)).logpdf(floor)

    curvature = (density(mean + 0.01) + density(mean - 0.01) - 2.0 * density(mean)) / 0.01**2
    np.testing.assert_allclose(-1.0 / curvature, left, rtol=1e-4)
    slope = (density(mean + 0.01) - density(mean - 0.01)) / 0.02
    np.testing.assert_allclose(slope, 0.0, atol=1e-3)


def test_floor_against_slope_of_a_pair() -> None:
    from rooffloor.validate.hypotheses.h3 import _log_evidence

    rng = np.random.default_rng(7)
    residual, design = rng.normal(0.0, 0.2, (3, 5)), rng.normal(0.0, 0.4, (3, 5, 2))
    z = np.linspace(-7.0, 5.0, 161)
    variance = variance_ms2(1.0, 0.06 * np.exp(0.7 * z))  # of a residual over its step
    wanted = [
        logsumexp(
            [
                evidence(residual[d], np.full(5, v), design[d]) + stats.norm.logpdf(one) + np.log(z[1] - z[0])
                for one, v in zip(z, variance, strict=True)
            ]
        )
        for d in range(3)
    ]
    np.testing.assert_allclose(_log_evidence(residual, design), wanted, rtol=1e-7)


def test_leftovers_of_imputed_grids() -> None:
    """The latents of the leftovers, standard normal, move a step by the relative noise that its block has."""
    from rooffloor.validate.published.imputation import aggregates
    from rooffloor.validate.published.imputation.inversion import Inversion
    from rooffloor.validate.published.imputation.readings import DISCREPANCIES, FEASIBLE_READINGS, GRIDS, ROOF, Index

    rng = np.random.default_rng(8)
    for discrepancy in DISCREPANCIES:
        inversion = Inversion(Index(GRIDS[0], FEASIBLE_READINGS[0], ROOF, discrepancy), {}, ("H100",))
        t = inversion.tables
        first, cells = t.constants * t.sets, aggregates.CELLS
        q = 0.5 * rng.standard_normal(inversion.unknowns)
        state = aggregates.state_of(q, t)
        leftovers = np.arange(first + 2, first + 2 + cells)  # of the first block
        moved = []
        for latent in leftovers:
            step = np.zeros(len(q))
            step[latent] = 1e-5
            moved.append((aggregates.state_of(q + step, t).y - aggregates.state_of(q - step, t).y)[:cells] / 2e-5)
        median, sd = inversion.prior.leftover
        relative = median * np.exp(sd * q[first + 1])
        assert state.scale[0] == pytest.approx(relative)
        np.testing.assert_allclose((np.array(moved) ** 2).sum(0), variance_ms2(state.y[:cells], relative), rtol=1e-6)
