"""The floor and the noise of one model on one SKU given T_gpu: a grid instead of a sampler, added or overlapped.

Each draw of T_gpu (each draw of a calibration's constants) gets one draw of the floor and of the relative noise from
their posterior: the second stage of a cut. Measured steps are Normal(step, (noise step)² + known²).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from rooffloor.models.floor.structures import COMBINE, FloorStructure
from rooffloor.models.inference.noise import variance_ms2

type Array = NDArray[np.float64]

COARSE, FINE, NOISES = 81, 121, 33
"""Points of the first and second grid of the floor, and of the grid of the noise."""
OVERLAPS = 10
"""Points of the overlap q where it is free."""
REACH = 1e-7
"""Posterior mass left outside the second grid, on each side."""
LEAST = 0.02
"""Steps are taken to be at least this share of the measured one: a negative floor cannot take them through 0."""


@dataclass(frozen=True, eq=False)
class FloorFit:
    """Draws of a floor.

    Attributes
    ----------
    floor_ms, noise_relative : array [draw]
    mean_ms : array [draw]
        Posterior mean of the floor given T_gpu of that draw.
    log_evidence : array [draw]
        Log density of the measured steps given T_gpu (and q) of that draw.
    """

    floor_ms: Array
    noise_relative: Array
    mean_ms: Array
    log_evidence: Array

    def __repr__(self) -> str:
        return f"FloorFit({len(self.floor_ms)} draws, floor {self.floor_ms.mean():.2f} ms)"


def fit_floor(
    gpu_ms: Array,
    measured_ms: ArrayLike,
    structure: FloorStructure,
    rng: np.random.Generator,
    *,
    floor_prior: tuple[float, float],
    noise_prior: tuple[float, float],
    q: ArrayLike = 1.0,
    known_sd_ms: ArrayLike = 0.0,
    host_ms: ArrayLike = 0.0,
) -> FloorFit:
    """One draw of floor and noise for each draw of T_gpu.

    Parameters
    ----------
    gpu_ms : array [draw, cell], ms
    measured_ms : array_like [cell] or [draw, cell], ms
    structure : FloorStructure
        How the floor joins: signed and added, or H >= 0 and overlapped.
    floor_prior : (mean, sd) of a Normal
        ms where floors are signed; of the logarithm where H >= 0.
    noise_prior : (mean, sd) of a Normal
        Of the logarithm of the relative noise.
    q : array_like [draw]
        The overlap; used where H >= 0.
    known_sd_ms : array_like [cell]
        Known measurement uncertainty beside the noise.
    host_ms : array_like [draw, cell], ms
        What a cell's floor has beside the one that is sought (`structures.TERMS`).

    Returns
    -------
    FloorFit
    """
    count, cells = gpu_ms.shape
    host = np.broadcast_to(np.asarray(host_ms, dtype=float), gpu_ms.shape)
    if not structure.positive:  # added: the two are one
        gpu_ms, host = gpu_ms + host, np.zeros_like(gpu_ms)
    y = np.broadcast_to(np.asarray(measured_ms, dtype=float), gpu_ms.shape)
    known = np.broadcast_to(np.asarray(known_sd_ms, dtype=float), (cells,))
    overlap = np.broadcast_to(np.asarray(q, dtype=float), (count,))
    rows = np.concatenate([gpu_ms, y, host, overlap[:, None]], -1)
    distinct, code = np.unique(rows, axis=0, return_inverse=True)
    code = code.reshape(-1)
    floor, noise, mean, evidence = (np.empty(count) for _ in range(4))
    size = max(1, int(4e6 // (FINE * max(cells, NOISES))))
    for start in range(0, len(distinct), size):
        some = distinct[start : start + size]
        T, steps, beside = (some[:, k * cells : (k + 1) * cells] for k in range(3))
        data = _Data(T, steps, beside, some[:, -1], known, structure, floor_prior, noise_prior)
        wide, log = _grid(data, _first(data), COARSE)
        x, log = _grid(data, _ends(wide, log), FINE)
        mine = np.flatnonzero((code >= start) & (code < start + size))
        row = code[mine] - start
        top = log.max((1, 2))
        mass = np.exp(log - top[:, None, None])
        by_floor, total = mass.sum(-1), mass.sum((1, 2))
        values = np.exp(x) if structure.positive else x
        mean[mine] = ((values * by_floor).sum(-1) / total)[row]
        area = (x[:, 1] - x[:, 0]) * (data.noises[:, 1] - data.noises[:, 0])
        evidence[mine] = (np.log(total * area) + top)[row]
        floor[mine], noise[mine] = _drawn(x, data.noises, mass, row, rng)
    return FloorFit(np.exp(floor) if structure.positive else floor, np.exp(noise), mean, evidence)


@dataclass(frozen=True, eq=False)
class FloorsFit:
    """Draws of floors of several SKUs: floor_ms and noise_relative [draw, gpu], q and log_evidence [draw]."""

    floor_ms: Array
    noise_relative: Array
    q: Array
    log_evidence: Array


def fit_floors(
    gpu_code: NDArray[np.int64],
    gpu_ms: Array,
    measured_ms: Array,
    structure: FloorStructure,
    rng: np.random.Generator,
    *,
    floor_prior: tuple[float, float],
    noise_prior: tuple[float, float],
    known_sd_ms: ArrayLike = 0.0,
    host_ms: ArrayLike = 0.0,
) -> FloorsFit:
    """Floors and noise of one model on several SKUs, and the overlap that they share where it is free.

    Parameters
    ----------
    gpu_code : int array [cell]
        From 0, each with at least one cell.
    gpu_ms, measured_ms : arrays [draw, cell], ms
    host_ms : array_like [draw, cell], ms

    Others as in `fit_floor`; floors of SKUs are independent.

    Returns
    -------
    FloorsFit
        Its q, where free, is uniform on (0, 1) before the cells are seen, on `OVERLAPS` points: no misfit above 1.
    """
    fixed = COMBINE[structure.combine].q
    known = np.broadcast_to(np.asarray(known_sd_ms, dtype=float), gpu_code.shape)
    host = np.broadcast_to(np.asarray(host_ms, dtype=float), gpu_ms.shape)
    points = (np.arange(OVERLAPS) + 0.5) / OVERLAPS if fixed is None else np.array([fixed])
    found = []
    for q in points:
        fits = [
            fit_floor(
                gpu_ms[:, at],
                measured_ms[:, at],
                structure,
                rng,
                floor_prior=floor_prior,
                noise_prior=noise_prior,
                q=q,
                known_sd_ms=known[at],
                host_ms=host[:, at],
            )
            for at in (gpu_code == g for g in range(gpu_code.max() + 1))
        ]
        found.append(fits)
    evidence = np.stack([np.stack([fit.log_evidence for fit in fits]).sum(0) for fits in found])
    chosen = (evidence + rng.gumbel(size=evidence.shape)).argmax(0)
    rows = np.arange(len(gpu_ms))
    floor = np.stack([np.stack([f.floor_ms for f in fits], -1) for fits in found])[chosen, rows]
    noise = np.stack([np.stack([f.noise_relative for f in fits], -1) for fits in found])[chosen, rows]
    return FloorsFit(floor, noise, points[chosen], logsumexp(evidence, axis=0) - np.log(len(points)))


@dataclass(frozen=True, eq=False)
class _Data:
    """Distinct draws of T_gpu: T, y and the host's time [row, cell], q [row], and the priors."""

    T: Array
    y: Array
    host: Array
    q: Array
    known: Array
    structure: FloorStructure
    floor_prior: tuple[float, float]
    noise_prior: tuple[float, float]

    @cached_property
    def rms(self) -> Array:
        """Root mean square of the relative residuals around the mean offset [row]."""
        offset = (self.y - self.T).mean(-1, keepdims=True)
        return np.sqrt((((self.y - self.T - offset) / self.y) ** 2).mean(-1)) + 1e-6

    @cached_property
    def noises(self) -> Array:
        """Grid of the log noise [row, point]."""
        mean, sd = self.noise_prior
        low, high = mean - 3.5 * sd, np.maximum(mean + 3.5 * sd, np.log(self.rms) + 1.0)
        return low + (high - low)[:, None] * np.linspace(0.0, 1.0, NOISES)


def _first(data: _Data) -> tuple[Array, Array]:
    """Ends of the first grid of the floor (or of its logarithm) [row]."""
    if data.structure.positive:
        middle, spread = data.floor_prior
        return (
            np.minimum(np.log(1e-3 * data.y.min(-1)), middle - 4.0 * spread),
            np.maximum(np.log(1.5 * data.y.max(-1)), middle + 4.0 * spread),
        )
    weight = 1.0 / data.y**2
    centre = (weight * (data.y - data.T)).sum(-1) / weight.sum(-1)
    widest = np.exp(data.noises[:, -8])
    sd: Array = np.sqrt((widest**2 + (data.known**2 / data.y**2).mean(-1)) / weight.sum(-1))
    reach = 6.0 * np.minimum(sd, np.abs(centre - data.floor_prior[0]) + 6.0 * data.floor_prior[1])
    return centre - reach, centre + reach


def _grid(data: _Data, ends: tuple[Array, Array], points: int) -> tuple[Array, Array]:
    """Grid of the floor [row, point] and log posterior [row, point, noise]."""
    low, high = ends
    x = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, points)
    floor = np.exp(x) if data.structure.positive else x
    step = data.structure.step_ms(data.T[:, None], floor[..., None] + data.host[:, None], data.q[:, None, None])
    step = np.maximum(step, LEAST * data.y[:, None])
    residual = data.y[:, None] - step
    noises, cells = data.noises, data.y.shape[-1]
    if not data.known.any():
        squares, logs = ((residual / step) ** 2).sum(-1), np.log(step).sum(-1)
        log = -0.5 * squares[..., None] * np.exp(-2.0 * noises[:, None]) - cells * noises[:, None] - logs[..., None]
    else:
        log = np.empty((*x.shape, NOISES))
        for k in range(NOISES):
            variance = variance_ms2(step, np.exp(noises[:, k])[:, None, None], known_sd_ms=data.known)
            log[..., k] = -0.5 * (residual**2 / variance + np.log(variance)).sum(-1)
    log = log - 0.5 * cells * np.log(2.0 * np.pi)
    log = log + _log_normal(x, data.floor_prior)[..., None] + _log_normal(noises, data.noise_prior)[:, None]
    return x, log


def _log_normal(values: Array, prior: tuple[float, float]) -> Array:
    mean, sd = prior
    return np.asarray(-0.5 * ((values - mean) / sd) ** 2 - np.log(sd * np.sqrt(2.0 * np.pi)))


def _ends(x: Array, log: Array) -> tuple[Array, Array]:
    """Where almost all posterior mass of a first grid lies, a point further on either side [row]."""
    marginal = logsumexp(log, axis=-1)
    mass = np.cumsum(np.exp(marginal - logsumexp(marginal, axis=-1, keepdims=True)), -1)
    first = (mass < REACH).sum(-1) - 1
    last = (mass < 1.0 - REACH).sum(-1) + 1
    rows, step = np.arange(len(x)), x[:, 1] - x[:, 0]
    top = x.shape[-1] - 1
    return x[rows, first.clip(0, top)] - step * (first < 0), x[rows, last.clip(0, top)] + step * (last > top)


def _drawn(
    x: Array, noises: Array, mass: Array, row: NDArray[np.int64], rng: np.random.Generator
) -> tuple[Array, Array]:
    """A draw from the grid [row, point, noise] of each `row`, spread evenly within the steps of the grid."""
    summed = np.cumsum(mass.reshape(len(mass), -1), -1)
    wanted = rng.uniform(0.0, 1.0, len(row)) * summed[row, -1]
    at = np.array([np.searchsorted(summed[r], w) for r, w in zip(row, wanted, strict=True)], dtype=np.int64)
    i, j = np.divmod(at.clip(0, summed.shape[-1] - 1), mass.shape[-1])
    spread = rng.uniform(-0.5, 0.5, (2, len(row)))
    floor = x[row, i] + spread[0] * (x[row, 1] - x[row, 0])
    return floor, noises[row, j] + spread[1] * (noises[row, 1] - noises[row, 0])
