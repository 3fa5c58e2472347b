"""What explains the steps of a family? A floor of its own, an error of a part of T_gpu, both, or neither.

The anchor's calibration predicts each cell of the family. What the steps are off by is explained in turn by nothing, by
a floor of its own, by an error of one part of T_gpu (the directions of `hypotheses.absorption`), or by both. Floors and
errors may differ between GPUs around a common value, with a half-Cauchy scale. Every explanation is linear with normal
coefficients, so that its evidence is exact given the scales, which are summed out on a grid. Overlapped floors are
linear around a point: around the anchor's floor where the family has that, else around the family's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

from rooffloor.models.inference.noise import variance_ms2
from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.models.roof.kernels import EXPERTS, Experts, decode_work
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.estimates.cell_draws import OWN_NOISE
from rooffloor.validate.hypotheses.absorption import directions
from rooffloor.validate.hypotheses.h3 import OFFSET_SD_MS, SLOPE_SD

if TYPE_CHECKING:
    from rooffloor.validate.transfer.family_fit import Family

type Array = NDArray[np.float64]
type Mask = NDArray[np.bool_]

WHOLE, WEIGHTS = "whole", "weights"
MECHANISMS = {
    WHOLE: "the bandwidth of memory as a whole, for weights and KV cache alike (eta_bw, eta_fa)",
    WEIGHTS: "the weights' bandwidth (eta_bw)",
    "kv": "the KV cache's bandwidth or its bytes per token (eta_fa)",
    "l_half": "attention's time per sequence, whatever the context (L_half)",
    "query_heads": "whether its query heads or the cache's bandwidth bind attention (rho_q)",
    "missing_batch_kernel": "time that grows with the batch (a missing kernel, or the host's per sequence)",
    "eta_tc": "the speed of matrix products that are bound by compute (eta_tc)",
    **{f"experts: {name}": f"how many experts are read, {name} ones instead" for name in EXPERTS},
}
"""Errors of T_gpu that are tried, in the order in which they are named where several have one column."""

BY_SEQUENCE = ("l_half", "missing_batch_kernel")
"""Time per sequence, whatever the context: the host's, as part of the floor, looks the same."""
ANCHORS, OWN = "the anchor's", "its own"
FLOOR_BETWEEN_MS = DEFAULT_PRIORS.floor_sd_pair_ms
"""Scale of the half-Cauchy between-GPU sd of the floor less the anchor's, ms."""
BETWEEN_SIZE = 0.5
"""Scale of the half-Cauchy between-GPU sd of slopes and errors, in margins."""
NODES = 6
"""Points of each half-Cauchy, at equally likely places."""
SMOOTH, REACH = (0.0, 0.5, 0.9), 1.0
"""Shares of the noise's variance that are a smooth function of log B and log L, equally likely, and the distance over
which that stays alike, in factors of e. What a roofline leaves over comes back with every measurement, and in part on
every GPU; taken as noise of each cell by itself it makes errors of T_gpu look certain."""
SMOOTH_LEFT = 1e-4
"""Directions of the smooth leftover with a smaller share of its variance are left out."""
ALIKE = 0.995
"""Errors whose columns have at least this cos² are one explanation."""


@dataclass(frozen=True)
class Explanation:
    """One explanation of what the family's steps are off by.

    Attributes
    ----------
    floor : "the anchor's" or "its own"
    error : str or None
        Which part of T_gpu is wrong (`MECHANISMS`).
    weight : float
        Posterior weight among the explanations.
    size, size_sd : float
        Posterior mean and sd of the error, mean over the GPUs: relative for the whole and the weights; else in units in
        which an equal error of T_gpu as a whole changes the cells of a pair by as much. 0 without an error.
    beyond : float
        Posterior probability that the size is outside the margin.
    log_joint : float
        Logarithm of its prior weight times the density of the steps; all together give that of the cells.
    """

    floor: str
    error: str | None
    weight: float
    size: float
    size_sd: float
    beyond: float
    log_joint: float

    @property
    def data(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {name: getattr(self, name) for name in ("floor", "error", "weight", "size", "size_sd", "beyond")}


# ---- what is explained ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Join:
    """How steps follow T_gpu and the floor around one floor of each GPU, arrays [cell of the draws].

    Attributes
    ----------
    gpu_ms, floor_ms, step_ms : T_gpu, the floor and the step there, ms
    by_gpu_ms, by_floor : its derivatives by T_gpu and by the floor
    above_ms : the floor there less the anchor's, ms
    anchor_off_ms : array [draw, cell], the anchor's floor less its mean, ms
    """

    gpu_ms: Array
    floor_ms: Array
    step_ms: Array
    by_gpu_ms: Array
    by_floor: Array
    above_ms: Array
    anchor_off_ms: Array


@dataclass(frozen=True, eq=False)
class Gap:
    """The family's steps less what the anchor's calibration predicts, on some GPUs.

    Attributes
    ----------
    gap_ms : array [cell]
        y - E(step under the anchor's floor), ms; of a linearised step where floors overlap.
    floor : array [cell]
        Change of the step per ms of floor: 1 where floors are added.
    root_ms : array [cell, direction]
        Root of the posterior covariance of the step under the anchor's floor: R R', ms².
    known_sd_ms : array [cell]
        Known measurement uncertainty.
    smooth : array [cell, direction]
        Root of the correlation of a smooth leftover, common to the GPUs.
    scale_ms : array [cell]
        sd of a step at a relative noise of 1, ms; a GPU that leaves more over than the others has a larger one.
    noise : (median, sd of the logarithm)
        Prior of the relative noise: the anchor's, give or take what models differ by.
    sku : int array [cell]
    columns : mapping of error to array [cell]
        Change of the cells per unit of its size, ms.
    names : mapping of error to tuple of str
        The errors with that column, itself first.
    batch, context : arrays [cell]
    """

    gap_ms: Array
    floor: Array
    root_ms: Array
    known_sd_ms: Array
    smooth: Array
    scale_ms: Array
    noise: tuple[float, float]
    sku: NDArray[np.int64]
    columns: Mapping[str, Array]
    names: Mapping[str, tuple[str, ...]]
    batch: Array
    context: Array
    _BY_CELL = ("gap_ms", "floor", "root_ms", "known_sd_ms", "smooth", "scale_ms", "batch", "context")

    def where(self, keep: Mask) -> "Gap":
        """The same for some of the cells."""
        return replace(
            self,
            **{name: getattr(self, name)[keep] for name in self._BY_CELL},
            sku=np.unique(self.sku[keep], return_inverse=True)[1],
            columns={name: column[keep] for name, column in self.columns.items()},
        )

    @cached_property
    def members(self) -> Array:
        """Which cell is on which GPU, [cell, gpu]."""
        return (self.sku[:, None] == np.arange(self.sku.max() + 1)).astype(float)

    @property
    def floor_or_weights(self) -> bool:
        """Whether one GPU's floor and an error of the weights have one column: no cell of them can tell which."""
        floor, weights = self.floor / self.scale_ms, self.columns[WEIGHTS] / self.scale_ms
        alike = (floor @ weights) ** 2 >= ALIKE * (floor @ floor) * (weights @ weights)
        return bool(self.members.shape[1] == 1 and alike)

    @cached_property
    def told(self) -> "_Told":
        """What the cells say of all columns."""
        return _Told.of(self)


def gap(family: "Family", masks: Sequence[Mask], join: Join | None = None) -> Gap:
    """What is to be explained: the cells of a family on the GPUs whose masks are given, in their order.

    `join` says around which floors steps are linear; by default floors are added.
    """
    draws = family.draws
    order = np.concatenate([np.flatnonzero(mask) for mask in masks])
    sku = np.repeat(np.arange(len(masks)), [int(mask.sum()) for mask in masks])
    weight, y = draws.weight, draws.step_ms[0, order]
    T = weight @ draws.gpu_ms[:, order]
    predicted = draws.gpu_ms[:, order] + draws.anchor_floor_ms[:, order]
    off = predicted - weight @ predicted
    root = _compressed(np.sqrt(weight) * off.T)
    own_anchor = draws.cells.model == draws.anchor
    same_gpu = own_anchor & np.isin(draws.cells.gpu, draws.cells.gpu[order])
    anchor = np.flatnonzero(same_gpu if same_gpu.any() else own_anchor)
    relative = np.log(draws.noise_ms[:, anchor] / np.abs(draws.mean_ms[:, anchor])).mean(-1)
    middle = float(weight @ relative)
    noise = float(np.exp(middle)), float(np.sqrt(weight @ (relative - middle) ** 2 + DEFAULT_PRIORS.noise_spread**2))
    fitted, left, freedom = zip(*(_line(T[sku == k], y[sku == k]) for k in range(len(masks))), strict=True)
    common = (OWN_NOISE * noise[0] ** 2 + sum(left)) / (OWN_NOISE + sum(freedom))
    own = [(OWN_NOISE + squares / common) / (OWN_NOISE + free) for squares, free in zip(left, freedom, strict=True)]
    scale = np.concatenate(fitted) * np.sqrt(own)[sku]
    columns = _columns(family, order, sku, T)
    left_over, floor = y - weight @ predicted, np.ones(len(order))
    if join is not None:
        floor = join.by_floor[order]
        moved = join.by_gpu_ms[order] * (draws.gpu_ms[:, order] - T) + floor * join.anchor_off_ms[:, order]
        root = _compressed(np.sqrt(weight) * (moved - weight @ moved).T)
        left_over = y - join.step_ms[order] + floor * join.above_ms[order]
        columns = {name: column * join.by_gpu_ms[order] for name, column in columns.items()}
    columns, names = _distinct(columns, 1.0 / scale)
    axes = draws.cells.batch[order], draws.cells.context[order]
    smooth = smooth_root(np.log(axes[0]), np.log1p(axes[1]))
    return Gap(left_over, floor, root, family.known_sd_ms[order], smooth, scale, noise, sku, columns, names, *axes)


def smooth_root(log_batch: Array, log_context: Array) -> Array:
    """Root [cell, direction] of exp(-d²/2 `REACH`²), d the distance of two cells in (log B, log L).

    From points on a grid, a `REACH` apart, so that its size does not grow with the cells.
    """

    def along(x: Array) -> Array:
        points = np.linspace(x.min(), x.max(), 1 + int(np.ceil(np.ptp(x) / REACH)))

        def kernel(a: Array, b: Array) -> Array:
            return np.asarray(np.exp(-0.5 * ((a[:, None] - b) / REACH) ** 2))

        root = np.linalg.cholesky(kernel(points, points) + 1e-6 * np.eye(len(points)))
        return np.asarray(np.linalg.solve(root, kernel(points, x)).T)

    root = (along(log_batch)[:, :, None] * along(log_context)[:, None]).reshape(len(log_batch), -1)
    size, axes = np.linalg.eigh(root.T @ root)
    keep = size > SMOOTH_LEFT * size.sum()
    return np.asarray(root @ axes[:, keep])


def _compressed(root: Array) -> Array:
    """A root of the same covariance with as few columns as it takes."""
    if root.shape[0] > root.shape[1]:
        return root
    size, axes = np.linalg.eigh(root @ root.T)
    keep = size > 1e-12 * max(float(size.max()), 1e-300)
    return np.asarray(axes[:, keep] * np.sqrt(size[keep]))


def _line(T: Array, y: Array) -> tuple[Array, float, int]:
    """Steps on the line through one GPU's cells, relative squares left over, and their degrees of freedom."""
    fitted = y
    design = np.stack([np.ones_like(T), T - T.mean()], -1)
    for _ in range(3):
        coefficients = np.linalg.lstsq(design / fitted[:, None], y / fitted, rcond=1e-9)[0]
        fitted = np.maximum(design @ coefficients, 0.3 * y)
    rank = 1 + int(np.ptp(T) > 1e-9 * T.max())
    return fitted, float((((y - fitted) / fitted) ** 2).sum()), max(len(y) - rank, 0)


def error_columns(
    shapes: ModelShapes,
    gpu: GpuSpec,
    batch: Array,
    context: Array,
    efficiency: Efficiency,
    experts: Experts = "active",
) -> dict[str, Array]:
    """Change of T_gpu per unit of each error, by its name in `MECHANISMS`, ms.

    Parameters
    ----------
    batch, context : arrays [cell]
    efficiency : Efficiency
        Numbers: errors are small departures from them (`absorption.directions`).

    Returns
    -------
    dict of array [cell]
        For `WHOLE`, `WEIGHTS` and "kv" per relative error of the time; for another choice of streamed experts the whole
        switch; the others in units that do not matter. Errors that the model cannot have are left out.
    """
    told = directions(shapes, gpu, batch, context, efficiency, experts)
    weights, kv = -100.0 * told["eta_bw"], -100.0 * told["eta_fa"]
    found = {WHOLE: weights + kv, WEIGHTS: weights, "kv": kv, "eta_tc": -told["eta_tc"]}
    found |= {name: told[name] for name in ("l_half", "query_heads", "missing_batch_kernel")}
    if shapes.is_moe:
        steps = {
            name: np.asarray(work_ms(decode_work(shapes, batch, context, gpu=gpu, experts=name), efficiency))
            for name in get_args(Experts.__value__)
        }
        found |= {f"experts: {name}": step - steps[experts] for name, step in steps.items() if name != experts}
    return found


def _columns(family: "Family", order: NDArray[np.int64], sku: NDArray[np.int64], T: Array) -> dict[str, Array]:
    """Column of each error, ms."""
    cells = family.draws.cells
    found, names = dict[str, Array](), cells.gpu[order]
    for gpu in dict.fromkeys(names.tolist()):
        at = order[names == gpu]
        axes = cells.batch[at], cells.context[at]
        columns = error_columns(family.shapes, family.gpus[gpu], *axes, family.efficiency[gpu], family.experts)
        for name, column in columns.items():
            found.setdefault(name, np.zeros_like(T))[names == gpu] = column
    return scaled(found, T, sku)


def scaled(columns: Mapping[str, Array], T: Array, sku: NDArray[np.int64]) -> dict[str, Array]:
    """Columns in one unit, in the order of `MECHANISMS`: those that do not vary within a GPU are left out.

    `WHOLE` and `WEIGHTS` stay relative. A unit of the others changes the cells of a GPU, around their mean, by as much
    as a relative error of 1 in T_gpu.
    """
    reference = within(T, sku)
    found = {name: columns[name] for name in (WHOLE, WEIGHTS)}
    for name in [n for n in MECHANISMS if n in columns and n not in found]:
        spread = within(columns[name], sku)
        if spread > 1e-9 * np.abs(columns[name]).max() and reference > 0:
            found[name] = columns[name] * reference / spread
    return found


def within(column: Array, sku: NDArray[np.int64]) -> float:
    """Root of the summed squares around each GPU's mean; `sku` [cell] from 0."""
    return float(np.sqrt(sum(((column[sku == k] - column[sku == k].mean()) ** 2).sum() for k in range(sku.max() + 1))))


def _distinct(columns: Mapping[str, Array], root_weight: Array) -> tuple[dict[str, Array], dict[str, tuple[str, ...]]]:
    """Errors with different columns, and which others have the same; the whole and the weights stay themselves."""
    white = {name: column * root_weight for name, column in columns.items()}
    names: dict[str, tuple[str, ...]] = {}
    for name, mine in white.items():
        for other in names:
            known = white[other]
            alike = (mine @ known) ** 2 >= ALIKE * (mine @ mine) * (known @ known)
            if alike and WEIGHTS not in (name, other):
                names[other] = (*names[other], name)
                break
        else:
            names[name] = (name,)
    return {name: columns[name] for name in names}, names


# ---- explanations -----------------------------------------------------------------------------------------------


def explanations(gap: Gap, rope: float, *, own: Gap | None = None, spread: float = 1.0) -> list[Explanation]:
    """Posterior weights of all explanations, and how large an error each allows.

    Parameters
    ----------
    gap : Gap
    rope : float
        Sizes within +- this are as good as 0.
    own : Gap, optional
        The same, linear around the family's own floors (where floors overlap).
    spread : float
        Factor on the prior sds of floors and errors.

    Returns
    -------
    list of Explanation
        Their weights sum to 1.

    Notes
    -----
    The floor is the anchor's or its own, with equal prior weight; T_gpu is right with prior weight 1/2, and the errors
    share the other half (weights are relative: what is left out takes none). On one GPU a floor of its own and an error
    of the weights together are no explanation, since either does what both would. A floor of its own differs from the
    anchor's by N(0, `OFFSET_SD_MS`), and between GPUs with a half-Cauchy(`FLOOR_BETWEEN_MS`) sd; the size of an error
    is N(0, `SLOPE_SD`), and half-Cauchy(rope / 2).
    """
    told = (gap.told, (own or gap).told)
    found = []
    for free, error in product((False, True), (None, *gap.columns)):
        if free and ((error == WEIGHTS and told[1].gpus == 1) or error not in (None, *told[1].errors)):
            continue
        prior = 0.5 * (0.5 if error is None else 0.5 / len(gap.columns))
        found.append((OWN if free else ANCHORS, error, np.log(prior), *told[free].fit(free, error, rope, spread)))
    total = logsumexp([prior + evidence for _, _, prior, evidence, *_ in found])
    return [
        Explanation(floor, error, float(np.exp(prior + evidence - total)), size, sd, beyond, float(prior + evidence))
        for floor, error, prior, evidence, size, sd, beyond in found
    ]


@dataclass(frozen=True, eq=False)
class _Told:
    """What the cells say of all columns at each noise: Gram matrices [noise, 1 + column, 1 + column], whitened.

    The first row is that of the gap; then for each GPU one column of the floor and one of every error.
    """

    errors: tuple[str, ...]
    gpus: int
    gram: Array
    log_noise: Array

    @classmethod
    def of(cls, gap: Gap) -> "_Told":
        K, median, sd = gap.members.shape[1], *gap.noise
        sizes = [gap.members * gap.floor[:, None], *(gap.members * column[:, None] for column in gap.columns.values())]
        table = np.concatenate([gap.gap_ms[:, None], *sizes], -1)
        one = np.linspace(-4.0, 6.0, 61)  # of the logarithm's sd: misfits need a noise far above the anchor's
        z, share = np.tile(one, len(SMOOTH)), np.repeat(SMOOTH, len(one))
        gram, log_size = np.empty((len(z), table.shape[1], table.shape[1])), np.empty(len(z))
        smooth = gap.smooth * gap.scale_ms[:, None]
        for k, (sigma, part) in enumerate(zip(median * np.exp(sd * z), share, strict=True)):
            variance = variance_ms2(gap.scale_ms, sigma * np.sqrt(1.0 - part), known_sd_ms=gap.known_sd_ms)
            roots = [gap.root_ms, sigma * np.sqrt(part) * smooth] if part else [gap.root_ms]
            known = np.concatenate([table, *roots], -1)
            whole = (known.T / variance) @ known  # the inverse of diag(v) + R R', by Woodbury
            n = table.shape[1]
            inner = whole[n:, n:] + np.eye(whole.shape[0] - n)
            gram[k] = whole[:n, :n] - whole[:n, n:] @ np.linalg.solve(inner, whole[n:, :n])
            log_size[k] = np.log(variance).sum() + np.linalg.slogdet(inner)[1]
        log_noise = -0.5 * z**2 + np.log((one[1] - one[0]) / (np.sqrt(2 * np.pi) * len(SMOOTH)))
        log_noise = log_noise - 0.5 * (log_size + len(gap.sku) * np.log(2 * np.pi))
        return cls(tuple(gap.columns), K, gram, log_noise)

    def fit(self, own: bool, error: str | None, rope: float, spread: float) -> tuple[float, float, float, float]:
        """Log evidence of one explanation; mean and sd of its size; P(size outside the margin)."""
        K, blocks, scales = self.gpus, [], []
        if own:
            blocks.append(1 + np.arange(K))
            scales.append((OFFSET_SD_MS * spread, FLOOR_BETWEEN_MS * spread))
        if error is not None:
            blocks.append(1 + K * (1 + self.errors.index(error)) + np.arange(K))
            scales.append((SLOPE_SD * spread, BETWEEN_SIZE * max(rope, 0.01) * spread))
        if not blocks:
            return float(logsumexp(self.log_noise - 0.5 * self.gram[:, 0, 0])), 0.0, 0.0, 0.0
        prior = _prior(scales, K)  # [scale, coefficient, coefficient]
        at = np.concatenate(blocks)
        root = np.linalg.cholesky(prior)
        cross = np.einsum("tji,sj->tsi", root, self.gram[:, at, 0])
        inner = np.einsum("tji,sjk,tkl->tsil", root, self.gram[:, at[:, None], at], root) + np.eye(len(at))
        of_size = root[:, -K:].mean(1) if error is not None else np.zeros((len(prior), len(at)))
        both = np.stack(np.broadcast_arrays(cross, of_size[:, None]), -1)
        solved = np.linalg.solve(inner, both)
        log = self.log_noise - 0.5 * self.gram[:, 0, 0] + 0.5 * (cross * solved[..., 0]).sum(-1)
        log = log - 0.5 * np.linalg.slogdet(inner)[1] - np.log(len(prior))
        evidence = logsumexp(log)
        if error is None:
            return float(evidence), 0.0, 0.0, 0.0
        weight = np.exp(log - evidence)
        mean = (of_size[:, None] * solved[..., 0]).sum(-1)
        variance = (of_size[:, None] * solved[..., 1]).sum(-1)
        size = float((weight * mean).sum())
        sd = float(np.sqrt((weight * (variance + (mean - size) ** 2)).sum()))
        deviation = np.sqrt(variance)
        beyond = ndtr((mean - rope) / deviation) + ndtr((-rope - mean) / deviation)
        return float(evidence), size, sd, float((weight * beyond).sum())


def _prior(scales: Sequence[tuple[float, float]], gpus: int) -> Array:
    """Prior covariances [grid of scales, coefficient, coefficient] of blocks of coefficients, one per GPU."""
    nodes = np.tan(0.5 * np.pi * (np.arange(NODES) + 0.5) / NODES) if gpus > 1 else np.zeros(1)
    grid = list(product(nodes, repeat=len(scales)))
    prior = np.zeros((len(grid), len(scales) * gpus, len(scales) * gpus))
    for b, (common, between) in enumerate(scales):
        block = slice(b * gpus, (b + 1) * gpus)
        tau = np.array([point[b] for point in grid])[:, None, None]
        prior[:, block, block] = common**2 + (between * tau) ** 2 * np.eye(gpus)
    return prior
