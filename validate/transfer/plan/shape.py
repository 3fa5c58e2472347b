"""What cells would tell of a relative error of T_gpu beside a free floor on each GPU."""

from dataclasses import dataclass, replace

import numpy as np

from rooffloor.validate.hypotheses.h3 import OFFSET_SD_MS, SLOPE_SD
from rooffloor.validate.transfer.explanations import FLOOR_BETWEEN_MS
from rooffloor.validate.transfer.plan.outlook import CHUNK, Array, Index, Prospect

NOISES, TRIES = 300, 20
"""Draws of the steps for the noise, where each costs a matrix; from so many times as many, of which some are
impossible."""
RANK = 1e-8
"""Share of the largest variance that T_gpu needs in a direction for it to be kept: constants are few."""


@dataclass(frozen=True, eq=False)
class Belief:
    """A quantity and the steps that tell of it, jointly normal.

    Its variance, covariances with the mean steps [cell], their covariance [cell, cell], and the noise [draw, cell], all
    but the first in ms or ms².
    """

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
            noise = self.noise_squared[:, some][..., None] * np.eye(some.shape[1])  # [draw, set, cell, cell]
            told = self.steps[some[:, :, None], some[:, None, :]] + noise
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
        kept = order[((np.arange(rows) + 0.5) / rows * len(order)).astype(int)]
        return replace(self, noise_squared=self.noise_squared[kept])


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
