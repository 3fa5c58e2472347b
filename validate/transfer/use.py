"""Does a calibration hold for use? P(a family's error under it is within a tolerance), before any question of why.

The *error for use* is the MAPE that further measurements would show under the calibration as it stands: its predicted
steps against new steps of cells that are spread over batch and context as the measured ones are. The prediction is what
`predict` tells, the posterior median of the step; how sure the calibration is of it is no error. Three things make the
answer uncertain:

- the calibration: what its draws say of this family (how far, and how alike in which cells, they lie from their mean)
  is a part of the prior of what the prediction is off by; measured cells soon outweigh it;
- noise: the cells show what the prediction is off by with noise, and a part of it will not come back;
- the cells: they are a sample of those that will be run. What varies smoothly over (log B, log L) is learned from their
  spread, what is left over is redrawn. Cells that lie in one corner of what will be run speak for that corner alone.

It does not ask how floors join, nor which constant is wrong: a verdict on use rests on predicted and measured steps
alone. Of 1,140 simulated families whose error is known (data/calibration/check.csv) one verdict contradicted it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.validate.estimates.estimate import Estimate, intervals
from rooffloor.validate.transfer.explanations import smooth_root
from rooffloor.validate.transfer.family_fit import Family
from rooffloor.validate.transfer.statements import DOES_NOT_HOLD, HOLDS, UNDECIDED

type Array = NDArray[np.float64]

TOLERANCE = 10.0
"""MAPE, percent, up to which a calibration holds for use."""
CERTAIN = 0.95
"""Probability of a verdict: undecided between 1 - this and this."""
OFF_SCALE = 0.1
"""Scale of the half-Cauchy prior of the sd of what a prediction is off by, beyond what its calibration knows."""
NOISE_SD = 0.8
"""sd of the logarithm of a new family's noise around that of the anchor."""
ERROR = "MAPE that further measurements of the family would show under the calibration"
SETS, FEWEST, VALUES = 2000, 200, 4_000_000
"""Draws of the error: at most, at least, and so that draws times cells stay below `VALUES`."""
PRIOR_CELLS = 3.0
"""So many cells is the mean of the normal model worth beside the plain mean of the measured errors, whose tails are
their own."""
_SIZES = np.geomspace(0.003, 3.0, 16)
_NOISES = np.linspace(-3.0, 4.0, 22)
"""Grid of the sd of what is off, and of the log noise, in sds of its prior."""


@dataclass(frozen=True, eq=False)
class Use:
    """Whether a calibration holds for use, on some GPUs.

    Attributes
    ----------
    tolerance : float
        MAPE, percent.
    draws : array [draw]
        MAPE that further measurements would show, percent; of several GPUs their mean.
    worst : array [draw]
        The same of the GPU where it is largest.
    measured : float
        MAPE of the cells at hand, percent; mean over GPUs.
    signed : float
        Their mean relative error, percent: above 0 where predictions are too slow.
    cells : int
    probability : float
        That the error is within the tolerance on every one of these GPUs.
    """

    tolerance: float
    draws: Array
    worst: Array
    measured: float
    signed: float
    cells: int
    probability: float

    @property
    def verdict(self) -> str:
        """One of `statements.VERDICTS`: undecided between 5 and 95 %."""
        return verdict_of(self.probability)

    @property
    def estimate(self) -> Estimate:
        """The error for use with its intervals."""
        even = np.full(len(self.draws), 1.0 / len(self.draws))
        return Estimate(float(self.draws.mean()), ERROR, "percent", intervals(self.draws, even))

    @property
    def data(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "verdict": self.verdict,
            "probability": self.probability,
            "tolerance": self.tolerance,
            "error": self.estimate.data,
            "measured_mape": self.measured,
            "signed_error": self.signed,
            "cells": self.cells,
        }


def verdict_of(probability: float, certain: float = CERTAIN) -> str:
    """The word for a probability that a calibration holds."""
    if probability >= certain:
        return HOLDS
    return DOES_NOT_HOLD if probability <= 1.0 - certain else UNDECIDED


def predicted(family: Family, gpu: str) -> Array:
    """The predicted step of each cell on a GPU, ms [cell]."""
    steps = family.predicted_ms[gpu]
    return np.asarray(np.median(steps, axis=0))


def on_gpu(family: Family, gpu: str, rng: np.random.Generator, tolerance: float = TOLERANCE) -> Use:
    """Whether the calibration holds for use on one GPU."""
    draws = family.draws
    mask, steps = draws.mask(family.model, gpu), family.predicted_ms[gpu]
    anchor = draws.cells.model == draws.anchor
    noise = np.log(draws.noise_ms[:, anchor] / np.abs(draws.mean_ms[:, anchor])).mean(-1)
    measured, told = draws.step_ms[0, mask], predicted(family, gpu)
    found = errors(
        steps,
        told,
        measured,
        (draws.cells.batch[mask], draws.cells.context[mask]),
        rng,
        noise=float(np.exp(draws.weight @ noise)),
        known_sd_ms=family.known_sd_ms[mask],
    )
    off = told / measured - 1.0
    about = 100.0 * float(np.abs(off).mean()), 100.0 * float(off.mean()), int(mask.sum())
    return Use(tolerance, found, found, *about, float((found <= tolerance).mean()))


def together(found: Sequence[Use]) -> Use:
    """The same of several GPUs: whether the error is within the tolerance on every one of them.

    The error that is told is their mean. What GPUs have in common counts once for each of them.
    """
    if len(found) == 1:
        return found[0]
    draws = np.stack([one.draws for one in found])
    measured, signed = (float(np.mean([getattr(one, name) for one in found])) for name in ("measured", "signed"))
    holds = float(np.prod([one.probability for one in found]))
    cells = sum(one.cells for one in found)
    return Use(found[0].tolerance, draws.mean(0), draws.max(0), measured, signed, cells, holds)


def errors(
    steps_ms: Array,
    predicted_ms: Array,
    measured_ms: Array,
    axes: tuple[Array, Array],
    rng: np.random.Generator,
    *,
    noise: float = DEFAULT_PRIORS.noise_relative[0],
    known_sd_ms: Array | float = 0.0,
) -> Array:
    """MAPE that further measurements of cells like these would show, percent, draws [set].

    Parameters
    ----------
    steps_ms : array [draw, cell]
        As calibrated.
    predicted_ms, measured_ms : arrays [cell]
    axes : (batch, context), arrays [cell]
    noise : float
        Median of the prior of the family's relative noise: the anchor's.
    known_sd_ms : array [cell] or float
        Standard errors of the measured steps: no error of the calibration.

    Notes
    -----
    With r = log(measured / predicted): r = s + noise, s ~ N(0, C + a² (1 1' + S)), C the covariance of the draws' log
    steps, S a smooth correlation in (log B, log L), a half-Cauchy. Given a and the noise everything is normal; these
    two are summed out on a grid. A further measurement of a cell is off by s and noise drawn anew, and E|exp(-s -
    noise) - 1| has a closed form. The tails of real errors are not normal: the draws are brought to a mean between
    their own, worth `PRIOR_CELLS` cells, and the MAPE that was measured.
    """
    r = np.log(measured_ms / predicted_ms)
    drawn = np.log(np.maximum(steps_ms, 1e-2 * predicted_ms) / predicted_ms)
    batch, context = axes
    smooth = np.concatenate([np.ones((len(r), 1)), smooth_root(np.log(batch), np.log1p(context))], -1)
    known = _root((drawn - drawn.mean(0)) / np.sqrt(len(drawn)))
    variance = (np.broadcast_to(known_sd_ms, r.shape) / measured_ms) ** 2
    posts = _Posts(r, known, smooth, variance, noise)
    sets = int(np.clip(VALUES // len(r), FEWEST, SETS))
    chosen = rng.choice(len(posts.mass), sets, p=posts.mass)
    found = np.empty(sets)
    for k in np.unique(chosen):
        at = np.flatnonzero(chosen == k)
        found[at] = _mean_error(posts.drawn(k, rng.standard_normal((posts.rank, len(at)))), posts.noise[k]).mean(0)
    shown = max(float(np.abs(predicted_ms / measured_ms - 1.0).mean()), 1e-6)
    of_errors = float(np.clip(1.0 - variance.mean() / max(float((r**2).mean()), 1e-12), 0.0, 1.0))
    cells = len(r) * of_errors  # what known noise explains of the errors is not shown by them
    return np.asarray(100.0 * found * (shown / found.mean()) ** (cells / (cells + PRIOR_CELLS)))


class _Posts:
    """Normal posteriors of what predictions are off by, over a grid of its sd and of the noise, and their mass."""

    def __init__(self, r: Array, known: Array, smooth: Array, variance: Array, noise: float) -> None:
        self.root = np.concatenate([known, smooth], -1)
        self.rank = self.root.shape[1]
        smooth_part = np.arange(self.rank) >= known.shape[1]
        even = bool((variance == variance[0]).all())
        gram, cross = (self.root.T @ self.root, self.root.T @ r) if even else (None, None)
        posts, log_mass = [], []
        for a, z in product(_SIZES, _NOISES):
            sigma = noise * np.exp(NOISE_SD * z)
            scale, total = np.where(smooth_part, a, 1.0), sigma**2 + variance
            if gram is not None and cross is not None:
                inner, projected = gram / total[0], cross / total[0]
            else:
                inner, projected = (self.root.T / total) @ self.root, (self.root.T / total) @ r
            inner = np.eye(self.rank) + scale[:, None] * inner * scale
            mean = np.linalg.solve(inner, scale * projected)
            fit = (r**2 / total).sum() - (scale * projected) @ mean
            size = np.log(total).sum() + np.linalg.slogdet(inner)[1]
            of_size = np.log(a) - np.log1p((a / OFF_SCALE) ** 2)  # half-Cauchy, on a grid that is even in log a
            log_mass.append(of_size - 0.5 * z**2 - 0.5 * (fit + size))
            posts.append((scale, inner, mean, sigma))
        self.posts, self.noise = posts, [one[-1] for one in posts]
        mass = np.exp(np.array(log_mass) - logsumexp(log_mass))
        self.mass = mass / mass.sum()

    def drawn(self, k: int, normal: Array) -> Array:
        """What predictions are off by, [cell, set], from standard normal numbers [direction, set]."""
        scale, inner, mean, _ = self.posts[k]
        return np.asarray(
            self.root @ (scale[:, None] * (mean[:, None] + np.linalg.solve(np.linalg.cholesky(inner).T, normal)))
        )


def _mean_error(off: Array, sigma: float) -> Array:
    """E|exp(-off - e) - 1|, e ~ N(0, sigma²)."""
    m = -off
    grown = np.exp(np.minimum(m + 0.5 * sigma**2, 50.0))
    return np.asarray(grown * (2.0 * ndtr((m + sigma**2) / sigma) - 1.0) - (2.0 * ndtr(m / sigma) - 1.0))


def _root(half: Array) -> Array:
    """A root [cell, direction] of half' half with as few columns as it takes, [draw, cell]."""
    _, size, axes = np.linalg.svd(half, full_matrices=False)
    keep = size > 1e-4 * max(float(size[0]), 1e-300)
    return np.asarray(axes[keep].T * size[keep])
