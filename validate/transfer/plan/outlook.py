"""What cells of a model family would tell before they are measured: of its floor, of the shape, of how the floor joins.

`prospect` says what a calibration expects of cells. From there `floor_sds` gives the posterior sd of a floor after any
set of cells, `belief` that of a relative error of T_gpu beside free floors, and `Structures` how far added and
overlapped floors are apart. `plan.plan` chooses cells by them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from rooffloor.models.calibration.draws import Calibration, units
from rooffloor.models.floor.structures import overlap_ms
from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.models.roof.kernels import Experts, decode_work
from rooffloor.models.roof.roofline import Efficiency, bytes_floor_ms, work_ms
from rooffloor.models.specs.classes import default_class
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.hypotheses.hypotheses import OFFSET_SD_MS, SLOPE_SD
from rooffloor.validate.transfer import domain
from rooffloor.validate.transfer.explanations import FLOOR_BETWEEN_MS, error_columns, scaled
from rooffloor.validate.transfer.prediction.floors import LIGHTEST, least_floor_ms, truncated

type Array = NDArray[np.float64]
type Index = NDArray[np.int64]
type Calibrated = Calibration | Efficiency | Mapping[str, Efficiency]

DRAWS, NOISES, TRIES = 400, 300, 20
"""Draws of the calibration that are used; of the steps, for the noise, where each costs a matrix, from so many times as
many of which some are impossible."""
CHUNK = 4_000_000
"""Numbers of the largest array while sets of cells are judged."""
OVERLAPS = tuple(np.linspace(0.05, 0.95, 10).tolist())
"""Overlaps q that are set against q = 1, the sum."""
SHOWN, SHOWN_MS = 200, (0.2, 60.0)
"""Points of the grid of what shows of a floor, and its ends, ms."""
SIMULATIONS = 400
"""Simulated data sets of a promise."""
RANK = 1e-8
"""Share of the largest variance that T_gpu needs in a direction for it to be kept: constants are few."""


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
        The least floor that is possible, as `predict.least_floor_ms` has it: the same whatever cells are asked for.
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
        return np.asarray((self.noise[:, self.gpu] * self.step_ms) ** 2)

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
            efficiency = calibration.efficiency(sku, rng)
            gpu_ms[:, at], lightest = work_ms(work, efficiency), work_ms(light, efficiency)[:, 0]
            floor = calibration.floor_of(sku, name, klass, rng)
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
    said = p.join(p.gpu_ms, p.mean_ms[:, p.gpu])
    tilt = (p.join(p.gpu_ms, p.mean_ms[:, p.gpu] + 1e-4) - said) / 1e-4
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
    said = p.join(p.gpu_ms, p.mean_ms[:, p.gpu])
    tilt = (p.join(p.gpu_ms, p.mean_ms[:, p.gpu] + 1e-4) - said) / 1e-4
    told = tilt**2 / p.noise_squared  # [draw, cell]
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


# ---- the shape --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Belief:
    """A quantity and the steps that tell of it, jointly normal: its variance, covariances with the mean steps [cell],
    their covariance [cell, cell], and the noise [draw, cell], all but the first in ms or ms²."""

    variance: float
    cross: Array
    steps: Array
    noise_squared: Array

    def sds(self, sets: Index) -> Array:
        """Root of the expected posterior variance after sets of cells, [set, cell] -> [set]."""
        if not sets.shape[1]:
            return np.full(len(sets), np.sqrt(self.variance))
        found = np.empty(len(sets))
        size = max(1, CHUNK // (len(self.noise_squared) * sets.shape[1] ** 2))
        for start in range(0, len(sets), size):
            some = sets[start : start + size]
            told = self.steps[some[:, :, None], some[:, None, :]] + _diagonal(self.noise_squared[:, some])
            cross = self.cross[some]
            solved = np.linalg.solve(told, np.broadcast_to(cross, told.shape[:-1])[..., None])[..., 0]
            left = self.variance - (solved * cross).sum(-1)
            found[start : start + size] = np.sqrt(left.clip(1e-12).mean(0))
        return found

    def coarse(self, rows: int) -> "Belief":
        """The same with so many rows of the noise, from the lowest to the highest."""
        if rows >= len(self.noise_squared):
            return self
        order = np.argsort(self.noise_squared.mean(-1))
        return replace(
            self, noise_squared=self.noise_squared[order[((np.arange(rows) + 0.5) / rows * len(order)).astype(int)]]
        )


def _diagonal(values: Array) -> Array:
    """[..., cell] -> [..., cell, cell]."""
    return np.asarray(values[..., None] * np.eye(values.shape[-1]))


def root(off: Array) -> Array:
    """R [cell, direction] with R R' the covariance of off [draw, cell], whose means are 0.

    T_gpu follows a few constants, so that the directions are few (`RANK`) however many cells there are.
    """
    off = off / np.sqrt(len(off))
    squares, directions = np.linalg.eigh(off @ off.T)
    return np.asarray(off.T @ directions[:, squares > max(RANK * squares[-1], 1e-18)])


@dataclass(frozen=True, eq=False)
class _Parts:
    """Steps as sums of independent normal parts: design [cell, part] (the size first), and variances [part]."""

    design: Array
    variance: Array

    @classmethod
    def of(cls, p: Prospect, column: Array) -> "_Parts":
        predicted = p.gpu_ms + p.anchor_ms[:, p.gpu]
        spread = root(predicted - predicted.mean(0))
        own = (p.gpu[:, None] == np.arange(len(p.gpus))).astype(float)
        design = np.concatenate([column[:, None], np.ones((len(column), 1)), own, spread], -1)
        variances = [SLOPE_SD**2, OFFSET_SD_MS**2, *[FLOOR_BETWEEN_MS**2] * len(p.gpus), *[1.0] * spread.shape[1]]
        return cls(design, np.array(variances))

    def given(self, cells: Index, noise_squared: Array) -> Array:
        """Covariance of the parts after some cells, [part, part]."""
        some = self.design[cells]
        root = np.sqrt(self.variance)
        told = root[:, None] * ((some.T / noise_squared) @ some) * root
        return np.asarray(root[:, None] * np.linalg.inv(np.eye(len(root)) + told) * root)


def belief(p: Prospect, error: str) -> Belief:
    """What is known of the size of one error of T_gpu beside a free floor on each GPU, and of the candidates' steps.

    Notes
    -----
    Size N(0, `SLOPE_SD`), the same on all GPUs; floor less the anchor's N(0, `OFFSET_SD_MS`), common to the GPUs, and
    N(0, `FLOOR_BETWEEN_MS`) on each; T_gpu + the anchor's floor with its covariance over the draws.
    """
    parts = _Parts.of(p, p.columns[error])
    noise_squared = _noise_squared(p, p.columns[error], parts)
    known = parts.given(p.measured, noise_squared.mean(0)[p.measured])
    design = parts.design[: p.candidates]
    cross = design @ known
    return Belief(float(known[0, 0]), cross[:, 0], cross @ design.T, noise_squared[:, : p.candidates])


def _noise_squared(p: Prospect, column: Array, parts: _Parts) -> Array:
    """Variance of a measured step where sizes and floors are as in `belief`, [draw, cell], ms²; possible steps only."""
    rng = np.random.default_rng(1)
    known = np.array([cell.step_ms for cell in p.cells])
    some = np.flatnonzero(np.isfinite(known))
    noise = p.noise[:, p.gpu[some]] * known[some]
    told = (noise**2).mean(0)
    gain = (parts.design[some] / told[:, None]) @ parts.given(some, told) @ parts.design.T  # [measured, cell]
    first, kept, found = None, list[Array](), 0
    for _ in range(TRIES):
        rows = rng.integers(0, len(p.noise), NOISES)
        floor = OFFSET_SD_MS * rng.standard_normal((len(rows), 1)) + p.anchor_ms[rows]
        floor = floor + FLOOR_BETWEEN_MS * rng.standard_normal(p.anchor_ms[rows].shape)
        mean = p.gpu_ms[rows] + floor[:, p.gpu] + SLOPE_SD * rng.standard_normal((len(rows), 1)) * column
        if len(some):  # the same draws given what was measured
            mean = (
                mean + (known[some] - mean[:, some] - noise[rows] * rng.standard_normal((len(rows), len(some)))) @ gain
            )
        steps = np.where(np.isfinite(known), known, np.maximum(mean, p.least_ms))
        sigma = p.noise[rows][:, p.gpu] * steps
        first = sigma if first is None else first
        kept.append(sigma[(mean > p.least_ms).all(-1)])
        found += len(kept[-1])
        if found >= NOISES:
            break
    told_sd = np.concatenate(kept)[:NOISES] if found else first
    return np.asarray(told_sd) ** 2


# ---- added or overlapped ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Structures:
    """Added and overlapped floors H >= 0 on the same cells; one relative noise per GPU, its median.

    What shows of the floor in the shortest cell of a GPU (step - T_gpu) is log-normal (`Priors.floor_overall`) whatever
    the structure, so that only differences between cells tell it, and not what H was thought to be. The overlap q, one
    for all GPUs, is equally likely at each of `OVERLAPS`.

    Attributes
    ----------
    gpu_ms : array [cell]; draws_ms : array [draw, cell]
        T_gpu: mean and draws.
    root : array [cell, direction]
        R with R R' its covariance, ms², among the cells of one GPU.
    noise : array [cell]
        Relative.
    gpu : int array [cell]
    shortest_ms : array [gpu]
        Least mean T_gpu.
    measured : int array
        Cells in hand, which every set has besides.
    """

    gpu_ms: Array
    draws_ms: Array
    root: Array
    noise: Array
    gpu: Index
    shortest_ms: Array
    measured: Index

    @classmethod
    def of(cls, p: Prospect) -> "Structures":
        off = p.gpu_ms - p.gpu_ms.mean(0)
        noise = np.median(p.noise, axis=0)[p.gpu]
        mean = p.gpu_ms.mean(0)
        shortest = np.array([mean[p.gpu == g].min(initial=np.inf) for g in range(len(p.gpus))])
        own = {g: root(off[:, p.gpu == g]) for g in np.unique(p.gpu).tolist()}
        roots = np.zeros((len(mean), max(one.shape[1] for one in own.values())))
        for g, one in own.items():
            roots[p.gpu == g, : one.shape[1]] = one
        return cls(mean, p.gpu_ms, roots, noise, p.gpu, shortest, p.measured)

    def hosts(self, shown: Array, q: Array) -> Array:
        """H, ms, of what shows in the shortest cell: shown [truth, gpu], q [truth, 1] -> [truth, gpu]."""
        return hidden(self.shortest_ms, shown, q)

    def distances(self, sets: Index, q: Array, shown: Array) -> Array:
        """Distance between overlapped steps and the nearest added ones, in sds, [set, truth].

        Parameters
        ----------
        sets : int array [set, cell]
        q : array [truth]
        shown : array [truth, gpu]
            step - T_gpu in the shortest cell, ms.
        """
        return np.concatenate([self.beside(list(one[:-1]), one[-1:], q, shown) for one in sets])

    def beside(self, chosen: Sequence[int], options: Index, q: Array, shown: Array) -> Array:
        """`distances` of sets of the chosen cells and one of the options each, [option, truth]."""
        hosts = self.hosts(shown, q[:, None])
        have = np.concatenate([np.asarray(chosen, dtype=np.int64), self.measured])
        squared = np.zeros((len(options), len(q)))
        for g in range(hosts.shape[1]):
            mine = self._columns(have[self.gpu[have] == g], hosts[:, g], q)
            base = mine.transpose(0, 2, 1) @ mine  # [truth, column, column]
            here = self.gpu[options] == g
            more = self._columns(options[here], hosts[:, g], q)  # [truth, option, column]
            squared += _apart(base)
            squared[here] += _apart(base[:, None] + more[..., :, None] * more[..., None, :]).T - _apart(base)
        return np.sqrt(squared.clip(0.0))

    def _columns(self, cells: Index, hosts: Array, q: Array) -> Array:
        """R, step - T_gpu and 1 in each cell over its sd, [truth, cell, column]."""
        step = overlap_ms(self.gpu_ms[cells], hosts[:, None], q[:, None])  # [truth, cell]
        columns = np.empty((*step.shape, self.root.shape[1] + 2))
        columns[..., :-2] = self.root[cells]
        columns[..., -2], columns[..., -1] = step - self.gpu_ms[cells], 1.0
        return columns / (self.noise[cells] * step)[..., None]

    def told(self, cells: Index, rng: np.random.Generator, simulations: int = SIMULATIONS) -> tuple[float, float]:
        """P(the evidence is on the true structure's side), and expected log Bayes factor of the true structure."""
        return self.simulated(rng, simulations).told(cells, rng)

    def simulated(self, rng: np.random.Generator, simulations: int = SIMULATIONS) -> "Simulated":
        """Truths, half of them added, half overlapped, and the evidences of the measured cells."""
        overlapped = np.arange(simulations) % 2 == 1
        q = np.where(overlapped, rng.choice(OVERLAPS, simulations), 1.0)
        rows = rng.integers(0, len(self.draws_ms), simulations)
        median, sd = DEFAULT_PRIORS.floor_overall
        shown = median * np.exp(sd * rng.standard_normal((simulations, len(self.shortest_ms))))
        hosts = self.hosts(shown, q[:, None])
        mean = overlap_ms(self.draws_ms[rows], hosts[:, self.gpu], q[:, None])
        some = self.measured
        steps = mean[:, some] * (1.0 + self.noise[some] * rng.standard_normal((simulations, len(some))))
        return Simulated(self, overlapped, mean, self.sums(some, steps))

    def log_evidence(self, cells: Index, steps_ms: Array) -> Array:
        """log p(steps | overlap) for q = 1 and each of `OVERLAPS`: steps [set, cell] -> [q, set].

        The floor is summed over a grid.
        """
        return _evidence(self.sums(cells, steps_ms))

    def sums(self, cells: Index, steps_ms: Array) -> list[list["_Sums"]]:
        """What steps [set, cell] tell of each overlap, q = 1 first, and GPU."""
        log_shown = np.log(np.geomspace(*SHOWN_MS, SHOWN))
        found = []
        for q in (1.0, *OVERLAPS):
            found.append(list[_Sums]())
            for g in range(len(self.shortest_ms)):
                at = self.gpu[cells] == g
                own, y = cells[at], steps_ms[:, at]
                if not len(own):
                    found[-1].append(_Sums(0, 0.0, 0.0, 0.0, 0.0))
                    continue
                T = self.gpu_ms[own]
                step = overlap_ms(T, hidden(self.shortest_ms[g], np.exp(log_shown), q)[:, None], q)  # [host, cell]
                weight = (self.noise[own] * step) ** -2.0
                tilted = ((T / step) ** (1.0 / q - 1.0))[..., None] * self.root[own]
                scaled = weight[..., None] * tilted
                off = y - step.mean(0)  # near the steps, so that squares do not cancel
                left = step - step.mean(0)
                squares = (off**2) @ weight.T - 2.0 * off @ (weight * left).T + (weight * left**2).sum(-1)
                cross = np.tensordot(off, scaled, (1, 1)) - (scaled * left[..., None]).sum(1)  # [set, host, direction]
                inner = scaled.transpose(0, 2, 1) @ tilted
                found[-1].append(_Sums(len(own), squares, cross, inner, -np.log(weight).sum(-1)))
        return found


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over the cells of a GPU, of any number, for each floor of the grid: squares [set, host] and products with
    R [set, host, direction] of what steps are off by, those of R [host, direction, direction], log variances [host]."""

    cells: int
    squares: Array | float
    cross: Array | float
    inner: Array | float
    log_size: Array | float

    def __add__(self, other: "_Sums") -> "_Sums":
        return _Sums(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def _evidence(sums: Sequence[Sequence[_Sums]]) -> Array:
    """log p(steps | overlap), [q, set], with the floor of each GPU summed over its grid; by Woodbury."""
    log_shown = np.log(np.geomspace(*SHOWN_MS, SHOWN))
    median, sd = DEFAULT_PRIORS.floor_overall
    log_prior = -0.5 * ((log_shown - np.log(median)) / sd) ** 2
    log_prior -= logsumexp(log_prior)
    total = []
    for of_q in sums:
        total.append(np.zeros(1))
        for one in of_q:
            if not one.cells:
                continue
            inner, cross = np.asarray(one.inner), np.asarray(one.cross).transpose(1, 2, 0)  # [host, direction, set]
            inner = inner + np.eye(inner.shape[-1])
            explained = (np.linalg.solve(inner, cross) * cross).sum(1)  # [host, set]
            log = -0.5 * (np.asarray(one.squares).T - explained)
            log = log - 0.5 * (one.log_size + np.linalg.slogdet(inner)[1] + one.cells * np.log(2 * np.pi))[:, None]
            total[-1] = total[-1] + logsumexp(log + log_prior[:, None], axis=0)
    return np.stack(np.broadcast_arrays(*total))


def _apart(grams: Array) -> Array:
    """Squared distance of a column (the last but one) from multiples of the last, given R (the others), in sds."""
    r = grams.shape[-1] - 2
    within, both = grams[..., :r, :r] + np.eye(r), grams[..., :r, r:]
    left = grams[..., r:, r:] - np.swapaxes(both, -1, -2) @ np.linalg.solve(within, both)
    weight = left[..., 1, 1]
    return np.asarray(left[..., 0, 0] - left[..., 0, 1] ** 2 / np.where(weight > 0, weight, 1.0))


@dataclass(frozen=True, eq=False)
class Simulated:
    """Simulated truths on all cells.

    Attributes
    ----------
    structures : Structures
    overlapped : bool array [truth]
    mean_ms : array [truth, cell]
        Steps without noise.
    known : sums of the measured cells, whose steps have noise
    """

    structures: Structures
    overlapped: NDArray[np.bool_]
    mean_ms: Array
    known: list[list[_Sums]]

    def told(self, cells: Index, rng: np.random.Generator) -> tuple[float, float]:
        """P(the evidence is on the true structure's side), and expected log Bayes factor, with these cells besides."""
        shock = rng.standard_normal((len(cells), len(self.mean_ms)))  # of the first cells alike in longer sets
        noise = self.structures.noise[cells] * shock.T
        more = self.structures.sums(cells, self.mean_ms[:, cells] * (1.0 + noise))
        evidence = _evidence(
            [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(self.known, more, strict=True)]
        )
        for_overlap = logsumexp(evidence[1:], axis=0) - np.log(len(OVERLAPS)) - evidence[0]
        factor = np.where(self.overlapped, for_overlap, -for_overlap)
        right = np.where(np.abs(factor) < 1e-9, 0.5, factor > 0)
        return float(right.mean()), float(factor.mean())


def hidden(gpu_ms: Array | float, shown: Array, q: Array | float) -> Array:
    """H with (T^(1/q) + H^(1/q))^q = T + shown, ms, broadcast."""
    step = gpu_ms + shown
    return np.asarray(step * (-np.expm1(-np.log1p(shown / gpu_ms) / q)) ** q)
