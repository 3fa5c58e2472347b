"""What a calibration expects of cells of a family before they are measured, and what they would tell of its floor.

`prospect` says what to expect. From there `floor_sds` gives the posterior sd of a floor after any set of cells,
`shape.belief` that of a relative error of T_gpu beside free floors, and `joining.Structures` how far added and
overlapped floors are apart. `plan.plan` chooses cells by them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from rooffloor.models.calibration.draws import LIGHTEST, Calibration, units
from rooffloor.models.inference.noise import variance_ms2
from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.models.roof.kernels import Experts, decode_work
from rooffloor.models.roof.roofline import Efficiency, bytes_floor_ms, work_ms
from rooffloor.models.specs.classes import default_class
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.hypotheses.h3 import OFFSET_SD_MS
from rooffloor.validate.transfer import domain
from rooffloor.validate.transfer.explanations import error_columns, scaled
from rooffloor.validate.transfer.prediction.floors import least_floor_ms, truncated

type Array = NDArray[np.float64]
type Index = NDArray[np.int64]
type Calibrated = Calibration | Efficiency | Mapping[str, Efficiency]

FLOOR, SHAPE, OVERLAP = "floor", "shape", "overlap"
"""What cells may be measured for."""
HALF = float(ndtri(0.95))
"""Half a 90 % interval in sds."""
DRAWS = 400
"""Draws of the calibration that are used."""
CHUNK = 4_000_000
"""Numbers of the largest array while sets of cells are judged."""


@dataclass(frozen=True)
class Cell:
    """A cell of the family, measured (`step_ms` where it is known, else NaN) or to be measured."""

    gpu: str
    batch: float
    context: float
    step_ms: float = float("nan")

    def __str__(self) -> str:
        return f"{self.gpu} at batch {self.batch:g}, context {self.context:g}"


# ---- what is known before ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Prospect:
    """Cells of one family and what a calibration says of them.

    Attributes
    ----------
    gpus : tuple of str
    cells : tuple of Cell
        Candidates, then measured ones.
    gpu : int array [cell]
    candidates : int
    inside : bool array [cell]
    gpu_ms : array [draw, cell]
        T_gpu.
    least_ms : array [cell]
        Physical minimum of a step.
    anchor_ms : array [draw, gpu]
        The anchor's floor.
    mean_ms, variance : arrays [draw, gpu]
        The family's floor given that draw of the constants: mean, ms, and variance, ms².
    least_floor_ms : array [draw, gpu]
        The least floor that is possible, as `floors.least_floor_ms` has it: the same whatever cells are asked for.
    floor_ms : array [draw, gpu]
        One draw of the floor for each draw of the constants; none takes a step below its physical minimum.
    noise : array [draw, gpu]
        Relative sd of a step.
    columns : mapping of error to array [cell]
        Change of T_gpu per unit of its size, ms; as `explanations.scaled`.
    join : callable (T [draw, cell], floor [draw, cell]) -> step
    """

    gpus: tuple[str, ...]
    cells: tuple[Cell, ...]
    gpu: Index
    candidates: int
    inside: NDArray[np.bool_]
    gpu_ms: Array
    least_ms: Array
    anchor_ms: Array
    mean_ms: Array
    variance: Array
    least_floor_ms: Array
    floor_ms: Array
    noise: Array
    columns: Mapping[str, Array]
    join: Callable[[Array, Array], Array]

    @property
    def measured(self) -> Index:
        """Numbers of the measured cells."""
        return np.arange(self.candidates, len(self.cells))

    @cached_property
    def step_ms(self) -> Array:
        """Steps to expect, [draw, cell]; as measured where they were."""
        said = np.maximum(self.join(self.gpu_ms, self.floor_ms[:, self.gpu]), self.least_ms)
        known = np.array([cell.step_ms for cell in self.cells])
        return np.where(np.isfinite(known), known, said)

    @cached_property
    def noise_squared(self) -> Array:
        """Variance of a measured step, [draw, cell], ms²."""
        return np.asarray(variance_ms2(self.step_ms, self.noise[:, self.gpu]))

    @cached_property
    def linear(self) -> tuple[Array, Array]:
        """Steps under the mean floors, [draw, cell], ms, and their change per ms of floor."""
        said = self.join(self.gpu_ms, self.mean_ms[:, self.gpu])
        return said, (self.join(self.gpu_ms, self.mean_ms[:, self.gpu] + 1e-4) - said) / 1e-4

    def given(self, rng: np.random.Generator) -> "Prospect":
        """Floors given the measured cells, draw by draw of the constants."""
        some = self.measured
        if not len(some):
            return self
        steps = np.array([self.cells[i].step_ms for i in some])
        mean, variance = _updated(self, some[None], np.where(np.isfinite(steps), steps, self.step_ms.mean(0)[some]))
        return replace(self, mean_ms=mean[:, 0], variance=variance[:, 0]).drawn(rng)

    def drawn(self, rng: np.random.Generator) -> "Prospect":
        """The same with draws of the floors from their normals, truncated where a step would be impossible."""
        sd = np.sqrt(self.variance)
        error = truncated(rng.standard_normal(sd.shape), (self.least_floor_ms - self.mean_ms) / sd)
        return replace(self, floor_ms=np.maximum(self.mean_ms + sd * error, self.least_floor_ms))


def prospect(
    shapes: ModelShapes,
    specs: Sequence[GpuSpec],
    candidates: Sequence[Cell],
    measured: Sequence[Cell],
    calibration: Calibrated,
    rng: np.random.Generator,
    *,
    noise: float | None = None,
) -> Prospect:
    """What a calibration says of cells of a family.

    Parameters
    ----------
    specs : sequence of GpuSpec
        Of all GPUs in the cells.
    calibration : Calibration, or Efficiency (one for all GPUs, or by name)
        Constants without draws are known exactly; the family's floor is then N(0, `OFFSET_SD_MS`), the anchor's is 0.
    noise : float, optional
        Relative sd of a step; default: the calibration's, or 5 % without draws.
    """
    cells = (*candidates, *measured)
    names = tuple(spec.name for spec in specs)
    gpu = np.array([names.index(cell.gpu) for cell in cells], dtype=np.int64)
    batch, context = (np.array([getattr(cell, axis) for cell in cells], dtype=float) for axis in ("batch", "context"))
    if isinstance(calibration, Calibration):
        count = min(DRAWS, len(calibration.weight))
        calibration = calibration.rows(units(calibration, count))
        experts: Experts = calibration.experts
        structure, q = calibration.structure, calibration.q[:, None]
        join: Callable[[Array, Array], Array] = partial(structure.step_ms, q=q)
        seen, skus = calibration.domain, [domain.known_gpu(spec, calibration)[0] for spec in specs]
        inside = (batch >= seen.batch[0]) & (batch <= seen.batch[1])
        inside &= (context >= seen.context[0]) & (context <= seen.context[1])
        inside &= np.isin(np.array(skus)[gpu], calibration.gpus)
    else:
        count, experts, join, inside = DRAWS, "active", np.add, np.ones(len(cells), dtype=bool)
    gpu_ms, least = np.empty((count, len(cells))), np.empty(len(cells))
    anchor, mean, variance, noises, lowest = (np.zeros((count, len(names))) for _ in range(5))
    positive = isinstance(calibration, Calibration) and calibration.structure.positive
    columns: dict[str, Array] = {}
    for g, spec in enumerate(specs):
        at = gpu == g
        work = decode_work(shapes, batch[at], context[at], gpu=spec, experts=experts)
        least[at] = bytes_floor_ms(shapes, spec, batch[at], context[at])
        light = decode_work(shapes, *LIGHTEST, gpu=spec, experts=experts)
        if isinstance(calibration, Calibration):
            sku, name = skus[g], domain.known_model(shapes, calibration)[0]
            klass = dict(zip(calibration.models, calibration.classes, strict=True)).get(name) or default_class(shapes)
            alike = int(rng.integers(2**32))  # of a SKU never measured both are those of the same SKU in each draw
            efficiency = calibration.efficiency(sku, np.random.default_rng(alike))
            # Host time of cells goes with T_gpu: exact where floors are added.
            host = calibration.host_ms(shapes, sku, batch[at], np.random.default_rng(alike))
            gpu_ms[:, at], lightest = work_ms(work, efficiency) + host, work_ms(light, efficiency)[:, 0]
            floor = calibration.floor_of(sku, name, klass, rng, of=(shapes, spec))
            anchor[:, g] = calibration.floor_of(sku, calibration.anchor, calibration.anchor_class, rng)
            noises[:, g] = calibration.noise_of(sku, name, rng)
            typical = calibration.typical(efficiency)
            mean[:, g], variance[:, g] = _regressed(floor, gpu_ms[:, at].mean(-1))
        else:
            typical = calibration[spec.name] if isinstance(calibration, Mapping) else calibration
            gpu_ms[:, at], lightest = work_ms(work, typical), np.full(count, work_ms(light, typical))
            variance[:, g], noises[:, g] = OFFSET_SD_MS**2, DEFAULT_PRIORS.noise_relative[0]
        lowest[:, g] = least_floor_ms(float(bytes_floor_ms(shapes, spec, *LIGHTEST)), lightest, positive)
        for name, values in error_columns(shapes, spec, batch[at], context[at], typical, experts).items():
            columns.setdefault(name, np.zeros(len(cells)))[at] = values
    if noise is not None:
        noises = np.full_like(noises, noise)
    found = Prospect(
        gpus=names,
        cells=cells,
        gpu=gpu,
        candidates=len(candidates),
        inside=inside,
        gpu_ms=gpu_ms,
        least_ms=least,
        anchor_ms=anchor,
        mean_ms=mean,
        variance=variance,
        least_floor_ms=lowest,
        floor_ms=mean,
        noise=noises,
        columns=scaled(columns, gpu_ms.mean(0), np.unique(gpu, return_inverse=True)[1]),
        join=join,
    )
    return found.drawn(rng).given(rng)


def _regressed(floor: Array, level: Array) -> tuple[Array, float]:
    """Floor given the constants: its regression on the level of T_gpu, and the variance left.

    A measured pair's floor falls where the constants raise T_gpu; that of another pair hardly depends on them.
    """
    apart = level - level.mean()
    spread = float(apart @ apart)
    slope = float(apart @ floor) / spread if spread > 1e-12 * float(level @ level) else 0.0
    mean = floor.mean() + slope * apart
    return mean, max(float(((floor - mean) ** 2).mean()), 1e-12)


# ---- the floor --------------------------------------------------------------------------------------------------


def _updated(p: Prospect, sets: Index, steps: Array | None = None) -> tuple[Array, Array]:
    """Mean, ms, and variance, ms², of the floors given sets of cells, for each draw of the constants: [draw, set, gpu].

    Parameters
    ----------
    sets : int array [set, cell]
    steps : array [set or 1, cell], optional
        What is measured there; default: what is expected.

    Notes
    -----
    Normal prior and noise, known variances: precisions add. Where floors are not just added, linearised at the draw.
    """
    said, tilt = p.linear
    weight = (tilt / p.noise_squared)[:, sets]  # [draw, set, cell]
    expected = said.mean(0)[sets] if steps is None else steps
    off = expected - said[:, sets]
    here = (p.gpu[sets][..., None] == np.arange(len(p.gpus))).astype(float)  # [set, cell, gpu]

    def summed(values: Array) -> Array:
        return np.stack([(values * here[..., g]).sum(-1) for g in range(len(p.gpus))], -1)

    precision = 1.0 / p.variance[:, None] + summed(weight * tilt[:, sets])
    return p.mean_ms[:, None] + summed(weight * off) / precision, 1.0 / precision


def floor_sds(p: Prospect, sets: Index) -> tuple[Array, Array]:
    """Root of the expected posterior variance of each floor, ms, [set, gpu]: given the constants, and in all."""
    known, whole = [], []
    size = max(1, CHUNK // (len(p.noise) * max(sets.shape[1], len(p.gpus))))
    for start in range(0, len(sets), size):
        mean, variance = _updated(p, sets[start : start + size])
        known.append(np.sqrt(variance.mean(0)))
        whole.append(np.sqrt(variance.mean(0) + mean.var(0)))
    return np.concatenate(known), np.concatenate(whole)


def floor_given(p: Prospect, sets: Index) -> Array:
    """The first of `floor_sds` alone, [set, gpu]: precisions of cells add, whatever else is in the set."""
    told = p.linear[1] ** 2 / p.noise_squared  # [draw, cell]
    found = np.empty((len(sets), len(p.gpus)))
    size = max(1, CHUNK // len(told))
    for start in range(0, len(sets), size):
        some = sets[start : start + size]
        counts = np.zeros((len(some), len(p.cells)))
        np.add.at(counts, (np.arange(len(some))[:, None], some), 1.0)
        for g in range(len(p.gpus)):
            here = p.gpu == g
            precision = 1.0 / p.variance[:, g] + counts[:, here] @ told[:, here].T  # [set, draw]
            found[start : start + size, g] = np.sqrt((1.0 / precision).mean(-1))
    return found
