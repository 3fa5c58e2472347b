"""Size, power and coverage of the hypothesis tests: how often would a verdict be wrong? `rooffloor calibrate`.

Studies are simulated at the published study's size (an anchor and another model on K GPUs, 15 cells each) under a known
truth, and judged by the very functions that judge a study: `h1`, `h2`, `h3`, `frequentist`. Constants are
known, so that posteriors come from `inference.quadrature`, which agrees with NUTS and takes milliseconds.

A simulated step is (T_gpu + floor) (1 + leftover) (1 + noise): noise is drawn anew for every cell; leftover is what a
roofline gets wrong, a smooth function of log B and log L that every re-run would show again. Part of it is common to
all pairs, part is a pair's own.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.inference.quadrature import Quadrature, quadrature
from rooffloor.models.roof.kernels import stack_work
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.classes import default_class
from rooffloor.validate.common.runner import run
from rooffloor.validate.estimates.cell_draws import SIMULATED, Draws, with_own_noise
from rooffloor.validate.estimates.metrics import expected_error
from rooffloor.validate.hypotheses import frequentist
from rooffloor.validate.hypotheses.error_rates import BETWEEN, NUMBERS, SLOPES, SMALL_LEFTOVER, Rates, Truth
from rooffloor.validate.hypotheses.h1 import h1
from rooffloor.validate.hypotheses.h2 import h2
from rooffloor.validate.hypotheses.h3 import h3
from rooffloor.validate.hypotheses.result import NOT_TESTED, REFUTED, SUPPORTED
from rooffloor.validate.hypotheses.slope import weighted_slope
from rooffloor.validate.published.printed_figures import ANCHOR, MOE, SIBLING, SMALL
from rooffloor.validate.simulation.sbc import STUDY_GRID as GRID
from rooffloor.validate.study.margins import Margins

type Array = NDArray[np.float64]

SILICON = ("H100", "H200", "A100-40GB", "A100-80GB", "L40S")
"""Whose peak rates the simulated GPUs have, in turn."""
CONSTANTS = Efficiency(eta_bw=0.8, eta_fa=0.7, eta_tc=0.8, l_half=200.0)
COMMON = 0.5
"""Share of the leftover's variance that all pairs have in common."""
REACH = 1.0
"""Distance over which the leftover stays alike, in factors of e of batch and context."""
FLOOR_SD_MS = 3.0
DRAWS, UNITS = 300, 20
CHUNK = 50
"""Studies that are kept on disk together."""


@dataclass(frozen=True, eq=False)
class Simulated:
    """Simulated studies of one truth.

    Attributes
    ----------
    truth : Truth
    model : str
        Who is tested.
    cells : Cells
    gpu_ms : array [cell]
    step_ms, mean_ms : array [study, cell]
        With and without noise.
    difference : array [study, gpu]
        Residual MAPE of the model less the anchor's, under the floor that endless repeats would calibrate on the
        anchor; points.
    level : array [study, gpu]
        Residual MAPE of the model, percent.
    """

    truth: Truth
    model: str
    cells: Cells
    gpu_ms: Array
    step_ms: Array
    mean_ms: Array
    difference: Array
    level: Array

    def by_pair(self, values: Array, model: str) -> Array:
        """[study, cell] -> [study, gpu, grid cell] of one model."""
        return values[:, self.cells.model == model].reshape(len(values), self.truth.gpus, len(GRID))


MODEL_OF = {"H1": SIBLING, "H2": MOE, "H3": SMALL}


@cache
def _scene(model: str, gpus: int) -> tuple[Cells, Array]:
    """Cells of the anchor and a model on so many GPUs, and T_gpu [cell], ms."""
    rows = [(m, g, b, c) for m in (ANCHOR, model) for g in range(gpus) for b, c in GRID]
    models, numbers, batch, context = zip(*rows, strict=True)
    silicon = Cells.from_columns(models, [SILICON[g % len(SILICON)] for g in numbers], batch, context)
    T = work_ms(stack_work(silicon), CONSTANTS)
    return Cells.from_columns(models, [f"GPU {g + 1}" for g in numbers], batch, context), T


def simulate(truth: Truth, rng: np.random.Generator, studies: int) -> Simulated:
    """Studies in which the truth holds."""
    model, K, n = MODEL_OF[truth.test], truth.gpus, len(GRID)
    cells, T = _scene(model, K)
    shape = (studies, K, n)
    leftover = {m: truth.leftover * _leftover(rng, studies, K) for m in ("common", ANCHOR, model)}
    common, own = np.sqrt(COMMON), np.sqrt(1.0 - COMMON)
    wrong = {m: common * leftover["common"][:, :1] + own * leftover[m] for m in (ANCHOR, model)}
    floor = 2.0 + FLOOR_SD_MS * np.abs(rng.standard_normal((studies, K, 1)))
    at = {m: np.broadcast_to(T[cells.model == m].reshape(K, n), shape) for m in (ANCHOR, model)}
    mean = {ANCHOR: (at[ANCHOR] + floor) * (1.0 + wrong[ANCHOR])}
    known = _offset(mean[ANCHOR], at[ANCHOR])
    anchor_level = _level(at[ANCHOR] + known, mean[ANCHOR], truth.noise)
    if truth.test == "H1":
        target = anchor_level + truth.difference + truth.between * rng.standard_normal((studies, K))
        size, seen = np.linspace(0.0, 6.0, 121), at[model] + known
        if truth.mechanism == "leftover":
            mean[model] = _solve(lambda a: seen * (1.0 + a * wrong[model]), seen, target, size, truth.noise)
        else:
            sign, small = rng.choice([-1.0, 1.0], (studies, K, 1)), 1.0 + 0.3 * wrong[model]
            mean[model] = _solve(lambda a: (seen + sign * a) * small, seen, target, size, truth.noise)
    else:
        mean[model] = (truth.slope * at[model] + floor + truth.floor_ms) * (1.0 + wrong[model])
    level = _level(at[model] + known, mean[model], truth.noise)
    means = np.concatenate([mean[ANCHOR].reshape(studies, -1), mean[model].reshape(studies, -1)], axis=1)
    steps = means * (1.0 + truth.noise * rng.standard_normal(means.shape))
    return Simulated(truth, model, cells, T, steps, means, level - anchor_level, level)


def _leftover(rng: np.random.Generator, studies: int, gpus: int) -> Array:
    """Smooth functions of log B and log L with mean square 1, [study, gpu, grid cell]."""
    at = np.log(np.array(GRID, dtype=float))
    distance = ((at[:, None] - at) ** 2).sum(-1)
    size, axes = np.linalg.eigh(np.exp(-0.5 * distance / REACH**2))
    return np.asarray(rng.standard_normal((studies, gpus, len(GRID))) @ (axes * np.sqrt(size.clip(0.0))).T)


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


def draws_of(
    cells: Cells, gpu_ms: Array, step_ms: Array, found: Quadrature, study: int, anchor: str, label: str
) -> Draws:
    """What the judging sees of one data set's posterior by quadrature.

    Parameters
    ----------
    gpu_ms, step_ms : array [cell]
    study : int
        Which data set of `found`, fitted with floors per (GPU, model).
    """
    floors = found.floor_ms[study][:, found.pair_code]
    count = len(floors)
    of_anchor = {gpu: k for k, (gpu, model) in enumerate(found.pairs) if model == anchor}
    anchor_floor = np.full_like(floors, np.nan)
    for gpu, k in of_anchor.items():
        anchor_floor[:, cells.gpu == gpu] = found.floor_ms[study][:, [k]]
    T = np.broadcast_to(gpu_ms, floors.shape)
    relative = found.noise_relative[study][:, cells.model_code]
    noise = np.sqrt(found.noise_ms[study][:, None] ** 2 + (relative * (T + floors)) ** 2)
    return Draws(
        cells,
        label,
        anchor,
        {m: default_class(m) for m in cells.models},
        cells.batch[None],
        cells.context[None],
        step_ms[None],
        T,
        {},
        np.zeros_like(floors),
        floors,
        {},
        anchor_floor,
        noise,
        np.arange(count) * UNITS // count,
        np.full(count, 1.0 / count),
    )


def judge(made: Simulated, margins: Margins, rng: np.random.Generator) -> dict[str, Array]:
    """What every test says of every study: by name, [study]; coverage [study, gpu]."""
    found = quadrature(made.cells, made.gpu_ms, made.step_ms, rng, draws=DRAWS)
    judged = []
    for n, y in enumerate(made.step_ms):
        draws = with_own_noise(draws_of(made.cells, made.gpu_ms, y, found, n, ANCHOR, SIMULATED), rng)
        judged.append(JUDGES[made.truth.test](draws, margins, made, n))
    result = {name: np.array([one[name] for one in judged], dtype=float) for name in judged[0]}
    if made.truth.test == "H1":
        result |= _frequentist(made, margins)
    return result


def _covers(estimate: Mapping[str, Any], truth: float) -> dict[str, bool]:
    return {level: low <= truth <= high for level, (low, high) in estimate["intervals"].items()}


def _judge_h1(draws: Draws, margins: Margins, made: Simulated, study: int) -> dict[str, Any]:
    found = h1(draws, margins, both_schools=False).data["families"][0]
    rows = found["per_sku"]
    level = {
        m: np.array([_level(draws.gpu_ms[0] + draws.calibrated_ms[0], made.mean_ms[study], made.truth.noise, at)
                     for at in (draws.mask(m, g) for g in made.cells.gpus)])
        for m in (ANCHOR, made.model)
    }  # fmt: skip
    result = {
        "non-inferior": found["probability"]["value"] >= margins.probability,
        "supported": found["verdict"] == SUPPORTED,
        "refuted": found["verdict"] == REFUTED,
    }
    for share in ("50", "90"):
        for name, key, truth in (
            ("difference", "difference", level[made.model] - level[ANCHOR]),
            ("level", "level", level[made.model]),
            ("slope", "slope", _true_slope(made, study)),
        ):
            inside = [_covers(r[key], float(t))[share] for r, t in zip(rows, truth, strict=True)]
            result[f"covers {share}: {name}"] = np.mean(inside)
    return result


def _true_slope(made: Simulated, study: int) -> Array:
    """Slope of the mean steps on T_gpu, relative least squares, [gpu]."""
    T = made.gpu_ms[made.cells.model == made.model].reshape(made.truth.gpus, -1)
    y = made.by_pair(made.mean_ms, made.model)[study]
    return weighted_slope(T, y, 1.0 / y**2)[0]


def _judge_h2(draws: Draws, margins: Margins, made: Simulated, study: int) -> dict[str, Any]:
    parts = h2(draws, margins).data["parts"]
    found = {}
    for part, name in (("a", "level"), ("c", "shape")):
        verdicts = [row["verdict"] for row in parts[part]["per_sku"]]
        found[f"{name} supported"] = np.mean([v == SUPPORTED for v in verdicts])
        found[f"{name} refuted"] = np.mean([v == REFUTED for v in verdicts])
    return found


def _judge_h3(draws: Draws, margins: Margins, made: Simulated, study: int) -> dict[str, Any]:
    rows = h3(draws, margins).data["per_sku"]
    verdicts = [row["verdict"] for row in rows]
    found: dict[str, Any] = {
        f"{word} on a GPU": np.mean([v == word for v in verdicts]) for word in (SUPPORTED, REFUTED, NOT_TESTED)
    }
    gap = made.truth.floor_ms
    if made.truth.slope == 1.0 and made.truth.leftover == 0.0:  # else no floor alone is true
        for level in ("50", "90"):
            found[f"covers {level}: floor less the anchor's"] = np.mean(
                [_covers(row["floor_above_anchor"], gap)[level] for row in rows]
            )
    return found


JUDGES = {"H1": _judge_h1, "H2": _judge_h2, "H3": _judge_h3}


def _frequentist(made: Simulated, margins: Margins) -> dict[str, Array]:
    """p below the complement of the margins' probability, per frequentist test, [study]."""
    known = _offset(made.by_pair(made.step_ms, ANCHOR), made.by_pair(made.gpu_ms[None], ANCHOR))
    error = {
        m: 100.0 * np.abs((made.by_pair(made.gpu_ms[None], m) + known) / made.by_pair(made.step_ms, m) - 1.0)
        for m in (ANCHOR, made.model)
    }
    gpus = [f"GPU {g + 1}" for g in range(made.truth.gpus)]
    one_die = {gpus[0]: "die", gpus[1]: "die"}
    of = (error[made.model], error[ANCHOR], gpus, margins.h1_points)
    least = 1.0 - margins.probability
    tests = {
        "t, K-1 df": frequentist.t_per_gpu(*of).p_value,
        "t, two GPUs one die": frequentist.t_per_gpu(*of, clusters=one_die).p_value,
        "two-way clustered t": frequentist.two_way_t(*of).p_value,
        "cell-level paired t (pseudo-replicated)": frequentist.t_per_cell(*of[:2], margins.h1_points).p_value,
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
    for slope, floor in ((1.0, 5.0), (1.5, 0.0), (1.5, 5.0))
    for leftover in (0.0, SMALL_LEFTOVER)
)
SCENARIOS = (*SIZE, *POWER, *CURVE, *PLAIN, *SHAPE, *DIVERGENCE)


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
            rows.append(
                asdict(truth)
                | {
                    "studies": len(values),
                    "quantity": quantity,
                    "rate": float(values.mean()),
                    "se": float(values.std() / np.sqrt(len(values))),
                }
            )
    return Rates(pd.DataFrame(rows))
