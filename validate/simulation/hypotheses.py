"""Size, power and coverage of the hypothesis tests: how often would a verdict be wrong? `rooffloor calibrate`.

Studies are simulated at the published study's size (an anchor and another model on K GPUs, 15 cells each) under a known
truth, and judged by the very functions that judge a study: `h1`, `h2`, `h3`, `frequentist`. Constants are drawn anew
for each study and known from its anchor's cells alone, as in the cut that a report judges by: their posterior comes
from `simulation.constants`, floors and noise given it from `inference.quadrature`, which agrees with NUTS and takes
milliseconds.

A simulated step is join(T_gpu, floor) (1 + leftover) (1 + noise): noise is drawn anew for every cell; leftover is what
a roofline gets wrong, a smooth function of log B and log L that every re-run would show again. Part of it is common to
all pairs, part is a pair's own.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooffloor.models.floor.structures import overlap_ms
from rooffloor.models.inference.noise import variance_ms2
from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.models.inference.quadrature import Quadrature, quadrature_of_draws
from rooffloor.models.roof.kernels import Work, stack_work
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.classes import default_class
from rooffloor.validate.common.runner import run
from rooffloor.validate.estimates.cell_draws import SIMULATED, Draws, with_own_noise
from rooffloor.validate.estimates.floors_given import floor_covariance, floor_means, offset_step_ms, told_by_cells
from rooffloor.validate.estimates.metrics import expected_error
from rooffloor.validate.fitting.parts import parts_of
from rooffloor.validate.hypotheses import frequentist
from rooffloor.validate.hypotheses.error_rates import (
    BETWEEN,
    NUMBERS,
    OVERLAPS,
    SLOPES,
    SMALL_LEFTOVER,
    Rates,
    Truth,
)
from rooffloor.validate.hypotheses.h1 import h1
from rooffloor.validate.hypotheses.h2 import h2
from rooffloor.validate.hypotheses.h3 import h3
from rooffloor.validate.hypotheses.result import NOT_TESTED, REFUTED, SUPPORTED
from rooffloor.validate.hypotheses.slope import weighted_slope
from rooffloor.validate.published.printed_figures import ANCHOR, BATCHES, CONTEXTS, MOE, SIBLING, SMALL
from rooffloor.validate.simulation.constants import NAMES, Constants, anchor_constants
from rooffloor.validate.study.margins import Margins

type Array = NDArray[np.float64]

GRID = tuple((b, c) for b in BATCHES for c in CONTEXTS)
SILICON = ("H100", "H200", "A100-40GB", "A100-80GB", "L40S")
"""Whose peak rates the simulated GPUs have, in turn."""
CONSTANTS = Efficiency(eta_bw=0.8, eta_fa=0.7, eta_tc=0.8, l_half=200.0)
TRUE_CONSTANTS = {"eta_bw": (0.7, 0.9), "eta_fa": (0.55, 0.85), "l_half": (0.0, 500.0)}
"""Between what constants of simulated studies lie, evenly."""
JOINED = {"added": 1.0, "half overlapped": 0.5, "the longer of the two": 0.0}
"""q by the name that a truth has for it."""
HIDING = (0.8, 1.25)
"""Floors of truths that overlap, as shares of the anchor's shortest T_gpu: else they would hide, or hide nothing."""
ANCHOR_GPUS = 3
"""On so many GPUs is the anchor measured, wherever the other model is."""
COMMON = 0.5
"""Share of the leftover's variance that all pairs have in common."""
REACH = 1.0
"""Distance over which the leftover stays alike, in factors of e of batch and context."""
FLOOR_SD_MS = 3.0
DRAWS, UNITS, POINTS = 300, 20, 1024
CHUNK = 50
"""Studies that are kept on disk together."""


@dataclass(frozen=True, eq=False)
class Simulated:
    """Simulated studies of one truth: arrays gpu_ms (at the true constants), step_ms and mean_ms (without noise).

    All are [study, cell]. `model` is who is tested; `work` that of the cells; `level` [study, gpu] its residual MAPE,
    percent, and `difference` that less the anchor's, points, under the true constants and the floor that endless
    repeats would calibrate on the anchor.
    """

    truth: Truth
    model: str
    cells: Cells
    work: Work
    gpu_ms: Array
    step_ms: Array
    mean_ms: Array
    difference: Array
    level: Array

    def by_pair(self, values: Array, model: str) -> Array:
        """[study, cell] -> [study, gpu, grid cell] of one model."""
        return values[:, self.cells.model == model].reshape(len(values), -1, len(GRID))


def cells_of(pairs: Iterable[tuple[str, str]], grid: Sequence[tuple[int, int]] = GRID) -> Cells:
    """Cells of (model, GPU) pairs on one grid."""
    return Cells.from_columns(*zip(*((m, g, b, c) for m, g in pairs for b, c in grid), strict=True))


MODEL_OF = {"H1": SIBLING, "H2": MOE, "H3": SMALL}


@cache
def _scene(model: str, gpus: int) -> tuple[Cells, Work]:
    """Cells of a model on so many GPUs and of the anchor on these, at least on `ANCHOR_GPUS`, and their work."""
    pairs = [(m, g) for m, count in ((ANCHOR, max(gpus, ANCHOR_GPUS)), (model, gpus)) for g in range(count)]
    work = stack_work(cells_of((m, SILICON[g % len(SILICON)]) for m, g in pairs))
    return cells_of((m, f"GPU {g + 1}") for m, g in pairs), work


def _constants(rng: np.random.Generator, studies: int) -> Efficiency:
    """True constants of each study, as they broadcast against cells, (study, 1)."""
    drawn: dict[str, Any] = {n: rng.uniform(low, high, (studies, 1)) for n, (low, high) in TRUE_CONSTANTS.items()}
    return Efficiency(eta_tc=CONSTANTS.eta_tc, **drawn)


def simulate(truth: Truth, rng: np.random.Generator, studies: int) -> Simulated:
    """Studies in which the truth holds."""
    model, K, n = MODEL_OF[truth.test], truth.gpus, len(GRID)
    cells, work = _scene(model, K)
    T, q = work_ms(work, _constants(rng, studies)), JOINED[truth.join]
    on = {ANCHOR: max(K, ANCHOR_GPUS), model: K}
    leftover = {m: truth.leftover * smooth_leftover(rng, studies, count) for m, count in (("common", 1), *on.items())}
    common, own = np.sqrt(COMMON), np.sqrt(1.0 - COMMON)
    wrong = {m: common * leftover["common"] + own * leftover[m] for m in (ANCHOR, model)}
    floor = 2.0 + FLOOR_SD_MS * np.abs(rng.standard_normal((studies, on[ANCHOR], 1)))
    at = {m: T[:, cells.model == m].reshape(studies, count, n) for m, count in on.items()}
    if q < 1.0:
        floor = rng.uniform(*HIDING, floor.shape) * at[ANCHOR].min(-1, keepdims=True)
    mean = {ANCHOR: _joined(at[ANCHOR], floor, q) * (1.0 + wrong[ANCHOR])}
    known = _offset(mean[ANCHOR], at[ANCHOR])
    anchor_level = _level(at[ANCHOR] + known, mean[ANCHOR], truth.noise)[:, :K]
    known, floor = known[:, :K], floor[:, :K]
    if truth.test == "H1" and q == 1.0:
        target = anchor_level + truth.difference + truth.between * rng.standard_normal((studies, K))
        size, seen = np.linspace(0.0, 6.0, 121), at[model] + known
        if truth.mechanism == "leftover":
            mean[model] = _solve(lambda a: seen * (1.0 + a * wrong[model]), seen, target, size, truth.noise)
        else:
            sign, small = rng.choice([-1.0, 1.0], (studies, K, 1)), 1.0 + 0.3 * wrong[model]
            mean[model] = _solve(lambda a: (seen + sign * a) * small, seen, target, size, truth.noise)
    else:
        mean[model] = _joined(truth.slope * at[model], floor + truth.floor_ms, q) * (1.0 + wrong[model])
    level = _level(at[model] + known, mean[model], truth.noise)
    means = np.concatenate([mean[ANCHOR].reshape(studies, -1), mean[model].reshape(studies, -1)], axis=1)
    steps = means * (1.0 + truth.noise * rng.standard_normal(means.shape))
    return Simulated(truth, model, cells, work, T, steps, means, level - anchor_level, level)


def smooth_leftover(rng: np.random.Generator, studies: int, gpus: int) -> Array:
    """Smooth functions of log B and log L with mean square 1, [study, gpu, grid cell]."""
    at = np.log(np.array(GRID, dtype=float))
    distance = ((at[:, None] - at) ** 2).sum(-1)
    size, axes = np.linalg.eigh(np.exp(-0.5 * distance / REACH**2))
    return np.asarray(rng.standard_normal((studies, gpus, len(GRID))) @ (axes * np.sqrt(size.clip(0.0))).T)


def _joined(gpu_ms: Array, floor_ms: Array, q: float) -> Array:
    """Steps of T_gpu and floors under a join, ms; added floors may be signed."""
    return np.asarray(gpu_ms + floor_ms if q == 1.0 else overlap_ms(gpu_ms, floor_ms, q))


def _offset(step_ms: Array, gpu_ms: Array) -> Array:
    """The floor that the model calibrates on a pair, [..., 1], ms: least squares relative to its own step.

    Relative to the measured step, low readings would weigh more and pull the floor down.
    """
    floor = np.median(step_ms - gpu_ms, axis=-1, keepdims=True)
    for _ in range(5):
        weight = 1.0 / (gpu_ms + floor) ** 2
        floor = (weight * (step_ms - gpu_ms)).sum(-1, keepdims=True) / weight.sum(-1, keepdims=True)
    return np.asarray(floor)


def _level(predicted: Array, mean_ms: Array, noise: float, at: Any = slice(None)) -> Array:
    """Expected MAPE of the cells `at` the last axis, percent."""
    error = expected_error(predicted[..., at], mean_ms[..., at], noise * mean_ms[..., at])
    return np.asarray(100.0 * error.mean(-1))


def _solve(mean_of: Callable[[Any], Array], predicted: Array, target: Array, sizes: Array, noise: float) -> Array:
    """Mean steps [study, gpu, cell] at the size at which the level reaches `target` [study, gpu], or comes nearest."""
    levels = np.stack([_level(predicted, mean_of(a), noise) for a in sizes], -1)
    start = levels.argmin(-1)
    above = (levels >= target[..., None]) & (np.arange(len(sizes)) > start[..., None])
    first = np.where(above.any(-1), above.argmax(-1), np.where(levels.min(-1) > target, start, len(sizes) - 1))
    low = np.maximum(first - 1, 0)
    low_level, high_level = (np.take_along_axis(levels, k[..., None], -1)[..., 0] for k in (low, first))
    gap = np.where(high_level > low_level, high_level - low_level, 1.0)
    share = np.where(above.any(-1), ((target - low_level) / gap).clip(0.0, 1.0), 1.0)
    size = sizes[low] + share * (sizes[first] - sizes[low])
    return mean_of(size[..., None])


# ---- judged -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Found:
    """Posteriors of simulated studies: T_gpu [study, draw, cell], the constants behind it, floors and noise."""

    constants: Constants
    gpu_ms: Array
    floors: Quadrature


def _posterior(made: Simulated, rng: np.random.Generator) -> _Found:
    """Constants from the anchor's cells alone; floors and noise of all cells given them."""
    is_anchor = made.cells.model == ANCHOR
    code = made.cells.gpu_code[is_anchor]
    constants = anchor_constants(made.work.where(is_anchor), code, made.step_ms[:, is_anchor], rng, draws=DRAWS)
    T = work_ms(made.work, constants.efficiency(CONSTANTS.eta_tc))
    return _Found(constants, T, quadrature_of_draws(made.cells, T, made.step_ms, rng, points=POINTS))


def draws_of(cells: Cells, work: Work, efficiency: Efficiency, step_ms: Array, of: Quadrature, study: int) -> Draws:
    """What the judging sees of the posterior of one study.

    Parameters
    ----------
    work : Work
        Of the cells.
    efficiency : Efficiency
        Constants: numbers, or draws (draw, 1).
    step_ms : array [cell]
    of : Quadrature
        Floors and noise of several studies given these constants, this one's at `study`.
    """
    T = np.broadcast_to(work_ms(work, efficiency), (of.floor_ms.shape[1], len(cells)))
    pairs = np.array([(cells.gpus.index(g), cells.models.index(m)) for g, m in of.pairs]).T
    anchor = cells.models.index(ANCHOR)
    theirs = np.array([np.flatnonzero((pairs[0] == g) & (pairs[1] == anchor))[0] for g in cells.gpu_code])
    floors = of.floor_ms[study]
    relative, absolute = of.noise_relative[study][:, cells.model_code], of.noise_ms[study][:, None]
    step = offset_step_ms(T, step_ms, of.pair_code, len(of.pairs))
    told = told_by_cells(step_ms - T, variance_ms2(step, relative, absolute), of.pair_code, len(of.pairs))
    level, overall = DEFAULT_PRIORS.floor_level(positive=False)
    sd_gpu, sd_model, sd_pair = of.floor_sds_ms[study].T
    means = floor_means(*told, floor_covariance(pairs[0], pairs[1], overall, (sd_gpu, sd_model, sd_pair)), level)
    own, count = floors[:, of.pair_code], len(floors)
    parts, dispatch = parts_of(work, efficiency, T)
    return Draws(
        cells,
        SIMULATED,
        ANCHOR,
        {m: default_class(m) for m in cells.models},
        cells.batch[None],
        cells.context[None],
        step_ms[None],
        T,
        parts,
        dispatch,
        own,
        {},
        floors[:, theirs],
        np.sqrt(variance_ms2(T + own, relative, absolute)),
        np.arange(count) * UNITS // count,
        np.full(count, 1.0 / count),
        calibrated_floor_ms=means[:, theirs],
        own_calibrated_floor_ms=means[:, of.pair_code],
    )


def _of_study(made: Simulated, found: _Found, study: int) -> Draws:
    values = found.constants.values[study]
    constants: dict[str, Any] = {name: values[:, [k]] for k, name in enumerate(NAMES)}
    efficiency = Efficiency(eta_tc=CONSTANTS.eta_tc, **constants)
    return draws_of(made.cells, made.work, efficiency, made.step_ms[study], found.floors, study)


def judge(made: Simulated, margins: Margins, rng: np.random.Generator) -> dict[str, Array]:
    """What every test says of every study: by name, [study]; coverage [study, gpu]."""
    found = _posterior(made, rng)
    judged = []
    for n in range(len(made.step_ms)):
        draws = with_own_noise(_of_study(made, found, n), rng)
        judged.append(JUDGES[made.truth.test](draws, margins, made, n))
    result = {name: np.array([one[name] for one in judged], dtype=float) for name in judged[0]}
    return result | (_frequentist(made, margins, found) if made.truth.test == "H1" else {})


def _covers(rows: Sequence[Mapping[str, Any]], truths: Mapping[str, tuple[str, ArrayLike]]) -> dict[str, Any]:
    """Share of the rows whose intervals of an estimate hold the truth, by level and name."""
    found = {}
    for level in ("50", "90"):
        for name, (key, truth) in truths.items():
            low, high = np.array([row[key]["intervals"][level] for row in rows]).T
            found[f"covers {level}: {name}"] = np.mean((low <= truth) & (truth <= high))
    return found


def _shares(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, Any]:
    """Share of the rows with a verdict, under another name."""
    return {name: np.mean([row["verdict"] == verdict for row in rows]) for name, verdict in names.items()}


def _judge_h1(draws: Draws, margins: Margins, made: Simulated, study: int) -> dict[str, Any]:
    found = h1(draws, margins, both_schools=False).data["families"][0]
    # What right constants would predict, with the floor that these cells calibrate given them.
    mean, T, anchors = made.mean_ms[study], made.gpu_ms[study], draws.cells.model == ANCHOR
    floor = _offset(*(v[anchors].reshape(-1, len(GRID)) for v in (made.step_ms[study], T)))[:, 0]
    predicted = T + floor[draws.cells.gpu_code]
    level, anchor = (
        np.array([_level(predicted, mean, made.truth.noise, draws.mask(m, g)) for g in draws.cells.gpus])
        for m in (made.model, ANCHOR)
    )
    truths = {"difference": level - anchor, "level": level, "slope": _true_slope(made, study)}
    truths = truths if made.truth.join == "added" else {}
    return {
        "non-inferior": found["probability"]["value"] >= margins.probability,
        "supported": found["verdict"] == SUPPORTED,
        "refuted": found["verdict"] == REFUTED,
        **_covers(found["per_sku"], {name: (name, truth) for name, truth in truths.items()}),
    }


def _true_slope(made: Simulated, study: int) -> Array:
    """Slope of the mean steps on T_gpu, relative least squares, [gpu]."""
    y = made.by_pair(made.mean_ms, made.model)[study]
    return weighted_slope(made.by_pair(made.gpu_ms, made.model)[study], y, 1.0 / y**2)[0]


def _judge_h2(draws: Draws, margins: Margins, made: Simulated, study: int) -> dict[str, Any]:
    parts = h2(draws, margins).data["parts"]
    level = _shares(parts["a"]["per_sku"], {"level supported": SUPPORTED, "level refuted": REFUTED})
    return level | _shares(parts["c"]["per_sku"], {"shape supported": SUPPORTED, "shape refuted": REFUTED})


def _judge_h3(draws: Draws, margins: Margins, made: Simulated, study: int) -> dict[str, Any]:
    result = h3(draws, margins)
    rows = result.data["per_sku"]
    found = {word: result.verdict == word for word in (SUPPORTED, REFUTED, NOT_TESTED)}
    found |= _shares(rows, {f"{word} on a GPU": word for word in (SUPPORTED, REFUTED, NOT_TESTED)})
    if made.truth.slope == 1.0 and made.truth.leftover == 0.0 and made.truth.join == "added":  # else no floor is true
        found |= _covers(rows, {"floor less the anchor's": ("floor_above_anchor", made.truth.floor_ms)})
    return found


JUDGES = {"H1": _judge_h1, "H2": _judge_h2, "H3": _judge_h3}


def _frequentist(made: Simulated, margins: Margins, found: _Found) -> dict[str, Array]:
    """p below the complement of the margins' probability, per frequentist test, [study]; predictions are means."""
    T = made.by_pair(found.gpu_ms.mean(1), ANCHOR)
    known = _offset(made.by_pair(made.step_ms, ANCHOR), T)
    error = {
        m: 100.0 * np.abs((made.by_pair(found.gpu_ms.mean(1), m) + known) / made.by_pair(made.step_ms, m) - 1.0)
        for m in (ANCHOR, made.model)
    }
    one_die = dict.fromkeys(made.cells.gpus[:2], "die")
    of = (error[made.model] - error[ANCHOR], made.cells.gpus, margins.h1_points)
    least = 1.0 - margins.probability
    tests = {
        "t, K-1 df": frequentist.t_per_gpu(*of).p_value,
        "t, two GPUs one die": frequentist.t_per_gpu(*of, clusters=one_die).p_value,
        "two-way clustered t": frequentist.two_way_t(*of).p_value,
        "cell-level paired t (pseudo-replicated)": frequentist.t_per_cell(of[0], margins.h1_points).p_value,
    }
    return {name: (p < least).astype(float) for name, p in tests.items()}


# ---- the committed result ---------------------------------------------------------------------------------------

SIZE = tuple(
    Truth(difference=2.0, between=between, mechanism=mechanism)
    for mechanism in ("leftover", "floor")
    for between in BETWEEN
)
POWER = tuple(Truth(gpus=gpus, between=between) for gpus in NUMBERS for between in BETWEEN)
CURVE = tuple(Truth(difference=difference, between=1.0) for difference in (-2.0, 1.0, 3.0, 4.0, 6.0))
PLAIN = tuple(Truth(difference=difference, between=1.0, leftover=0.0, mechanism="floor") for difference in (0.0, 2.0))
SHAPE = tuple(
    Truth("H2", gpus=1, slope=slope, floor_ms=16.0, leftover=leftover)
    for slope in SLOPES
    for leftover in (0.0, SMALL_LEFTOVER)
)
DIVERGENCE = tuple(
    Truth("H3", slope=slope, floor_ms=floor, leftover=leftover)
    for slope, floor in ((1.0, 2.5), (1.0, 5.0), (1.5, 0.0), (1.5, 5.0))
    for leftover in (0.0, SMALL_LEFTOVER)
)
OVERLAPPED = tuple(Truth(test, leftover=0.0, join=join) for test in ("H1", "H3") for join in OVERLAPS)
CLEAN = tuple(Truth(between=between, leftover=SMALL_LEFTOVER) for between in BETWEEN)
SCENARIOS = (*SIZE, *POWER, *CLEAN, *CURVE, *PLAIN, *SHAPE, *DIVERGENCE, *OVERLAPPED)


@dataclass(frozen=True)
class _Chunk:
    truth: Truth
    margins: Margins
    seed: int
    first: int
    studies: int


def _run(chunk: _Chunk) -> dict[str, Any]:
    rng = np.random.default_rng([chunk.seed, chunk.first, zlib.crc32(repr(chunk.truth).encode())])
    found = judge(simulate(chunk.truth, rng, chunk.studies), chunk.margins, rng)
    return {"names": np.array(list(found)), "values": np.stack(list(found.values()))}


def calibrate(
    truths: Sequence[Truth] = SCENARIOS,
    *,
    studies: int = 1000,
    seed: int = 1,
    margins: Margins | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    folder: Path | None = None,
    progress: bool = False,
) -> Rates:
    """Simulate studies from every truth, judge each, and count.

    Parameters
    ----------
    studies : int
        Per scenario at the margin of H1; half as many in the others.
    jobs, dask, folder, progress
        See `runner.run`.
    """
    import pandas as pd

    margins = margins or Margins()
    chunks = [
        _Chunk(truth, margins, seed, first, min(CHUNK, count - first))
        for truth in truths
        for count in (studies if truth in SIZE else -(-studies // 2),)
        for first in range(0, count, CHUNK)
    ]
    keys = [f"power {chunk!r} {DRAWS}" for chunk in chunks]
    found = run(_run, chunks, keys=keys, jobs=jobs, dask=dask, folder=folder, progress=progress, desc="studies")
    rows = []
    for truth in truths:
        mine = [result for chunk, result in zip(chunks, found, strict=True) if chunk.truth == truth]
        rates = np.concatenate([result["values"] for result in mine], axis=1)
        for quantity, values in zip(mine[0]["names"].tolist(), rates, strict=True):
            se = float(values.std() / np.sqrt(len(values)))
            counted = {"studies": len(values), "quantity": quantity, "rate": float(values.mean()), "se": se}
            rows.append(asdict(truth) | counted)
    return Rates(pd.DataFrame(rows))
