"""Floors of pairs that were never measured: the effects behind floors, their scales, and floors given others."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors

type Array = NDArray[np.float64]
type Pair = tuple[str, str, str]
"""GPU, class and model."""

EFFECTS = {
    "gpu": ("gpu", (0,)),
    "class": ("group", (1,)),
    "gpu, class": ("pair", (0, 1)),
    "model": ("pair", (2,)),
    "gpu, model": ("pair", (0, 2)),
}
"""Effects behind floors: the prior of their scale (`Priors.floor_sd_...`), and what two pairs that have one alike share
(0 the SKU, 1 the class, 2 the model)."""
LAUNCHES = 24
"""Times per launch among which each draw chooses, given its floors."""
FOLLOWED = 0.5
"""Prior probability that floors follow launches at all."""
MOST_LAUNCHES = 0.95
"""No larger share of a measured floor is due to launches."""
SCALES = 8192
"""Points of the scales of the effects, weighed by the floors of each draw."""
SHARES = {"group": 0.2, "pair": 0.13}
"""Scale of the prior of the sds of class and model effects on signed floors, as shares of a light step. What a floor
stands in for is a share of the step: floors of families on seven public measured sets differ from their anchor's by a
median of 16 % of its lightest step (0.6 ms of 7 on a stack of 2025, 5 ms of 34 on a server of 2024), one in five by a
third and more. Scales of GPUs stay in ms."""
MOE_WIDER = 4.0
"""Mixtures of experts count as steps so many times as long: published and measured ones lie 9 to 18 ms above dense
models whose steps take 7 to 9."""
LEVEL_SD_MS = 50.0
"""sd of the level common to all signed floors beside measured ones: they tell it, and it is not drawn to 0."""
_CHUNK = 256


def light_step(step_ms: Array, gpu: NDArray[np.int64]) -> float:
    """Mean over GPUs of the anchor's lightest step on each, ms: steps [draw, cell] and GPUs [cell]."""
    mean = step_ms.mean(0)
    return float(np.mean([mean[gpu == g].min() for g in np.unique(gpu)]))


def effect_sizes(pairs: Sequence[Pair], light_ms: float, new_ms: float | None = None) -> Array:
    """How large effects of class and model are on pairs, as the steps that they are shares of, ms: [pair].

    Parameters
    ----------
    pairs : sequence of (gpu, class, model)
    light_ms : float
        Of measured pairs: the anchor's `light_step`. It is not each GPU's own: floors that are larger where steps are
        slower would else be taken for shares of the step, and models with short steps for such with small floors.
    new_ms : float, optional
        Lightest step of the last pair, which was not measured.
    """
    wider = np.array([MOE_WIDER if klass.casefold() == "moe" else 1.0 for _, klass, _ in pairs])
    light = np.full(len(pairs), light_ms)
    if new_ms is not None:
        light[-1] = new_ms
    return np.asarray(wider * light)


def floor_given(
    pairs: Sequence[Pair],
    floor_ms: Array,
    new: Pair,
    scales: Array,
    structure: FloorStructure,
    rng: np.random.Generator,
    priors: Priors = DEFAULT_PRIORS,
    sizes: Array | None = None,
) -> Array:
    """Floor of a pair given those of others and the scales of the effects, ms, [draw].

    Parameters
    ----------
    pairs : sequence of (gpu, class, model)
    floor_ms : array [draw, pair]
    new : (gpu, class, model)
    scales : array [draw, effect]
    sizes : array [pair, and the new one last], optional
        As `effect_sizes` has them, of signed floors: how large effects of class and model are on each. None: alike.

    Notes
    -----
    All floors (their logarithms where H >= 0) are jointly normal with the effects of `EFFECTS`. A class or SKU that
    was never measured thus widens the floor by what classes and SKUs differ, instead of borrowing one.
    """
    relative = None if sizes is None else sizes / sizes[:-1].mean()
    covariance = _covariance([*pairs, new], scales, priors, structure, relative)
    if not structure.positive:
        covariance += LEVEL_SD_MS**2
    mean, _ = priors.floor_level(structure.positive)
    values = np.log(floor_ms) if structure.positive else floor_ms
    gain = np.linalg.solve(covariance[:, :-1, :-1], covariance[:, :-1, -1:])[..., 0]
    centre = mean + (gain * (values - mean)).sum(-1)
    left = covariance[:, -1, -1] - (gain * covariance[:, :-1, -1]).sum(-1)
    drawn = centre + np.sqrt(left.clip(0.0)) * rng.standard_normal(len(centre))
    return np.asarray(np.exp(drawn) if structure.positive else drawn)


def at_launches(floor_ms: Array, of_pairs: Array, launches: float, launch_ms: Array) -> Array:
    """Floors of pairs as if their models had `launches` kernel launches in place of their own.

    Parameters
    ----------
    floor_ms : array [draw, pair], ms
    of_pairs : array [pair]
        Launches of the model of each pair.
    launch_ms : array [draw], ms
        Time per launch; no more of it than the floor holds (`MOST_LAUNCHES`).

    Returns
    -------
    array [draw, pair], ms
    """
    each = np.minimum(launch_ms[:, None], MOST_LAUNCHES * np.maximum(floor_ms, 0.0) / of_pairs)
    return np.asarray(floor_ms + each * (launches - of_pairs))


def launch_and_scales(
    pairs: Sequence[Pair],
    floor_ms: Array,
    of_pairs: Array,
    structure: FloorStructure,
    rng: np.random.Generator,
    priors: Priors = DEFAULT_PRIORS,
    sizes: Array | None = None,
) -> tuple[Array, Array]:
    """Time per kernel launch [draw] and scales of the effects [draw, effect] behind floors, given the floors.

    Floors of models with different numbers of launches tell the time per launch, as far as the effects leave it; where
    all have one number it is its prior's: none at all, as under graphs, or, with probability `FOLLOWED`, that of
    `Priors.launch_ms`.

    Parameters
    ----------
    pairs, floor_ms, structure, sizes
        As in `floor_scales`.
    of_pairs : array [pair]
        Kernel launches of the model of each pair.
    """
    middle, spread = priors.launch_ms

    def of_prior() -> Array:
        size = (len(floor_ms), LAUNCHES)
        return np.exp(np.log(middle) + spread * rng.standard_normal(size)) * (rng.random(size) < FOLLOWED)

    drawn = of_prior()
    common, each = float(of_pairs.mean()), drawn[:, 0]
    told = len(np.unique(of_pairs)) > 1
    relative = None if sizes is None else sizes / sizes.mean()
    scales = floor_scales(pairs, at_launches(floor_ms, of_pairs, common, each), structure, rng, priors, sizes)
    for _ in range(3 if told else 0):
        root = np.linalg.cholesky(_covariance(pairs, scales, priors, structure, relative))
        density = np.empty_like(drawn)
        drawn[:, 0] = each
        for k in range(LAUNCHES):
            moved = at_launches(floor_ms, of_pairs, common, drawn[:, k])
            values = (np.log(moved) if structure.positive else moved) - priors.floor_level(structure.positive)[0]
            density[:, k] = -0.5 * (np.linalg.solve(root, values[..., None])[..., 0] ** 2).sum(-1)
        chosen = (density + rng.gumbel(size=density.shape)).argmax(-1)
        each = drawn[np.arange(len(drawn)), chosen]
        drawn = of_prior()
        scales = floor_scales(pairs, at_launches(floor_ms, of_pairs, common, each), structure, rng, priors, sizes)
    return each, scales


def floor_scales(
    pairs: Sequence[Pair],
    floor_ms: Array,
    structure: FloorStructure,
    rng: np.random.Generator,
    priors: Priors = DEFAULT_PRIORS,
    sizes: Array | None = None,
) -> Array:
    """Scales of the effects behind the floors, given the floors: [draw, effect], ms or of the logarithm.

    Parameters
    ----------
    pairs : sequence of (gpu, class, model)
    floor_ms : array [draw, pair]
    sizes : array [pair], optional
        As `effect_sizes` has them, of signed floors: effects of class and model are then as large as these, and the
        scales of them, in ms, those on a pair of mean size, with priors of `SHARES`.

    Notes
    -----
    Priors as in `Priors` or `SHARES`, half-t or half-normal. Points come from the prior, and in a second round half of
    them from a log-normal around what the first round chose; each draw takes one, with probability proportional to the
    joint normal density of its floors times the prior over the density of the points. Points are common to all draws.
    """
    mean, _ = priors.floor_level(structure.positive)
    values = (np.log(floor_ms) if structure.positive else floor_ms) - mean
    tops = np.array([priors.floor_scale(prior, structure.positive) for prior, _ in EFFECTS.values()])
    relative = None
    if sizes is not None:
        relative, shares = sizes / sizes.mean(), np.array([SHARES.get(prior, np.nan) for prior, _ in EFFECTS.values()])
        tops = np.where(np.isnan(shares), tops, shares * sizes.mean())

    def half(number: int) -> Array:
        size = (number, len(EFFECTS))
        return np.abs(rng.standard_normal(size) if structure.positive else rng.standard_t(3, size)) * tops

    # Squares and products of each draw's floors: their quadratic form under any covariance is one product of matrices.
    products = (values[:, :, None] * values[:, None, :]).reshape(len(values), -1).T

    def chosen(points: Array, log_weight: Array) -> NDArray[np.int64]:
        """A point for each draw, with probability proportional to its weight and the density of that draw's floors."""
        best, found = np.full(len(values), -np.inf), np.zeros(len(values), dtype=np.int64)
        for start in range(0, len(points), _CHUNK):
            some = slice(start, start + _CHUNK)
            covariance = _covariance(pairs, points[some], priors, structure, relative)
            inverse = np.linalg.inv(covariance).reshape(len(covariance), -1)
            log = -0.5 * (inverse @ products + np.linalg.slogdet(covariance)[1][:, None])
            log += log_weight[some, None] + rng.gumbel(size=log.shape)
            top = log.argmax(0)
            better = np.take_along_axis(log, top[None], 0)[0] > best
            found[better] = start + top[better]
            best = np.maximum(best, log.max(0))
        return found

    points = half(SCALES // 4)
    first = np.log(points[chosen(points, np.zeros(len(points)))])
    centre, root = first.mean(0), 1.5 * np.linalg.cholesky(np.cov(first.T) + 0.01 * np.eye(len(EFFECTS)))
    logs = np.concatenate(
        [np.log(half(SCALES // 2)), centre + rng.standard_normal((SCALES // 2, len(EFFECTS))) @ root.T]
    )
    white = np.linalg.solve(root, (logs - centre).T)
    around = -0.5 * (white**2).sum(0) - np.log(np.diag(root)).sum() - 0.5 * len(EFFECTS) * np.log(2.0 * np.pi)
    points = np.exp(logs)
    if structure.positive:
        density = 0.5 * np.log(2.0 / np.pi) - np.log(tops) - 0.5 * (points / tops) ** 2
    else:
        density = np.log(4.0 / (np.pi * np.sqrt(3.0) * tops)) - 2.0 * np.log1p((points / tops) ** 2 / 3.0)
    prior = (density + logs).sum(-1)  # of the logarithm
    weight = prior - np.logaddexp(prior, around)
    return points[chosen(points, weight)]


def _covariance(
    pairs: Sequence[Pair], scales: Array, priors: Priors, structure: FloorStructure, relative: Array | None = None
) -> Array:
    """Covariance of floors of pairs (gpu, class, model) [row of scales, pair, pair]; `relative` sizes of effects."""
    same = [np.array([[a[i] == b[i] for b in pairs] for a in pairs], dtype=float) for i in range(3)]
    size = 1.0 if relative is None else relative[:, None] * relative
    total = np.full((len(scales), len(pairs), len(pairs)), priors.floor_level(structure.positive)[1] ** 2)
    for k, (prior, shared) in enumerate(EFFECTS.values()):
        block = np.prod([same[i] for i in shared], axis=0) * (size if prior in SHARES else 1.0)
        total = total + scales[:, k, None, None] ** 2 * block
    return np.asarray(total + 1e-6 * np.eye(len(pairs)))
