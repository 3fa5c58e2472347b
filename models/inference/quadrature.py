"""The model of steps with T_gpu given and floors added, without a sampler: many data sets at a time.

Given the scales of the noise and of the effects behind the floors, floors are jointly normal and integrate out in
closed form. What is left has one dimension per scale: quasi-random points of a multivariate t that is fitted to the
posterior in a few rounds, weighted by the ratio of the densities (`importance`). In the
closed form the noise of a cell is that of its step under the pair's mean offset; the weight of a draw then corrects for
its own floors, so that the result is that of `build_model` with constants "fixed" up to Monte Carlo error. Prior
and likelihood are the same; the tests hold one against the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri, softmax, stdtrit

from rooffloor.models.floor.structures import PER_MODEL, FloorStructure
from rooffloor.models.inference.importance import moments, proposed, resampled, tempered
from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors
from rooffloor.models.inference.steps import StepModel
from rooffloor.models.specs.cells import Cells

type Array = NDArray[np.float64]

ROUNDS = 4
"""Rounds that fit the proposal before the last one."""
BOX, SCORES = 12.0, 7.5
"""No log noise and no normal score lies further from 0: hardly any prior mass does; such points weigh nothing."""
HINT = 0.02
"""So many cells is the prior's noise worth where the first proposal is placed; alone where no cell tells of noise."""
LEAST = 100
"""Data sets with a smaller effective number of points are done again with eight times as many."""
CHUNK = 40
"""Data sets at a time: bounds the memory."""
ADAPTED, LEAST_ALIKE = 24, 15
"""Data sets to which the one proposal of many alike is fitted, and the least effective points that this may leave: a
few draws are kept of each."""
GIVEN, UNTOLD = 1e6, 1e-6
"""Precision of floors that are given (known to 1 us) and of those that nothing was measured of (to 1 s), 1/ms²."""
CHOICES = 8
"""Scales among which each draw of T_gpu chooses, in `quadrature_of_draws`."""


@dataclass(frozen=True, eq=False)
class Quadrature:
    """Equally weighted draws of the posterior of each data set.

    Attributes
    ----------
    pairs : tuple of (gpu, group label)
        Measured floors, in the order of `floor_ms`.
    pair_code : int array [cell]
    floor_ms : array [data set, draw, pair]
    noise_relative : array [data set, draw, model]
    noise_ms : array [data set, draw]
    floor_sds_ms : array [data set, draw, 3]
        Scales of the SKU, group and pair effects behind the floors.
    ess : array [data set]
        Effective number of the weighted points behind the draws. Below about 50 do not use them: a negative floor that
        takes a step near 0 is beyond the closed form.
    """

    pairs: tuple[tuple[str, str], ...]
    pair_code: NDArray[np.int64]
    floor_ms: Array
    noise_relative: Array
    noise_ms: Array
    floor_sds_ms: Array
    ess: Array

    def __repr__(self) -> str:
        sets, draws, pairs = self.floor_ms.shape
        return f"Quadrature({sets} data sets, {draws} draws of {pairs} floors, least ESS {self.ess.min():.0f})"


def quadrature(
    cells: Cells,
    gpu_ms: ArrayLike,
    measured_ms: ArrayLike,
    rng: np.random.Generator,
    *,
    classes: Mapping[str, str] | None = None,
    structure: FloorStructure = PER_MODEL,
    draws: int = 400,
    points: int = 1024,
    priors: Priors = DEFAULT_PRIORS,
) -> Quadrature:
    """Posterior of floors and noise of many data sets with the same cells.

    Parameters
    ----------
    cells : Cells
        Which models and SKUs; their steps are not read.
    gpu_ms, measured_ms : array_like, [cell] or [data set, cell], ms
    classes : mapping of model to class
        Needed where `structure` shares floors by class.
    structure : FloorStructure
        Added, signed, with floors of groups of models on each SKU.
    draws, points : int
        Draws returned; weighted points of the last round (a power of two).

    Raises
    ------
    ValueError
        A structure whose floors are not normal given the scales.
    """
    layout, names, pair_code = _layout(cells, classes, structure, priors)
    y = np.atleast_2d(np.asarray(measured_ms, dtype=float))
    T = np.broadcast_to(np.asarray(gpu_ms, dtype=float), y.shape)
    floors, theta, ess = _all(layout, y, T, rng, draws, points)
    n = layout.models
    noise = np.exp(theta[..., : n + 1])
    return Quadrature(names, pair_code, floors, noise[..., :n], noise[..., n], layout.scales(theta), ess)


def quadrature_given(
    model: StepModel, data: Sequence[Mapping[str, Array]], rng: np.random.Generator, *, draws: int, points: int = 1024
) -> tuple[dict[str, Array], Array]:
    """The whole posterior of a model of steps with T_gpu and some floors given, under each of many data.

    Parameters
    ----------
    model : StepModel
        Constants fixed; floors signed, of groups of models on each SKU, added; see `has_closed_form`.
    data : sequence of mapping
        ``gpu_ms`` [cell] and, where the model has them, ``anchor_floor_ms`` [known floor], for each data set.
    draws, points : int
        As in `quadrature`.

    Returns
    -------
    posterior : dict of str to array [data set, draw, ...]
        ``floor_ms`` of the whole grid, the scales of their effects, ``noise_relative`` and ``noise_ms``.
    ess : array [data set]
        See `Quadrature`.
    """
    floors, cells = model.layout, model.cells
    assert floors is not None
    assert cells.step_ms is not None
    gpu, group = np.concatenate([floors.sampled, floors.unmeasured], axis=1)
    known = np.array([one.get("anchor_floor_ms", np.zeros(0)) for one in data], dtype=float)
    layout = _Layout(
        gpu,
        group,
        floors.code,
        cells.model_code,
        len(cells.models),
        model.priors,
        known,
        0.0 if cells.step_sd_ms is None else cells.step_sd_ms**2,
    )
    y, T = np.tile(cells.step_ms, (len(data), 1)), np.array([one["gpu_ms"] for one in data], dtype=float)
    drawn, theta, ess = _alike(layout, y, T, rng, draws, points)
    drawn[..., layout.measured : layout.measured + known.shape[1]] = known[:, None]
    noise, scales = np.exp(theta[..., : layout.models + 1]), layout.scales(theta)
    posterior = {
        "floor_ms": drawn[..., floors.order].reshape(len(data), draws, *floors.size),
        "noise_relative": noise[..., :-1],
        "noise_ms": noise[..., -1],
    }
    return posterior | {name: scales[..., k] for k, name in enumerate(model.scales.values())}, ess


def has_closed_form(model: StepModel) -> bool:
    """Whether floors are normal given their scales and T_gpu is given, so that no sampler is needed."""
    sharing = model.structure.sharing
    normal = model.constants == "fixed" and model.likelihood == "normal" and model.structure.combine == "added"
    own = model.layout is not None and model.layout.code.max() < model.layout.measured.shape[1]  # no cell's is given
    grows = (sharing is not None and sharing.per_launch) or bool(model.terms)
    return normal and own and sharing is not None and sharing.dim is not None and not grows


def quadrature_of_draws(
    cells: Cells,
    gpu_ms: Array,
    measured_ms: ArrayLike,
    rng: np.random.Generator,
    *,
    classes: Mapping[str, str] | None = None,
    structure: FloorStructure = PER_MODEL,
    points: int = 1024,
    priors: Priors = DEFAULT_PRIORS,
) -> Quadrature:
    """One draw of floors and noise for each draw of T_gpu, [data set, draw, cell]: the second stage of a cut.

    Scales are drawn at the mean T_gpu, by `quadrature`, and chosen for each draw of T_gpu among `CHOICES` of them with
    the odds that they have there; floors follow in closed form. Other arguments, and errors, as in `quadrature`.
    """
    layout, names, pair_code = _layout(cells, classes, structure, priors)
    y = np.atleast_2d(np.asarray(measured_ms, dtype=float))
    count = gpu_ms.shape[1]
    middle = gpu_ms.mean(1)
    _, theta, ess = _all(layout, y, middle, rng, count, points)
    floors, chosen = np.empty((len(y), count, len(names))), np.empty_like(theta)
    for k, (own, steps) in enumerate(zip(theta, y, strict=True)):
        T, at = gpu_ms[k], rng.integers(count, size=(count, CHOICES))
        there = _at(layout, own[at], np.broadcast_to(steps, T.shape), T)
        here = _at(layout, own[None], steps[None], middle[[k]])[0]
        best = (there - here[at] + rng.gumbel(size=at.shape)).argmax(-1)
        chosen[k] = own[at[np.arange(count), best]]
        step = _offset_step(layout, np.broadcast_to(steps, T.shape), T)
        drawn, _ = _floors(layout, chosen[k][:, None], np.broadcast_to(steps, T.shape), T, step, rng)
        floors[k] = drawn[:, 0]
    n = layout.models
    noise = np.exp(chosen[..., : n + 1])
    return Quadrature(names, pair_code, floors, noise[..., :n], noise[..., n], layout.scales(chosen), ess)


def _at(layout: "_Layout", theta: Array, y: Array, T: Array) -> Array:
    """log p(theta, y) at points [row, point] of rows [row, cell]."""
    return _log_marginal(layout, theta, y, T, _told(layout, theta, y, T, _offset_step(layout, y, T)))


def _layout(
    cells: Cells, classes: Mapping[str, str] | None, structure: FloorStructure, priors: Priors
) -> tuple["_Layout", tuple[tuple[str, str], ...], NDArray[np.int64]]:
    """The layout, the names (gpu, group label) of its floors, and the floor of each cell."""
    sharing = structure.sharing
    grows = (sharing is not None and sharing.per_launch) or bool(structure.terms)
    if sharing is None or sharing.dim is None or structure.combine != "added" or grows:
        raise ValueError(f"quadrature needs signed floors of groups of models, added: not {structure}")
    groups = structure.groups(cells, classes or dict.fromkeys(cells.models, ""))
    codes = list(zip(cells.gpu_code.tolist(), groups.code.tolist(), strict=True))
    distinct = list(dict.fromkeys(codes))
    pair_code = np.array([distinct.index(code) for code in codes], dtype=np.int64)
    layout = _Layout(
        np.array([g for g, _ in distinct]),
        np.array([k for _, k in distinct]),
        pair_code,
        cells.model_code,
        len(cells.models),
        priors,
    )
    return layout, tuple((cells.gpus[g], groups.labels[k]) for g, k in distinct), pair_code


def _all(
    layout: "_Layout", y: Array, T: Array, rng: np.random.Generator, draws: int, points: int
) -> tuple[Array, Array, Array]:
    """`_chunk` of all data sets, again with more points where too few told."""
    chunks = [slice(k, k + CHUNK) for k in range(0, len(y), CHUNK)]
    found = [_chunk(layout.of(at), y[at], T[at], rng, draws, points) for at in chunks]
    return _again(layout, y, T, rng, draws, 8 * points, found, LEAST)


def _alike(
    layout: "_Layout", y: Array, T: Array, rng: np.random.Generator, draws: int, points: int
) -> tuple[Array, Array, Array]:
    """`_all` of data sets whose posteriors of theta differ little: one proposal, fitted to some of them, serves all.

    It is moved with the noise that each starts from (`_start`), as far as those it was fitted to moved: T_gpu of some
    draws leaves more over than that of others.
    """
    few = np.unique(np.linspace(0, len(y) - 1, ADAPTED).round().astype(int))
    mean, covariance = _proposal(layout.of(few), y[few], T[few], rng, points)
    start = _start(layout, y, T)[0][:, : layout.models]
    off = start - start[few].mean(0)
    moves = np.linalg.solve(off[few].T @ off[few] + 1e-3 * np.eye(layout.models), off[few].T @ (mean - mean.mean(0)))
    centre = mean.mean(0) + off.clip(off[few].min(0), off[few].max(0)) @ moves
    between = np.atleast_2d(np.cov(mean - centre[few], rowvar=False, bias=True)) if len(few) > 1 else 0.0
    pooled = covariance.mean(0) + between
    found = []
    for k in range(0, len(y), CHUNK):
        at = slice(k, k + CHUNK)
        sets = len(y[at])
        proposal = centre[at], np.tile(pooled, (sets, 1, 1))
        found.append(_weighted(layout.of(at), y[at], T[at], proposal, rng, draws, points))
    return _again(layout, y, T, rng, draws, 4 * points, found, LEAST_ALIKE)


def _again(
    layout: "_Layout",
    y: Array,
    T: Array,
    rng: np.random.Generator,
    draws: int,
    points: int,
    found: Sequence[tuple[Array, Array, Array]],
    least: float,
) -> tuple[Array, Array, Array]:
    """What was found chunk by chunk, end to end; each data set of less than `least` ESS done anew by itself."""
    floors, theta, ess = (np.concatenate(part) for part in zip(*found, strict=True))
    for k in np.flatnonzero(ess < least).tolist():
        again = _chunk(layout.of([k]), y[[k]], T[[k]], rng, draws, points)
        floors[k], theta[k], ess[k] = (part[0] for part in again)
    return floors, theta, ess


@dataclass(frozen=True, eq=False)
class _Layout:
    """SKU and group of each floor [pair], floor and model of each cell [cell], and the prior.

    The coordinates that are left, theta: log σ of each model; log s; and, as normal scores of their priors, the spread
    of σ and the scales of SKU, group and pair effects.
    """

    gpu: NDArray[np.int64]
    group: NDArray[np.int64]
    pair_code: NDArray[np.int64]
    model_code: NDArray[np.int64]
    models: int
    priors: Priors
    known_ms: Array | None = None
    """[data set, known floor]: floors that are given; they and never measured ones come after those of cells."""
    known_variance: Array | float = 0.0
    """[cell]: known part of the noise of a cell, ms²."""

    @property
    def measured(self) -> int:
        """Floors that have cells."""
        return int(self.pair_code.max()) + 1

    def of(self, sets: slice | list[int] | NDArray[np.int64]) -> "_Layout":
        """The layout of some of the data sets."""
        return self if self.known_ms is None else replace(self, known_ms=self.known_ms[sets])

    def per_pair(self, values: Array) -> Array:
        """Sums over the cells of each pair, [..., cell] -> [..., pair]."""
        member = (self.pair_code[:, None] == np.arange(len(self.gpu))).astype(float)
        return np.asarray(values @ member)

    def scales(self, theta: Array) -> Array:
        """Scales of SKU, group and pair effects, ms, [..., 3]."""
        p = self.priors
        half_t = stdtrit(3.0, 0.5 + 0.5 * ndtr(theta[..., self.models + 2 :]))
        return np.asarray(half_t * (p.floor_sd_gpu_ms, p.floor_sd_group_ms, p.floor_sd_pair_ms))

    def covariance(self, theta: Array) -> Array:
        """Prior covariance of floors given the scales, [..., pair, pair], ms²."""
        same_gpu = (self.gpu[:, None] == self.gpu).astype(float)
        same_group = (self.group[:, None] == self.group).astype(float)
        by_effect = np.stack([same_gpu, same_group, np.eye(len(self.gpu))])
        overall = self.priors.floor_overall_ms[1] ** 2
        return np.asarray(overall + np.einsum("...k,kij->...ij", self.scales(theta) ** 2, by_effect))

    def sample_floors(self, theta: Array, rng: np.random.Generator) -> Array:
        """One prior draw of the floors at each point, ms, [..., pair]: the sum of their effects."""
        shape = theta.shape[:-1]
        sd = self.scales(theta)[..., None]
        by_gpu = rng.standard_normal((*shape, self.gpu.max() + 1))[..., self.gpu]
        by_group = rng.standard_normal((*shape, self.group.max() + 1))[..., self.group]
        own = rng.standard_normal((*shape, len(self.gpu)))
        overall = self.priors.floor_overall_ms[1] * rng.standard_normal((*shape, 1))
        return np.asarray(overall + sd[..., 0, :] * by_gpu + sd[..., 1, :] * by_group + sd[..., 2, :] * own)

    def noise_variance(self, theta: Array, step_ms: Array) -> Array:
        """Variance of a measured step around `step_ms` [..., cell], ms²."""
        relative = np.exp(2.0 * theta[..., : self.models])[..., self.model_code]
        return np.asarray(np.exp(2.0 * theta[..., self.models, None]) + relative * step_ms**2 + self.known_variance)

    def log_prior(self, theta: Array) -> Array:
        """Log prior density of `theta` [..., dimension], up to a constant."""
        p, n = self.priors, self.models
        median, sd = p.noise_relative
        spread = p.noise_spread * ndtri(0.5 + 0.5 * ndtr(theta[..., n + 1]))
        off = theta[..., :n] - np.log(median)
        within = ((off - off.mean(-1, keepdims=True)) ** 2).sum(-1)
        along = spread**2 + n * sd**2  # variance of the mean of log σ, times n
        log = -0.5 * (within / spread**2 + n * off.mean(-1) ** 2 / along + np.log(along)) - (n - 1) * np.log(spread)
        log -= 0.5 * ((theta[..., n] - np.log(p.noise_ms[0])) / p.noise_ms[1]) ** 2
        return np.asarray(log - 0.5 * (theta[..., n + 1 :] ** 2).sum(-1))


def _start(layout: _Layout, y: Array, T: Array) -> tuple[Array, Array, Array]:
    """Mean [data set, dimension] and covariance of the first proposal, and the step under each pair's mean offset."""
    step = _offset_step(layout, y, T)
    relative = (y - step) / np.abs(step)
    p, n = layout.priors, layout.models
    mean = np.tile([*[0.0] * n, np.log(p.noise_ms[0]), 0.0, 0.0, 0.0, 0.0], (len(y), 1))
    for m in range(n):
        at = layout.model_code == m
        freedom = at.sum() - len(np.unique(layout.pair_code[at]))
        told = (relative[:, at] ** 2).sum(-1) + HINT * p.noise_relative[0] ** 2
        mean[:, m] = 0.5 * np.log(told / (freedom + HINT))
    sd = np.array([*[0.3] * n, 1.0, 1.0, 1.0, 1.0, 1.0])
    return mean, np.tile(np.diag(sd**2), (len(y), 1, 1)), step


def _offset_step(layout: _Layout, y: Array, T: Array) -> Array:
    """The step under each pair's mean offset, ms, [..., cell]."""
    weight = 1.0 / y**2
    offset = layout.per_pair(weight * (y - T)) / np.maximum(layout.per_pair(weight), 1e-300)
    return np.asarray(T + offset[..., layout.pair_code])


def _chunk(
    layout: _Layout, y: Array, T: Array, rng: np.random.Generator, draws: int, points: int
) -> tuple[Array, Array, Array]:
    """Floors [data set, draw, pair], scales theta [data set, draw, dimension] and ESS of some data sets."""
    return _weighted(layout, y, T, _proposal(layout, y, T, rng, points), rng, draws, points)


def _proposal(layout: _Layout, y: Array, T: Array, rng: np.random.Generator, points: int) -> tuple[Array, Array]:
    """Mean [data set, dimension] and covariance of theta, fitted in rounds."""
    mean, covariance, step = _start(layout, y, T)
    for _ in range(ROUNDS):
        theta, log_proposal = _points(mean, covariance, rng, max(points // 2, 256))
        log_weight = _log_marginal(layout, theta, y, T, _told(layout, theta, y, T, step)) - log_proposal
        mean, covariance = moments(theta, tempered(log_weight))
    return mean, covariance


def _weighted(
    layout: _Layout,
    y: Array,
    T: Array,
    proposal: tuple[Array, Array],
    rng: np.random.Generator,
    draws: int,
    points: int,
) -> tuple[Array, Array, Array]:
    """Weighted points of the proposals, and draws among them, as `_chunk` has them."""
    step = _offset_step(layout, y, T)
    theta, log_proposal = _points(*proposal, rng, points)
    floors, log_weight = _floors(layout, theta, y, T, step, rng)
    weight = softmax(log_weight - log_proposal, axis=-1)
    at, rows = np.arange(len(y))[:, None], resampled(weight, draws, rng)
    return floors[at, rows], theta[at, rows], 1.0 / (weight**2).sum(-1)


def _points(mean: Array, covariance: Array, rng: np.random.Generator, points: int) -> tuple[Array, Array]:
    """Points of the proposals, within the box; those outside come from everywhere, so that they weigh nothing."""
    theta, log = proposed(mean, covariance, rng, points)
    box = np.where(np.arange(mean.shape[1]) < mean.shape[1] - 4, BOX, SCORES)
    return theta.clip(-box, box), np.where((np.abs(theta) <= box).all(-1), log, np.inf)


def _told(layout: _Layout, theta: Array, y: Array, T: Array, step: Array) -> tuple[Array, Array, Array]:
    """What the cells say of each floor: value and information [data set, point, pair]; noise variances of cells."""
    variance = layout.noise_variance(theta, step[:, None])
    information = layout.per_pair(1.0 / variance)
    value = layout.per_pair((y - T)[:, None] / variance)
    if layout.known_ms is not None:
        n, known = layout.measured, layout.known_ms.shape[1]
        information[..., n:] = UNTOLD
        information[..., n : n + known] = GIVEN
        value[..., n : n + known] = GIVEN * layout.known_ms[:, None]
    value /= information
    return value, information, variance


def _log_marginal(layout: _Layout, theta: Array, y: Array, T: Array, told: tuple[Array, Array, Array]) -> Array:
    """log p(theta, y) with floors integrated out, up to a constant, [data set, point]; `told` as `_told` has it."""
    value, information, variance = told
    root = np.linalg.cholesky(_seen(layout.covariance(theta), information))
    white = np.linalg.solve(root, value[..., None])[..., 0]
    log = -0.5 * (white**2).sum(-1) - np.log(np.diagonal(root, axis1=-2, axis2=-1)).sum(-1)
    residual = (y - T)[:, None] - value[..., layout.pair_code]
    log -= 0.5 * (residual**2 / variance + np.log(variance)).sum(-1) + 0.5 * np.log(information).sum(-1)
    return np.asarray(log + layout.log_prior(theta))


def _seen(covariance: Array, information: Array) -> Array:
    """Covariance [..., pair, pair] of what the cells say of the floors; far points stay positive definite."""
    added = 1.0 / information + 1e-12 * np.trace(covariance, axis1=-2, axis2=-1)[..., None]
    return np.asarray(covariance + added[..., None] * np.eye(added.shape[-1]))


def _floors(
    layout: _Layout, theta: Array, y: Array, T: Array, step: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    """One draw of all floors at each point, and log p(theta, y) corrected for its own noise, [data set, point]."""
    told = value, information, variance = _told(layout, theta, y, T, step)
    prior = layout.covariance(theta)
    drawn = layout.sample_floors(theta, rng)
    seen = drawn + rng.standard_normal(value.shape) / np.sqrt(information)
    gain = np.linalg.solve(_seen(prior, information), (value - seen)[..., None])
    floors = drawn + (prior @ gain)[..., 0]
    mean = T[:, None] + floors[..., layout.pair_code]
    own = layout.noise_variance(theta, mean)
    squared = (y[:, None] - mean) ** 2
    correction = -0.5 * (squared / own + np.log(own) - squared / variance - np.log(variance)).sum(-1)
    return floors, _log_marginal(layout, theta, y, T, told) + correction
