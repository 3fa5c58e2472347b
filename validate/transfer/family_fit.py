"""A family beside a calibration: what its few measured cells say of floor and noise, ready to be judged.

The second stage of a cut: every draw of the calibration (constants, anchor's floors) gives T_gpu of the family's cells
from its shapes alone; given that, the family's floor and noise on each GPU come from its own cells (`one_pair`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.calibration.draws import Calibration, units
from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference.noise import variance_ms2
from rooffloor.models.inference.one_pair import FloorFit, fit_floor
from rooffloor.models.roof.kernels import Experts, decode_work, launches_of_shapes
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.classes import default_class
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.estimates.cell_draws import Draws
from rooffloor.validate.transfer.explanations import Join
from rooffloor.validate.transfer.prediction.predict import step_draws

type Array = NDArray[np.float64]

ROWS, LEAST_ROWS, VALUES = 400, 150, 120_000
"""Draws of the calibration that are used: at most, at least, and so that draws times cells stay below `VALUES`."""
MOST_PREDICTED = 4_000_000
"""Draws times cells of predicted steps, at most."""
GPU_NOISE = 0.35
"""sd of the log noise between the GPUs of a model: a pair's noise is worth four cells of its model."""
SMALLEST = 1e-3
"""Least change of a step with the floor, per ms: a cell whose GPU branch hides the floor wholly says nothing of it."""


@dataclass(frozen=True, eq=False)
class Around:
    """Steps with overlapped floors, linear around the anchor's floor and around the family's own.

    Attributes
    ----------
    anchor, own : Join
    above_ms : array [draw, cell]
        The family's floor less the anchor's, ms.
    """

    anchor: Join
    own: Join
    above_ms: Array


@dataclass(frozen=True, eq=False)
class Family:
    """One family to be judged.

    Attributes
    ----------
    model : str
        Its name in `draws`.
    shapes : ModelShapes
    gpus : mapping of name to GpuSpec
    draws : Draws
        Of its cells and the anchor's. Floors are what a floor adds to T_gpu, by cell where they overlap.
    around : Around or None
        Where floors overlap.
    known_sd_ms : array [cell of the draws]
    efficiency : mapping of GPU name to Efficiency
        Posterior means.
    experts : {"active", "distinct", "balanced"}
    unmeasured : tuple of str
        GPUs on which the anchor was never measured: its floor there is predicted.
    predicted_ms : mapping of GPU name to array [draw, cell of that GPU]
        Steps as `predict` has them, of a model that was not measured. Draws of their own, equally weighted.
    """

    model: str
    shapes: ModelShapes
    gpus: Mapping[str, GpuSpec]
    draws: Draws
    around: Around | None
    known_sd_ms: Array
    efficiency: Mapping[str, Efficiency]
    experts: Experts
    unmeasured: tuple[str, ...]
    predicted_ms: Mapping[str, Array]


def family(
    shapes: ModelShapes,
    cells: Cells,
    gpus: Mapping[str, GpuSpec],
    posterior: Calibration,
    rng: np.random.Generator,
    *,
    klass: str | None = None,
    label: str = "measured",
) -> Family:
    """Fit a family's floors and noise given a calibration.

    Parameters
    ----------
    shapes : ModelShapes
    cells : Cells
        Measured steps of this model alone, one row a cell (`step_ms`, and `step_sd_ms` where known).
    gpus : mapping of the names in `cells` to GpuSpec
    posterior : Calibration
        The calibration.
    klass : str, optional
        Class of the family; default: `classes.default_class`.
    label : str
        Where the cells come from.
    """
    assert cells.step_ms is not None
    klass = klass or default_class(shapes)
    predicted = _predicted(shapes, cells, gpus, posterior.without(shapes.name), klass)
    count = int(np.clip(VALUES // len(cells), LEAST_ROWS, ROWS))
    posterior = posterior.rows(units(posterior, count))
    model = shapes.name if shapes.name != posterior.anchor else f"{shapes.name}, as measured"
    others = posterior.without(shapes.name)
    known = np.zeros(len(cells)) if cells.step_sd_ms is None else cells.step_sd_ms
    seen = [g for g in posterior.gpus if posterior.measured(g, posterior.anchor)]
    beside = [g for g in seen if g in cells.gpus] or seen
    anchors = {g: _anchors_floor(posterior, g, rng) for g in dict.fromkeys((*beside, *cells.gpus))}
    jobs = {g: _Job.of(shapes, cells, gpus[g], g, klass, known, others, rng) for g in cells.gpus}
    if len(jobs) > 1:
        jobs = _sharing_noise(jobs, posterior, rng)
    parts = [_anchor_part(posterior, g, anchors[g], rng) for g in beside]
    launches = launches_of_shapes(shapes)
    for gpu, job in jobs.items():
        fit = job.fit(posterior, rng)
        axes = tuple(getattr(cells, name)[job.at] for name in ("batch", "context", "step_ms"))
        drawn, calibrated = (posterior.anchors_floor_at(floor, launches) for floor in anchors[gpu])
        branch, floors = (job.gpu_ms, job.host_ms), (fit.floor_ms, drawn, calibrated)
        parts.append(_part((model, gpu), axes, branch, floors, fit.noise_relative, known[job.at], posterior))
    efficiency = {gpu: job.efficiency for gpu, job in jobs.items()}
    unmeasured = tuple(g for g in cells.gpus if g not in seen)
    draws = _draws(parts, posterior, model, klass, label)
    sd = np.concatenate([part.known_sd_ms for part in parts])
    around = _around(parts, posterior) if posterior.structure.positive else None
    return Family(model, shapes, gpus, draws, around, sd, efficiency, posterior.experts, unmeasured, predicted)


@dataclass(frozen=True, eq=False)
class _Job:
    """Fit of floor and noise on one GPU: which cells, T_gpu and host time [draw, cell], and the priors (mean, sd)."""

    at: NDArray[np.int64]
    gpu_ms: Array
    host_ms: Array
    step_ms: Array
    known_sd_ms: Array
    efficiency: Efficiency
    floor_prior: tuple[float, float]
    noise_prior: tuple[float, float]

    @classmethod
    def of(
        cls,
        shapes: ModelShapes,
        cells: Cells,
        spec: GpuSpec,
        gpu: str,
        klass: str,
        known: Array,
        posterior: Calibration,
        rng: np.random.Generator,
    ) -> "_Job":
        at = np.flatnonzero(cells.gpu == gpu)
        alike = int(rng.integers(2**32))  # of a SKU never measured both are those of the same SKU in each draw
        constants = posterior.efficiency(gpu, np.random.default_rng(alike))
        host = posterior.host_ms(shapes, gpu, cells.batch[at], np.random.default_rng(alike))
        work = decode_work(shapes, cells.batch[at], cells.context[at], gpu=spec, experts=posterior.experts)
        T = np.asarray(work_ms(work, constants))
        floor_prior, noise_prior = _priors(posterior, gpu, klass, (shapes, spec), rng)
        assert cells.step_ms is not None
        about = cells.step_ms[at], known[at], posterior.typical(constants), floor_prior, noise_prior
        return cls(at, T, host, *about)

    def fit(self, posterior: Calibration, rng: np.random.Generator) -> FloorFit:
        return fit_floor(
            self.gpu_ms,
            self.step_ms,
            posterior.structure,
            rng,
            floor_prior=self.floor_prior,
            noise_prior=self.noise_prior,
            q=posterior.q,
            known_sd_ms=self.known_sd_ms,
            host_ms=self.host_ms,
        )


def _predicted(
    shapes: ModelShapes, cells: Cells, specs: Mapping[str, GpuSpec], posterior: Calibration, klass: str
) -> dict[str, Array]:
    """Steps of each GPU's cells as `predict` has them, [draw, cell], draws equally weighted."""
    count = int(np.clip(MOST_PREDICTED // len(cells), LEAST_ROWS, len(posterior.weight)))
    some = posterior if count == len(posterior.weight) else posterior.rows(units(posterior, count))
    found = {}
    for gpu in cells.gpus:
        at = cells.gpu == gpu
        steps, weight = step_draws(shapes, specs[gpu], cells.batch[at], cells.context[at], some, klass=klass)
        rows = np.searchsorted(np.cumsum(weight), weight.sum() * (np.arange(count) + 0.5) / count)
        found[gpu] = steps[rows.clip(0, len(weight) - 1)]
    return found


def _sharing_noise(jobs: Mapping[str, _Job], posterior: Calibration, rng: np.random.Generator) -> dict[str, _Job]:
    """The same with noise priors that know the family's other GPUs.

    The log noise of a GPU is that of the family give or take `GPU_NOISE`; what a first fit of each of the other GPUs
    says of theirs, beyond its prior, narrows the family's.
    """
    told = {}
    for gpu, job in jobs.items():
        logs = np.log(job.fit(posterior, rng).noise_relative)
        (mean, sd), (m, v) = job.noise_prior, (float(logs.mean()), float(logs.var()))
        precision = 1.0 / v - 1.0 / sd**2
        if precision > 0.1 / sd**2:  # else the cells say nothing beyond the prior
            told[gpu] = (m / v - mean / sd**2) / precision, 1.0 / precision
    found = {}
    for gpu, job in jobs.items():
        mean, sd = job.noise_prior
        own = max(sd**2 - GPU_NOISE**2, 1e-4)
        others = [(m, v + GPU_NOISE**2) for g, (m, v) in told.items() if g != gpu]
        precision = 1.0 / own + sum(1.0 / v for _, v in others)
        centre = (mean / own + sum(m / v for m, v in others)) / precision
        found[gpu] = replace(job, noise_prior=(centre, float(np.sqrt(1.0 / precision + GPU_NOISE**2))))
    return found


@dataclass(frozen=True, eq=False)
class _Part:
    """Cells of one model on one GPU: arrays [draw, cell], floors [draw], known_sd_ms [cell]."""

    model: str
    gpu: str
    batch: Array
    context: Array
    step_ms: Array
    gpu_ms: Array
    host_ms: Array
    own: Array
    anchor: Array
    calibrated: Array
    noise_ms: Array
    known_sd_ms: Array


def _part(
    pair: tuple[str, str],
    axes: tuple[Array, Array, Array],
    branch: tuple[Array, Array],
    floors: tuple[Array, Array, Array],
    noise: Array,
    known_sd_ms: Array,
    posterior: Calibration,
) -> _Part:
    """A part from its cells: batch, context, step; T_gpu and host time; own, anchor's and calibrated floor."""
    gpu_ms, host = branch
    batch, context, step = (np.broadcast_to(values, gpu_ms.shape) for values in axes)
    mean = posterior.step_ms(gpu_ms, floors[0], host)
    sd = np.sqrt(variance_ms2(mean, noise[:, None], known_sd_ms=known_sd_ms))
    return _Part(*pair, batch, context, step, gpu_ms, host, *floors, sd, known_sd_ms)


def _priors(
    posterior: Calibration, gpu: str, klass: str, of: tuple[ModelShapes, GpuSpec], rng: np.random.Generator
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Mean and sd of the floor (of its logarithm where H >= 0) and of the log noise of a model never measured."""
    floors = posterior.floor_of(gpu, "", klass, rng, of=of)
    values = np.log(floors) if posterior.structure.positive else floors
    logs = np.log(posterior.noise_of(gpu, "", rng))
    return (float(values.mean()), float(values.std())), (float(logs.mean()), float(logs.std()))


def _anchors_floor(posterior: Calibration, gpu: str, rng: np.random.Generator) -> tuple[Array, Array]:
    """The anchor's floor on a GPU [draw], and its mean given the constants of each draw."""
    drawn = posterior.floor_of(gpu, posterior.anchor, posterior.anchor_class, rng)
    if not posterior.measured(gpu, posterior.anchor):
        middle = np.exp(np.log(drawn).mean()) if posterior.structure.positive else drawn.mean()
        return drawn, np.full_like(drawn, middle)
    at = posterior.anchor_gpu == posterior.gpus.index(gpu)
    fit = fit_floor(
        posterior.anchor_gpu_ms[:, at],
        posterior.anchor_step_ms[:, at],
        posterior.structure,
        rng,
        floor_prior=posterior.priors.floor_level(posterior.structure.positive),
        noise_prior=posterior.priors.noise_level(),
        q=posterior.q,
        host_ms=posterior.anchor_host_ms[:, at],
    )
    return drawn, fit.mean_ms


def _anchor_part(posterior: Calibration, gpu: str, floor: tuple[Array, Array], rng: np.random.Generator) -> _Part:
    at = posterior.anchor_gpu == posterior.gpus.index(gpu)
    axes = posterior.anchor_batch[:, at], posterior.anchor_context[:, at], posterior.anchor_step_ms[:, at]
    branch = posterior.anchor_gpu_ms[:, at], posterior.anchor_host_ms[:, at]
    drawn, calibrated = floor
    noise = posterior.noise_of(gpu, posterior.anchor, rng)
    floors = drawn, drawn, calibrated
    return _part((posterior.anchor, gpu), axes, branch, floors, noise, np.zeros(int(at.sum())), posterior)


def _draws(parts: Sequence[_Part], posterior: Calibration, model: str, klass: str, label: str) -> Draws:
    """All parts side by side; floors as what they add to T_gpu."""

    def joined(name: str) -> Array:
        return np.concatenate([getattr(part, name) for part in parts], -1)

    def added(name: str) -> Array:
        steps = [posterior.step_ms(p.gpu_ms, getattr(p, name), p.host_ms) - p.gpu_ms for p in parts]
        return np.concatenate(steps, -1)

    pairs = [(part.model, part.gpu) for part in parts for _ in range(part.gpu_ms.shape[-1])]
    batch, context, step = (joined(name) for name in ("batch", "context", "step_ms"))
    cells = Cells.from_columns([m for m, _ in pairs], [g for _, g in pairs], batch[0], context[0], step[0])
    T = joined("gpu_ms")
    return Draws(
        cells,
        label,
        posterior.anchor,
        {model: klass, posterior.anchor: posterior.anchor_class},
        batch,
        context,
        step,
        T,
        {},
        np.zeros_like(T),
        added("own"),
        {},
        added("anchor"),
        joined("noise_ms"),
        posterior.unit,
        posterior.weight,
        calibrated_floor_ms=added("calibrated"),
    )


def _around(parts: Sequence[_Part], posterior: Calibration) -> Around:
    """Derivatives of the steps at the posterior means of T_gpu, floors and overlap."""
    q = float(posterior.weight @ posterior.q)
    joins: dict[str, list[Join]] = {"anchor": [], "own": []}
    for part in parts:
        T, host = posterior.weight @ part.gpu_ms, posterior.weight @ part.host_ms
        off = np.broadcast_to((part.anchor - posterior.weight @ part.anchor)[:, None], part.gpu_ms.shape)
        floors = {name: float(posterior.weight @ getattr(part, name)) for name in joins}
        for name, floor in floors.items():
            above = np.full_like(T, floor - floors["anchor"])
            joins[name].append(_join(T, floor + host, q, above, off, posterior.structure))
    above = np.concatenate(
        [np.broadcast_to((part.own - part.anchor)[:, None], part.gpu_ms.shape) for part in parts], -1
    )
    return Around(_side_by_side(joins["anchor"]), _side_by_side(joins["own"]), above)


def _join(T: Array, floor: Array, q: float, above: Array, off: Array, structure: FloorStructure) -> Join:
    step = np.asarray(structure.step_ms(T, floor, q))
    a, b = 1e-4 * T, 1e-4 * floor
    by_gpu = (structure.step_ms(T + a, floor, q) - structure.step_ms(T - a, floor, q)) / (2.0 * a)
    by_floor = (structure.step_ms(T, floor + b, q) - structure.step_ms(T, floor - b, q)) / (2.0 * b)
    return Join(T, floor, step, np.maximum(by_gpu, SMALLEST), np.maximum(by_floor, SMALLEST), above, off)


def _side_by_side(joins: Sequence[Join]) -> Join:
    return Join(**{f.name: np.concatenate([getattr(j, f.name) for j in joins], -1) for f in fields(Join)})
