"""Marginal likelihood of the published figures of some GPUs: how much of the prior returns them all.

The prior mass of q whose figures all lie in their rounding intervals is far too small to count prior draws. Between
the prior and the figures stands a ladder of levels: at first every figure is only known with a wide normal error;
the errors narrow level by level to the rounding, then turn from normal to uniform (`aggregates.claim_of`). The ratio
of two levels is the mean importance weight of the draws of the wider one, the next rung is where these weights keep
half their effective number, and `manifold.sample` moves resampled draws on (a sequential Monte Carlo sampler [1]_).
Normal errors rather than nested boxes: the weights of a box are 0 or 1 and need many more draws.

Draws that have not forgotten where the level above left them lose the modes that matter below: the estimate is then
too low more often than too high, and repeats differ. Judge an effort by the standard error and by a larger effort.

The prior is the one of the inversion, restricted to possible grids (`prior_draws`): a structure is not charged for
prior mass on impossible steps. The mass itself is kept in `Marginal`.

.. [1] P. Del Moral, A. Doucet and A. Jasra (2006), Sequential Monte Carlo samplers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfinv, logsumexp

from rooffloor.validate.published.imputation import aggregates
from rooffloor.validate.published.imputation.inversion import Inversion
from rooffloor.validate.published.imputation.manifold import sample
from rooffloor.validate.published.imputation.prior_draws import prior_draws

type Array = NDArray[np.float64]


@dataclass(frozen=True)
class Effort:
    """How hard the ladder works.

    Attributes
    ----------
    prior : int
        Prior draws of the first level.
    first : float
        Effective number of them that the first level keeps.
    chains, draws : int
        Chains per level, and draws kept of each at each of the `STRIDES`.
    thin : int
        Transitions per draw.
    share : float
        Share of a level's draws that stays effective on the next.
    levels : int
        Most levels; figures not reached by then count as out of reach.
    repeats : int
        Independent ladders; their spread gives the standard error.
    """

    prior: int = 40_000
    first: float = 400.0
    chains: int = 64
    draws: int = 10
    thin: int = 5
    share: float = 0.5
    levels: int = 200
    repeats: int = 3


@dataclass(frozen=True)
class Rung:
    """One level: intervals wider by `width`; `blur` 1 normal, 0 uniform."""

    width: float
    blur: float


LAST = Rung(1.0, 0.0)
PILOT = 100
"""Transitions from which the first level learns its step size; their draws are not used."""
TARGET_ACCEPT = 0.25
STRIDES = (3.0, 1.0, 0.3)
"""Step sizes in turn, relative to the learned one: chains between kinks need shorter ones than others."""


@dataclass(frozen=True)
class Marginal:
    """Marginal likelihood of all conditioned figures of an inversion.

    Attributes
    ----------
    log_ml : float
        Log probability that all figures lie in their intervals, given that all steps are possible; -inf where they
        stayed out of reach.
    se : float
        Standard error of `log_ml` from independent repeats.
    log_possible : float
        Log prior probability that all steps are possible: add it to have the joint probability.
    levels : float
        Mean number of levels.
    width : float
        Largest width, in roundings, at which a repeat ended: 1 where all arrived.
    """

    log_ml: float
    se: float
    log_possible: float
    levels: float
    width: float


def marginal(inversion: Inversion, *, seed: Sequence[int], effort: Effort | None = None) -> Marginal:
    """Marginal likelihood of the figures that `inversion` conditions on."""
    effort = effort or Effort()
    runs = [ladder(inversion, child, effort)[0] for child in np.random.SeedSequence(seed).spawn(effort.repeats)]
    values = np.array([r.log_ml for r in runs])
    spread = values.std(ddof=1) / np.sqrt(len(runs)) if len(runs) > 1 and np.isfinite(values).all() else np.nan
    return Marginal(
        _log_mean(values),
        float(spread),
        _log_mean(np.array([r.log_possible for r in runs])),
        float(np.mean([r.levels for r in runs])),
        max(r.width for r in runs),
    )


def _log_mean(log: Array) -> float:
    return float(logsumexp(log) - np.log(len(log)))


def ladder(inversion: Inversion, seed: np.random.SeedSequence, effort: Effort) -> tuple[Marginal, Array]:
    """One ladder from the prior to the figures, without a standard error.

    Returns
    -------
    Marginal
    q : float array, shape (effort.chains, size)
        Draws given the figures, on the manifold; where they were not reached, of the last rung.
    """
    prior_seed, pilot_seed, *level_seeds = seed.spawn(2 + effort.levels)
    rng = np.random.default_rng(prior_seed)
    prior = prior_draws(inversion, effort.prior, rng)
    q, log_possible = prior.q, prior.log_possible
    places, _ = inversion.places(q)
    base = _log_mean(prior.log_weight) - prior.log_weight
    rung, weight = _next(inversion, places, base, None, effort.first / len(q))
    total = _log_mean(weight)
    step_size = 0.0
    for level, child in enumerate(level_seeds, start=1):
        start = _picked(inversion, q, places, rung, weight, effort.chains, rng)
        if rung == LAST:
            return Marginal(total + len(inversion.rows) * np.log(2.0), np.nan, log_possible, level, 1.0), start
        on = inversion.manifold(rung.width, rung.blur)
        if not step_size:
            step_size = float(np.median(sample(on, start, draws=1, warmup=PILOT, seed=pilot_seed).step_size))
        # Step sizes do not depend on where a chain is. Were each chain to adapt its own, it would linger where it takes
        # short steps, and so few draws after the start would not forget that.
        kept, accepted = [], []
        for stride, own in zip(STRIDES, child.spawn(len(STRIDES)), strict=True):
            step = stride * step_size
            chains = sample(on, start, draws=effort.draws, warmup=0, thin=effort.thin, step_size=step, seed=own)
            start = chains.draws[:, -1]
            kept.append(chains.draws.reshape(-1, inversion.size))
            accepted.append(chains.acceptance.mean())
        q = np.concatenate(kept)
        step_size *= float(np.exp(2.0 * (np.mean(accepted) - TARGET_ACCEPT)))
        places, _ = inversion.places(q)
        base = _log_density(inversion, places, rung)
        rung, weight = _next(inversion, places, base, rung, effort.share)
        total += _log_mean(weight)
    start = _picked(inversion, q, places, rung, weight, effort.chains, rng)
    return Marginal(-np.inf, np.nan, log_possible, len(level_seeds), rung.width), start


def _picked(
    inversion: Inversion, q: Array, places: Array, rung: Rung, weight: Array, number: int, rng: np.random.Generator
) -> Array:
    """Draws resampled onto a rung, with the latents of their figures there."""
    picked = _systematic(weight, number, rng)
    start = q[picked]
    scaled = places[picked, : len(inversion.rows)] / rung.width
    if rung.blur > 0.0:
        start[:, inversion.unknowns :] = aggregates.latents(scaled, rung.blur)[0]
    else:
        start[:, inversion.unknowns :] = np.sqrt(2.0) * erfinv(scaled)
    return start


def _log_density(inversion: Inversion, places: Array, rung: Rung) -> Array:
    """Log density of the figures' places on a rung, -inf where a bounded figure is out; shape (draw,)."""
    rows = len(inversion.rows)
    density = aggregates.latents(places[:, :rows] / rung.width, rung.blur)[1]
    within = np.all(np.abs(places[:, rows:]) <= rung.width, axis=1)
    return np.where(within, density - rows * np.log(rung.width), -np.inf)


def _next(inversion: Inversion, places: Array, base: Array, rung: Rung | None, share: float) -> tuple[Rung, Array]:
    """The farthest rung on which a share of the draws stays effective, and their log weights there.

    `rung` None: the draws are prior draws, and the rung has any width.
    """

    def weights(at: Rung) -> Array:
        return _log_density(inversion, places, at) - base

    def enough(weight: Array) -> bool:
        top = weight.max()
        if not np.isfinite(top):
            return False
        w = np.exp(weight - top)
        return bool(w.sum() ** 2 >= share * len(w) * (w**2).sum())

    narrowing = rung is None or rung.width > 1.0
    width, blur = (1e6, 1.0) if rung is None else (rung.width, rung.blur)

    def towards(t: float) -> Rung:
        return Rung(float(width ** (1.0 - t)), 1.0) if narrowing else Rung(1.0, blur * (1.0 - t))

    low, high = 0.0, 1.0
    if enough(weights(towards(1.0))):
        low = 1.0
    for _ in range(40 if low < high else 0):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if enough(weights(towards(middle))) else (low, middle)
    return towards(low), weights(towards(low))


def _systematic(log_weight: Array, number: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Systematic resampling: `number` places in proportion to the weights."""
    cumulated = np.cumsum(np.exp(log_weight - log_weight.max()))
    ticks = (rng.random() + np.arange(number)) / number * cumulated[-1]
    return np.minimum(np.searchsorted(cumulated, ticks), len(log_weight) - 1)
