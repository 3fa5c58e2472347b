"""The verdict on a family: on planted truths, where columns are collinear, and its algebra against brute force."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from rooffloor.models.specs import gpus as gpu_catalog
from rooffloor.models.specs import shapes as model_catalog
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.common.files import json_dumps
from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws
from rooffloor.validate.presentation.figures.check import verdicts
from rooffloor.validate.simulation.family import Planted, planted
from rooffloor.validate.simulation.hypotheses import CONSTANTS
from rooffloor.validate.study.margins import Margins
from rooffloor.validate.transfer import cause as tr
from rooffloor.validate.transfer import explanations as ex
from rooffloor.validate.transfer.family_fit import Family
from rooffloor.validate.transfer.statements import STATED

MARGINS = Margins()
MHA = "Llama-2-7B"
ONE = ("H100",)
FEW = ((1, 512), (4, 2048), (16, 8192))


def make(sets: int = 1, seed: int = 1, **truth: Any) -> list[Draws]:
    return [made.draws for made in planted(Planted(**truth), np.random.default_rng(seed), sets, draws=200)]


def family(draws: Draws) -> Family:
    """The family of the draws beside known constants."""
    names = draws.cells.gpus
    return Family(
        model=next(m for m in draws.cells.models if m != draws.anchor),
        shapes=model_catalog.load(next(m for m in draws.cells.models if m != draws.anchor)),
        gpus={g: gpu_catalog.load(g) for g in names},
        draws=draws,
        around=None,
        known_sd_ms=np.zeros(len(draws.cells)),
        efficiency=dict.fromkeys(names, CONSTANTS),
        experts="active",
        unmeasured=(),
        predicted_ms={},
    )


def judge(draws: Draws) -> tr.Cause:
    return tr.judge(family(draws), MARGINS)


def said(found: tr.Cause) -> str:
    return "\n".join(found.data["sentences"])


def gap_of(draws: Draws) -> ex.Gap:
    """What is to be explained on all GPUs of the family."""
    mine = family(draws)
    return ex.gap(mine, [draws.mask(mine.model, g) for g in draws.cells.gpus])


@pytest.fixture(scope="module")
def recalibrated() -> tr.Cause:
    return judge(make(floor_ms=3.0)[0])


# ---- planted truths ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("truth", "verdict"),
    [
        ({"whole": 1 / 0.75}, tr.MISMATCH),
        ({"whole": 1.25}, tr.MISMATCH),
        ({"floor_ms": 3.0}, tr.RECALIBRATE),
        ({"whole": 1 / 0.75, "floor_ms": 3.0}, tr.MISMATCH),
        ({"model": MHA, "whole": 1.25}, tr.MISMATCH),
        ({"model": MHA, "floor_ms": 3.0}, tr.RECALIBRATE),
    ],
)
def test_planted_truths_are_found(truth: dict[str, Any], verdict: str):
    for draws in make(2, seed=3, **truth):
        found = judge(draws)
        assert found.cause == verdict
        assert found.probabilities[verdict] >= MARGINS.probability
        named = (found.data["overall"]["mechanism"] or {}).get("name")
        assert named in ({"whole", None} if verdict == tr.MISMATCH else {None})  # never another one
        assert named == "whole" or verdict != tr.MISMATCH or len(truth) > 1  # nor kept back


def test_where_nothing_differs_no_cause_is_named():
    for truth in ({}, {"model": MHA}):
        for draws in make(3, seed=3, **truth):
            assert judge(draws).cause in (tr.NOTHING, tr.CANNOT_TELL)


def test_an_error_about_as_large_as_the_margin_is_no_reason_to_recalibrate_or_to_pass():
    for draws in make(3, seed=2, whole=1 / 0.9):
        assert judge(draws).cause in (tr.CANNOT_TELL, tr.MISMATCH)


def test_three_cells_per_gpu_mislead_nobody():
    for truth, right in (
        ({"whole": 1 / 0.75}, tr.MISMATCH),
        ({"floor_ms": 3.0}, tr.RECALIBRATE),
        ({}, tr.NOTHING),
    ):
        for draws in make(2, grid=FEW, **truth):
            assert judge(draws).cause in (right, tr.CANNOT_TELL)


@pytest.mark.parametrize(("truth", "name"), [({"kv": 1.6}, "kv"), ({"weights": 1 / 0.75}, "weights")])
def test_the_mechanism_is_named(truth: dict[str, Any], name: str):
    found = judge(make(**truth)[0])
    cause = found.data["overall"]["mechanism"]
    assert found.cause == tr.MISMATCH
    assert cause["name"] == name
    assert abs(cause["size"] - (next(iter(truth.values())) - 1)) < 3 * cause["size_sd"] + 0.02
    assert cause["label"] in said(found)


# ---- what is collinear ------------------------------------------------------------------------------------------


def test_on_one_gpu_a_weight_error_and_a_floor_cannot_be_told_apart():
    for truth in ({"weights": 1 / 0.75}, {"floor_ms": 3.0}):
        found = judge(make(gpus=ONE, seed=2, **truth)[0])
        assert found.cause == tr.INDISTINGUISHABLE
        assert found.probabilities[tr.RECALIBRATE] < MARGINS.probability
        assert "floor" in said(found)
        assert "bandwidth" in said(found)


def test_on_one_gpu_no_size_of_the_level_makes_it_a_floor():
    """A floor 10 ms larger, or weights that take three times as long: their priors alone would tell."""
    found = judge(make(gpus=("H200",), floor_ms=10.0, noise=0.005)[0])
    assert found.cause == tr.INDISTINGUISHABLE
    assert "look alike" in said(found)
    low, high = found.data["overall"]["floor_above_anchor"]["intervals"]["90"]
    assert low < 10.0 < high


def test_where_gemms_are_bound_by_compute_a_weight_error_is_not_taken_for_a_floor():
    """The weights' column is what an error of their bandwidth changes, not the time of their kernels."""
    grid = ((1, 512), (4, 2048), (16, 8192), (1024, 1024))
    for gpu in ("H100", "A100-40GB"):
        for draws in make(3, seed=3, gpus=(gpu,), grid=grid, weights=1.5):
            assert judge(draws).cause in (tr.INDISTINGUISHABLE, tr.MISMATCH, tr.CANNOT_TELL)
    shapes, gpu = model_catalog.load("Qwen2.5-7B"), gpu_catalog.load("H100")
    column = ex.error_columns(shapes, gpu, np.array([1.0, 1024.0]), np.array([512.0, 512.0]), CONSTANTS)[ex.WEIGHTS]
    assert column[1] < 0.2 * column[0]


@pytest.mark.parametrize("choice", ["distinct", "balanced"])
def test_other_streamed_experts_are_named(choice: str):
    shapes = model_catalog.load("Qwen1.5-MoE-A2.7B")
    draws = make(model=shapes.name, gpus=("H200", "H100"))[0]
    moe = draws.cells.model == shapes.name
    more = np.zeros(len(draws.cells))
    for gpu in draws.cells.gpus:
        at = moe & (draws.cells.gpu == gpu)
        axes = draws.cells.batch[at], draws.cells.context[at]
        columns = ex.error_columns(shapes, gpu_catalog.load(gpu), *axes, CONSTANTS)
        more[at] = columns[f"experts: {choice}"]
    found = judge(replace(draws, step_ms=draws.step_ms + more))
    assert found.cause == tr.MISMATCH
    assert found.data["overall"]["mechanism"]["name"] == f"experts: {choice}"


def test_a_family_that_is_only_noisier_gets_no_new_floor():
    draws = make(seed=2)[0]
    rng = np.random.default_rng(4)
    family = draws.cells.model != draws.anchor
    noisy = draws.step_ms * np.where(family, 1 + 0.08 * rng.standard_normal(len(draws.cells)), 1.0)
    grown = np.where(family, 4.0 * draws.noise_ms, draws.noise_ms)
    found = judge(replace(draws, step_ms=noisy, noise_ms=grown))
    assert found.cause == tr.CANNOT_TELL
    assert found.data["overall"]["level_off_by_floor"] < 0.5


def test_constants_that_are_uncertain_make_no_mismatch_of_what_they_allow():
    draws = make(whole=1.25)[0]
    model = draws.cells.models[1]
    factor = 1 + 0.15 * np.random.default_rng(1).standard_normal((len(draws.weight), 1))
    vague = replace(draws, gpu_ms=np.where(draws.cells.model == model, draws.gpu_ms * factor, draws.gpu_ms))
    sure, unsure = judge(draws), judge(vague)
    assert sure.cause == tr.MISMATCH
    assert unsure.cause == tr.CANNOT_TELL
    assert unsure.probabilities[tr.MISMATCH] < 0.9


def test_of_three_gpus_one_with_a_weight_error_stays_indistinguishable():
    found = judge(make(weights=1 / 0.75, on=("A100-40GB",))[0])
    verdicts = {row["gpu"]: row["cause"] for row in found.per_sku}
    assert verdicts["A100-40GB"] == tr.INDISTINGUISHABLE
    assert verdicts["H100"] != tr.INDISTINGUISHABLE
    assert found.cause == tr.INDISTINGUISHABLE


def test_on_one_gpu_equal_priors_on_the_shift_give_equal_weights():
    draws = make(gpus=ONE, weights=1 / 0.75)[0]
    gap = gap_of(draws)
    level = ex.OFFSET_SD_MS / ex.SLOPE_SD  # a weights' time at which both have one prior on the shift
    gap = replace(gap, columns=gap.columns | {ex.WEIGHTS: np.full(len(gap.sku), level)})
    weight = {(e.floor, e.error): e.weight for e in ex.explanations(gap, 0.12)}
    errors = len(gap.columns)
    assert weight[ex.OWN, None] / errors == pytest.approx(weight[ex.ANCHORS, ex.WEIGHTS])


def test_errors_with_one_column_are_one_explanation_and_said_so():
    draws = make(gpus=ONE)[0]
    found, gap = judge(draws), gap_of(draws)
    assert gap.names["kv"] == ("kv", "query_heads")  # every KV head serves seven: all reads grow alike
    assert gap.names["l_half"] == ("l_half", "missing_batch_kernel")
    assert any("cannot tell" in s and "query heads" in s for s in found.data["sentences"])


def test_one_cell_leaves_the_slope_unknown():
    draws = make(grid=FEW)[0]
    one_cell = (draws.cells.model == draws.anchor) | (draws.cells.batch == 4)
    found = judge(draws.where(one_cell))
    assert found.data["overall"]["slope"] is None
    assert found.cause == tr.CANNOT_TELL
    assert found.data["overall"]["open"].startswith("slope")


# ---- algebra ----------------------------------------------------------------------------------------------------


def brute(gap: ex.Gap, own: bool, error: str | None, rope: float) -> tuple[float, float, float]:
    """Log evidence, mean of the size and P(size beyond the margin) with dense covariances, one by one."""
    K = gap.members.shape[1]
    nodes = np.tan(0.5 * np.pi * (np.arange(ex.NODES) + 0.5) / ex.NODES)
    z = np.linspace(-4.0, 6.0, 61)
    smooth = [np.outer(gap.scale_ms, gap.scale_ms) * (s * gap.smooth @ gap.smooth.T) for s in ex.SMOOTH]
    log, means, beyond = [], [], []
    for t_floor in nodes if own else [0.0]:
        for t_size in nodes if error else [0.0]:
            of_size = ex.SLOPE_SD**2 + (ex.BETWEEN_SIZE * rope * t_size) ** 2 * np.eye(K)
            signal = gap.root_ms @ gap.root_ms.T + np.diag(gap.known_sd_ms**2)
            if own:
                of_floor = ex.OFFSET_SD_MS**2 + (ex.FLOOR_BETWEEN_MS * t_floor) ** 2 * np.eye(K)
                signal += gap.members @ of_floor @ gap.members.T
            if error:
                X = gap.members * gap.columns[error][:, None]
                signal += X @ of_size @ X.T
            for (share, common), zi in product(zip(ex.SMOOTH, smooth, strict=True), z):
                sigma = gap.noise[0] * np.exp(gap.noise[1] * zi)
                noise = (1.0 - share) * np.diag((sigma * gap.scale_ms) ** 2) + sigma**2 * common
                log.append(norm.logpdf(zi) + multivariate_normal.logpdf(gap.gap_ms, cov=signal + noise))
                if error:
                    gain = (X @ of_size.mean(1)) @ np.linalg.inv(signal + noise)
                    mean, sd = gain @ gap.gap_ms, np.sqrt(of_size.mean() - gain @ X @ of_size.mean(1))
                    means.append(mean)
                    beyond.append(norm.sf(rope, mean, sd) + norm.cdf(-rope, mean, sd))
    points = len(ex.SMOOTH) * (ex.NODES if own else 1) * (ex.NODES if error else 1)
    log = np.array(log) + np.log(z[1] - z[0]) - np.log(points)
    total = logsumexp(log)
    weight = np.exp(log - total)
    return float(total), float(weight @ means) if error else 0.0, float(weight @ beyond) if error else 0.0


def test_evidence_and_sizes_agree_with_dense_covariances(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ex, "NODES", 2)
    draws = make(whole=1.1, floor_ms=0.5, gpus=("H100", "A100-40GB"), grid=FEW)[0]
    gap = gap_of(draws)
    found = ex.explanations(gap, 0.12)
    assert sum(e.weight for e in found) == pytest.approx(1.0)
    log_prior = {None: np.log(0.25)} | dict.fromkeys(gap.columns, np.log(0.25 / len(gap.columns)))
    expected = [brute(gap, e.floor == ex.OWN, e.error, 0.12) for e in found]
    joint = np.array([x[0] + log_prior[e.error] for x, e in zip(expected, found, strict=True)])
    assert [e.weight for e in found] == pytest.approx(np.exp(joint - logsumexp(joint)), rel=1e-4, abs=1e-12)
    assert [e.size for e in found] == pytest.approx([x[1] for x in expected], rel=1e-5)
    assert [e.beyond for e in found] == pytest.approx([x[2] for x in expected], rel=1e-4, abs=1e-12)


def test_pooled_slope_of_one_gpu_is_its_slope_and_of_several_wider_than_without_spread():
    draws = make(whole=1.2)[0]
    model = draws.cells.models[1]
    masks = [draws.mask(model, g) for g in draws.cells.gpus]
    mean, sd = tr.slope(draws, masks[0])
    one = tr.pooled_slope(draws, masks[:1], MARGINS)
    assert one["slope"]["value"] == pytest.approx(mean.mean(), abs=0.01)
    low, high = one["slope"]["intervals"]["90"]
    assert high - low == pytest.approx(2 * 1.645 * sd.mean(), rel=0.1)
    inside = norm.cdf((1.12 - mean) / sd) - norm.cdf((0.88 - mean) / sd)
    assert one["slope_in_rope"] == pytest.approx(inside.mean(), abs=0.02)
    several = tr.pooled_slope(draws, masks, MARGINS)
    low, high = several["slope"]["intervals"]["90"]
    means, sds = np.array([tr.slope(draws, m) for m in masks]).mean(-1).T
    assert several["slope"]["value"] == pytest.approx(np.average(means, weights=1 / sds**2), abs=0.05)
    assert high - low > 2 * 1.645 / np.sqrt((1 / sds**2).sum())


# ---- the object ---------------------------------------------------------------------------------------------------


def test_verdict_names_itself_and_its_numbers_are_json(recalibrated: tr.Cause):
    assert repr(recalibrated).startswith("Cause(Qwen2.5-7B: recalibrate the floor; H100: ")
    assert set(recalibrated.probabilities) == set(STATED)
    assert all(0 <= p <= 1 for p in recalibrated.probabilities.values())
    assert json_dumps(recalibrated.data)
    low, high = recalibrated.data["overall"]["floor_above_anchor"]["intervals"]["90"]
    assert low < 3.0 < high
    assert "recalibrate: floor +" in said(recalibrated)
    assert recalibrated.cause == tr.RECALIBRATE


def test_plot_shows_a_bar_per_verdict_and_gpu(recalibrated: tr.Cause):
    axes = verdicts(recalibrated.data | {"verdict": "does not hold"})
    assert len(axes.patches) == 4 * (len(STATED) - 1)
    axes.figure.canvas.draw()


def test_a_family_that_cannot_be_judged_is_refused():
    draws = make()[0]
    for name in ("Mistral-7B-v0.3", draws.anchor):
        with pytest.raises(InputError, match=r"families in the data: Qwen2\.5-7B"):
            tr.judge(replace(family(draws), model=name), MARGINS)
    with pytest.raises(InputError, match="imputed"):
        judge(replace(draws, label=IMPUTED))
