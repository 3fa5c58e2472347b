"""Does a latency model transfer to a new family? A verdict per GPU and overall, with what it cannot tell apart.

The anchor's calibration predicts each cell of the family as T_gpu + the anchor's floor. What the family's steps are off
by is explained in turn by nothing, by a floor of its own, by an error of one part of T_gpu (the directions of
`validate.absorption`), or by both. Floors and errors may differ between GPUs around a common value, with a half-Cauchy
scale. Every explanation is linear with normal coefficients, so that its evidence is exact given the scales, which are
summed out on a grid; the posterior weights of the explanations, and of sizes beyond the margins, make the verdict.

Which explanations cannot be told apart is left to the evidence: on one GPU a floor and an error of the weights'
bandwidth are the same column (DESIGN section 5), on several the latter is proportional to each GPU's weight time.
Under a free floor the slope sees only what varies over the grid; the pattern of levels over GPUs tells the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

from models.cells import Cells
from models.gpus import GpuSpec
from models.kernels import Experts, stack_work
from models.priors import DEFAULT_PRIORS
from models.quadrature import quadrature
from models.roofline import Efficiency, work_ms
from models.shapes import ModelShapes
from validate.absorption import directions
from validate.draws import IMPUTED, LEVELS, OWN_NOISE, SIMULATED, Draws, Estimate, tails, with_own_noise
from validate.errors import InputError
from validate.hypotheses import OFFSET_SD_MS, PRIOR_SCALES, SLOPE_SD, by_unit, level_error, pooled_below, say, slope
from validate.power import ANCHOR, CONSTANTS, FAMILY, GRID, NOISE, draws_of
from validate.study import Margins

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

type Array = NDArray[np.float64]
type Mask = NDArray[np.bool_]

TRANSFERS, RECALIBRATE, MISMATCH = "transfers", "recalibrate the floor", "shape mismatch"
INDISTINGUISHABLE, UNDECIDED = "floor or weight bandwidth, indistinguishable", "undecided"
VERDICTS = (TRANSFERS, RECALIBRATE, MISMATCH, INDISTINGUISHABLE, UNDECIDED)

WHOLE, WEIGHTS = "whole", "weights"
MECHANISMS = {
    WHOLE: "T_gpu as a whole (all DRAM efficiencies alike)",
    WEIGHTS: "the weights' bandwidth (eta_bw)",
    "kv": "the KV cache's bandwidth or width (eta_fa)",
    "l_half": "attention's half length (L_half)",
    "query_heads": "attention bound by its query heads, or taken to be",
    "missing_batch_kernel": "a missing kernel whose time grows with the batch",
    "eta_tc": "the tensor-core ceiling (eta_tc)",
    "experts": "expert traffic under another choice of streamed experts",
}
"""Errors of T_gpu that are tried, in the order in which they are named where several have one column."""

ANCHORS, OWN = "the anchor's", "its own"
FLOOR_BETWEEN_MS = DEFAULT_PRIORS.floor_sd_pair_ms
"""Scale of the half-Cauchy between-GPU sd of the floor less the anchor's, ms."""
BETWEEN, BETWEEN_SIZE = 1.25, 0.5
"""Scales of the half-Cauchy between-GPU sds of levels (that of H1) and of slopes and errors, in margins."""
SUSPECT = 0.2
"""With more than this probability of an error that the slope shows, the level alone makes no verdict."""
NODES = 6
"""Points of each half-Cauchy, at equally likely places."""
ALIKE = 0.995
"""Errors whose columns have at least this cos² are one explanation."""


@dataclass(frozen=True)
class Verdict:
    """What the measurements say of a family's transfer.

    Attributes
    ----------
    model : str
    verdict : str
        One of `VERDICTS`.
    probabilities : mapping of verdict to float
        Posterior probability of each verdict's statement. "floor or weight bandwidth" contains "recalibrate the floor"
        and shares mass with "shape mismatch": it says that the level is off and that no other error of T_gpu alone does
        it, whatever the slope; "undecided" is what the first three leave: a level off by an error within the margin, or
        one that may be within its margins or not.
    per_sku : list of dict
        The same by GPU (from its cells alone), with the level, the slope and the floor.
    sentences : tuple of str
    data : dict
        Everything, ready for JSON.
    """

    model: str
    verdict: str
    probabilities: Mapping[str, float]
    per_sku: list[dict[str, Any]]
    sentences: tuple[str, ...]
    data: dict[str, Any]

    def __repr__(self) -> str:
        gpus = ", ".join(f"{row['gpu']}: {row['verdict']}" for row in self.per_sku)
        return f"Verdict({self.model}: {self.verdict}; {gpus})"

    @property
    def summary(self) -> str:
        """The verdict and its sentences, as text."""
        return "\n".join([f"{self.model}: {self.verdict}", *self.sentences])

    def to_frame(self) -> "pd.DataFrame":
        """One row per GPU and one for all: verdict, probabilities, slope and floor with their 90 % intervals."""
        import pandas as pd

        rows = []
        for row in (*self.per_sku, self.data["overall"]):
            flat = {"gpu": row["gpu"], "verdict": row["verdict"]} | {
                f"P({v})": row["probabilities"][v] for v in VERDICTS
            }
            for name in ("slope", "floor_above_anchor", "difference", "level"):
                estimate = row.get(name)
                low, high = estimate["intervals"]["90"] if estimate else (None, None)
                flat |= {name: estimate["value"] if estimate else None, f"{name}_low": low, f"{name}_high": high}
            rows.append(flat | {"mechanism": row["mechanism"]["name"] if row["mechanism"] else None})
        return pd.DataFrame(rows)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """The probabilities of the verdicts, by GPU and overall."""
        from matplotlib.figure import Figure

        axes = Figure(figsize=(10, 3.5), layout="constrained").subplots() if ax is None else ax
        rows = [*self.per_sku, self.data["overall"]]
        shown = VERDICTS[:-1]
        height = 0.8 / len(shown)
        for k, verdict in enumerate(shown):
            at = [i + (k - 0.5 * (len(shown) - 1)) * height for i in range(len(rows))]
            axes.barh(at, [row["probabilities"][verdict] for row in rows], 0.9 * height, label=verdict)
        axes.axvline(self.data["margins"]["probability"], color="0.4", linewidth=1, linestyle="--")
        axes.set_yticks(range(len(rows)), [f"{row['gpu']}\n{row['verdict']}" for row in rows])
        axes.invert_yaxis()
        axes.set(xlim=(0, 1), xlabel="posterior probability", title=f"{self.model}: {self.verdict}")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return axes


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
    """

    floor: str
    error: str | None
    weight: float
    size: float
    size_sd: float
    beyond: float

    @property
    def data(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("floor", "error", "weight", "size", "size_sd", "beyond")}


# ---- what is explained ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Gap:
    """The family's steps less what the anchor's calibration predicts, on some GPUs.

    Attributes
    ----------
    gap_ms : array [cell]
        y - E(T_gpu + anchor's floor), ms.
    known : array [cell, cell]
        Posterior covariance of T_gpu + anchor's floor, ms².
    scale_ms : array [cell]
        sd of a step at a relative noise of 1, ms; a GPU that leaves more over than the others has a larger one.
    noise : (median, sd of the logarithm)
        Prior of the relative noise: the anchor's, give or take what models differ by.
    sku : int array [cell]
    columns : mapping of error to array [cell]
        Change of the cells per unit of its size, ms.
    names : mapping of error to tuple of str
        The errors with that column, itself first.
    """

    gap_ms: Array
    known: Array
    scale_ms: Array
    noise: tuple[float, float]
    sku: NDArray[np.int64]
    columns: Mapping[str, Array]
    names: Mapping[str, tuple[str, ...]]

    def where(self, keep: Mask) -> "Gap":
        """The same for some of the cells."""
        columns = {name: column[keep] for name, column in self.columns.items()}
        codes = np.unique(self.sku[keep], return_inverse=True)[1]
        return Gap(
            self.gap_ms[keep],
            self.known[np.ix_(keep, keep)],
            self.scale_ms[keep],
            self.noise,
            codes,
            columns,
            self.names,
        )

    @cached_property
    def members(self) -> Array:
        """Which cell is on which GPU, [cell, gpu]."""
        return (self.sku[:, None] == np.arange(self.sku.max() + 1)).astype(float)


def gap(
    draws: Draws,
    model: str,
    masks: Sequence[Mask],
    shapes: ModelShapes | None = None,
    gpus: Mapping[str, GpuSpec] | None = None,
    efficiency: Mapping[str, Efficiency] | None = None,
    experts: Experts = "active",
) -> Gap:
    """What is to be explained: the cells of a family on the GPUs whose masks are given, in their order.

    Parameters as in `judge`.
    """
    order = np.concatenate([np.flatnonzero(mask) for mask in masks])
    sku = np.repeat(np.arange(len(masks)), [int(mask.sum()) for mask in masks])
    weight, y = draws.weight, draws.step_ms[0, order]
    T = weight @ draws.gpu_ms[:, order]
    predicted = draws.gpu_ms[:, order] + draws.anchor_floor_ms[:, order]
    off = predicted - weight @ predicted
    anchor = np.flatnonzero((draws.cells.model == draws.anchor) & np.isin(draws.cells.gpu, draws.cells.gpu[order]))
    relative = np.log(draws.noise_ms[:, anchor] / np.abs(draws.mean_ms[:, anchor])).mean(-1)
    middle = float(weight @ relative)
    noise = float(np.exp(middle)), float(np.sqrt(weight @ (relative - middle) ** 2 + DEFAULT_PRIORS.noise_spread**2))
    fitted, left, freedom = zip(*(_line(T[sku == k], y[sku == k]) for k in range(len(masks))), strict=True)
    common = (OWN_NOISE * noise[0] ** 2 + sum(left)) / (OWN_NOISE + sum(freedom))
    own = [(OWN_NOISE + squares / common) / (OWN_NOISE + free) for squares, free in zip(left, freedom, strict=True)]
    scale = np.concatenate(fitted) * np.sqrt(own)[sku]
    columns = _columns(draws, model, order, sku, T, shapes, gpus or {}, efficiency or {}, experts)
    columns, names = _distinct(columns, 1.0 / scale)
    return Gap(y - weight @ predicted, (weight * off.T) @ off, scale, noise, sku, columns, names)


def _line(T: Array, y: Array) -> tuple[Array, float, int]:
    """Steps on the line through one GPU's cells, relative squares left over, and their degrees of freedom."""
    fitted = y
    design = np.stack([np.ones_like(T), T - T.mean()], -1)
    for _ in range(3):
        coefficients = np.linalg.lstsq(design / fitted[:, None], y / fitted, rcond=1e-9)[0]
        fitted = np.maximum(design @ coefficients, 0.3 * y)
    rank = 1 + int(np.ptp(T) > 1e-9 * T.max())
    return fitted, float((((y - fitted) / fitted) ** 2).sum()), max(len(y) - rank, 0)


def _columns(
    draws: Draws,
    model: str,
    order: NDArray[np.int64],
    sku: NDArray[np.int64],
    T: Array,
    shapes: ModelShapes | None,
    gpus: Mapping[str, GpuSpec],
    efficiency: Mapping[str, Efficiency],
    experts: Experts,
) -> dict[str, Array]:
    """Column of each error, ms: the weights' and the cache's time, and what other errors change.

    Without shapes and without parts of T_gpu, the weights' time is taken to be the least T_gpu on each GPU.
    """
    found = {WHOLE: T}
    parts = {name: draws.weight @ values[:, order] for name, values in draws.parts_ms.items()}
    names = draws.cells.gpu[order]
    batch, context = draws.batch[0, order], draws.context[0, order]
    if shapes is not None and all(gpu in gpus and gpu in efficiency for gpu in names):
        for gpu in dict.fromkeys(names.tolist()):
            at = names == gpu
            told = directions(shapes, gpus[gpu], batch[at], context[at], efficiency[gpu], experts)
            told |= {WEIGHTS: -100.0 * told["eta_bw"], "kv": -100.0 * told["eta_fa"]}
            for name in MECHANISMS:
                if name in told:
                    found.setdefault(name, np.zeros_like(T))[at] = told[name]
    if WEIGHTS in parts:
        found |= {WEIGHTS: parts["weights"], "kv": parts["kv"]}
    if WEIGHTS not in found:
        found[WEIGHTS] = np.array([T[sku == k].min() for k in range(sku.max() + 1)])[sku]
    reference = _within(T, sku)
    for name in [n for n in found if n not in (WHOLE, WEIGHTS)]:
        spread = _within(found[name], sku)
        if spread > 1e-9 * np.abs(found[name]).max() and reference > 0:
            sign = -1.0 if name == "eta_tc" else 1.0
            found[name] = sign * found[name] * reference / spread
        else:
            del found[name]
    return {name: found[name] for name in MECHANISMS if name in found}


def _within(column: Array, sku: NDArray[np.int64]) -> float:
    """Root of the summed squares around each GPU's mean."""
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


def explanations(gap: Gap, rope: float, *, spread: float = 1.0) -> list[Explanation]:
    """Posterior weights of all explanations, and how large an error each allows.

    Parameters
    ----------
    gap : Gap
    rope : float
        Sizes within +- this are as good as 0.
    spread : float
        Factor on the prior sds of floors and errors.

    Returns
    -------
    list of Explanation
        Their weights sum to 1.

    Notes
    -----
    The floor is the anchor's or its own, with equal prior weight; T_gpu is right with prior weight 1/2, and the errors
    share the other half; on one GPU a floor of its own and an error of the weights together are no explanation, since
    either does what both would. A floor of its own differs from the anchor's by N(0, `OFFSET_SD_MS`), and between GPUs
    with a half-Cauchy(`FLOOR_BETWEEN_MS`) sd; the size of an error is N(0, `SLOPE_SD`), and half-Cauchy(rope / 2).
    """
    told = _Told.of(gap)
    found = []
    for own, error in product((False, True), (None, *gap.columns)):
        if own and error == WEIGHTS and told.gpus == 1:
            continue
        prior = 0.5 * (0.5 if error is None else 0.5 / len(gap.columns))
        found.append((OWN if own else ANCHORS, error, np.log(prior), *told.fit(own, error, rope, spread)))
    total = logsumexp([prior + evidence for _, _, prior, evidence, *_ in found])
    return [
        Explanation(floor, error, float(np.exp(prior + evidence - total)), size, sd, beyond)
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
        sizes = [gap.members, *(gap.members * column[:, None] for column in gap.columns.values())]
        table = np.concatenate([gap.gap_ms[:, None], *sizes], -1)
        z = np.linspace(-4.0, 6.0, 61)  # of the logarithm's sd: misfits need a noise far above the anchor's
        sigma = median * np.exp(sd * z)
        size, axes = np.linalg.eigh(gap.known / np.outer(gap.scale_ms, gap.scale_ms))
        white = axes.T @ (table / gap.scale_ms[:, None])
        variance = sigma[:, None] ** 2 + size.clip(0.0)
        gram = np.einsum("ci,sc,cj->sij", white, 1.0 / variance, white)
        log_noise = -0.5 * z**2 + np.log((z[1] - z[0]) / np.sqrt(2 * np.pi))
        log_noise = log_noise - 0.5 * np.log(2 * np.pi * variance).sum(-1) - np.log(gap.scale_ms).sum()
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


# ---- the verdict ------------------------------------------------------------------------------------------------


def judge(
    draws: Draws,
    margins: Margins,
    model: str,
    *,
    shapes: ModelShapes | None = None,
    gpus: Mapping[str, GpuSpec] | None = None,
    efficiency: Mapping[str, Efficiency] | None = None,
    experts: Experts = "active",
) -> Verdict:
    """Say per GPU and overall whether the anchor's calibration transfers to a family.

    Parameters
    ----------
    draws : Draws
        Of measured cells. T_gpu should be the anchor's (treatment "cut" or fixed constants): where the family's cells
        took part in the constants, they have moved T_gpu towards themselves.
    margins : Margins
    model : str
        The family, as named in `draws`.
    shapes : ModelShapes, optional
        Of the family; with `gpus` and `efficiency` (numbers, see `absorption.mean_efficiency`), by the names of GPUs in
        `draws`, more errors of T_gpu are tried and named.
    experts : {"active", "distinct", "balanced"}
        As T_gpu was computed.

    Returns
    -------
    Verdict

    Raises
    ------
    InputError
        The cells are imputed, or the family was measured on no GPU on which the anchor was.
    """
    if draws.label == IMPUTED:
        raise InputError("a verdict on a family needs measured cells, not imputed ones")
    masks = {g: mask for m, g, mask in draws.pairs() if m == model and draws.has_anchor(mask)}
    if model == draws.anchor or not masks:
        known = ", ".join(m for m in draws.cells.models if m != draws.anchor) or "none"
        raise InputError(
            f"{model!r} cannot be judged: it needs cells on a GPU on which {draws.anchor} was measured too; families "
            f"in the data: {known}"
        )
    found = list(masks.values())
    whole = gap(draws, model, found, shapes, gpus, efficiency, experts)
    levels = _Levels.of(draws, masks)
    rows = []
    for k, (gpu, mask) in enumerate(masks.items()):
        row = _judged(draws, margins, gpu, [mask], whole.where(whole.sku == k), levels.where([k]))
        rows.append(row | {"sentence": f"{gpu}: {_words(row, margins)}"})
    overall = _judged(draws, margins, "all", found, whole, levels)
    split = [row["gpu"] for row in rows if row["verdict"] == MISMATCH]
    if split and overall["verdict"] in (TRANSFERS, RECALIBRATE, INDISTINGUISHABLE):
        overall |= {"verdict": UNDECIDED, "undecided": f"slope: a shape mismatch on {', '.join(split)} alone"}
    opening = f"{model} on {' and '.join(masks)}: {_words(overall, margins)}"
    each = [row["sentence"] for row in rows] if len(rows) > 1 else []
    sentences = (opening, *each, *_notes(whole, overall))
    data = {
        "model": model,
        "anchor": draws.anchor,
        "verdict": overall["verdict"],
        "probabilities": overall["probabilities"],
        "overall": overall,
        "per_sku": rows,
        "sentences": list(sentences),
        "label": draws.label,
        "margins": {name: getattr(margins, name) for name in MARGINS_USED},
    }
    return Verdict(model, overall["verdict"], overall["probabilities"], rows, sentences, data)


MARGINS_USED = ("h1_points", "h1_absolute", "slope_rope", "probability", "label")


@dataclass(frozen=True, eq=False)
class _Levels:
    """MAPE under the anchor's floor, percent; the same less the anchor's; floor less the anchor's, ms: [draw, gpu]."""

    level: Array
    less: Array
    floor_ms: Array

    @classmethod
    def of(cls, draws: Draws, masks: Mapping[str, Mask]) -> "_Levels":
        level = np.stack([level_error(draws, mask, draws.calibrated_ms) for mask in masks.values()], -1)
        anchors = [level_error(draws, draws.mask(draws.anchor, gpu), draws.calibrated_ms) for gpu in masks]
        floors = [draws.floor_ms[:, mask][:, 0] - draws.anchor_floor_ms[:, mask][:, 0] for mask in masks.values()]
        return cls(level, level - np.stack(anchors, -1), np.stack(floors, -1))

    def where(self, gpus: list[int]) -> "_Levels":
        return _Levels(self.level[:, gpus], self.less[:, gpus], self.floor_ms[:, gpus])


def _judged(
    draws: Draws, margins: Margins, gpu: str, masks: Sequence[Mask], gap: Gap, levels: _Levels
) -> dict[str, Any]:
    """What the cells of some GPUs say together."""
    exceeds, above = levels.less >= margins.h1_points, levels.level >= margins.h1_absolute
    better = _holds(draws, levels.less, margins.h1_points, margins)
    good = _holds(draws, levels.level, margins.h1_absolute, margins)
    off = float(draws.weight @ (exceeds | above).any(-1))
    told = [explanations(gap, margins.slope_rope, spread=spread) for spread in PRIOR_SCALES.values()]
    seen = _slope_sd(draws, masks) < 0.5 * SLOPE_SD
    stated, *others = (_decided(found, min(better, good), off, seen, margins) for found in told)
    mean = ", mean over GPUs" if len(masks) > 1 else ""
    return {
        "gpu": gpu,
        "cells": len(gap.sku),
        **stated,
        "doubled_priors": {name: others[0][name] for name in ("verdict", "probabilities")},
        "difference": draws.estimate(
            levels.less.mean(-1), f"expected residual MAPE of the family minus that of the anchor{mean}", "points"
        ).data,
        "level": draws.estimate(
            levels.level.mean(-1), f"expected residual MAPE under the anchor's floor{mean}", "percent"
        ).data,
        "better": Estimate(better, f"P(difference < {margins.h1_points:g} points){mean}", "probability", {}).data,
        "good": Estimate(good, f"P(residual MAPE < {margins.h1_absolute:g} %){mean}", "probability", {}).data,
        **pooled_slope(draws, masks, margins),
        "floor_above_anchor": draws.estimate(
            levels.floor_ms.mean(-1), f"floor of the family minus the anchor's{mean}", "ms"
        ).data,
        "weights_ms": float(gap.columns[WEIGHTS].mean()),
    }


def _holds(draws: Draws, values: Array, margin: float, margins: Margins) -> float:
    """P(values [draw, gpu] below a margin): on one GPU; of several, their mean over GPUs like these, as in H1."""
    if values.shape[-1] == 1:
        return float(draws.weight @ (values[:, 0] < margin))
    means, sds, mass = by_unit(draws, values)
    return float(mass @ pooled_below(means, sds, margin, BETWEEN * margins.h1_points))


def _decided(found: Sequence[Explanation], holds: float, off: float, seen: bool, margins: Margins) -> dict[str, Any]:
    """Probabilities of the statements and the verdict.

    Parameters
    ----------
    holds, off : float
        P(the level under the anchor's floor holds, on average over GPUs like these), P(it fails on one of these). Given
        the cells they depend little on the explanation, so that probabilities multiply.
    seen : bool
        Whether the cells narrow the slope.
    """
    beyond = sum(e.weight * e.beyond for e in found)
    weights = sum(e.weight for e in found if e.error == WEIGHTS)
    slope_beyond = sum(e.weight * e.beyond for e in found if e.error != WEIGHTS)
    own = sum(e.weight * (1.0 - e.beyond) for e in found if e.floor == OWN)
    by_level = sum(e.weight for e in found if e.floor == OWN or e.error == WEIGHTS)
    probabilities = {
        TRANSFERS: (1.0 - beyond) * min(holds, 1.0 - off),
        RECALIBRATE: own * off,
        MISMATCH: beyond,
        INDISTINGUISHABLE: by_level * off,
    }
    probabilities = {name: min(max(p, 0.0), 1.0) for name, p in probabilities.items()}  # sums of weights round
    probabilities[UNDECIDED] = max(0.0, 1.0 - sum(probabilities[v] for v in (TRANSFERS, RECALIBRATE, MISMATCH)))
    reached = [v for v in VERDICTS[:-1] if probabilities[v] >= margins.probability]
    if not seen:  # then P(no error) is the prior's
        reached = [v for v in reached if v == MISMATCH]
    if reached == [INDISTINGUISHABLE] and (slope_beyond > SUSPECT or weights < 1.0 - margins.probability):
        reached = []
    verdict = reached[0] if reached else UNDECIDED
    errors = {e.error: sum(f.weight * f.beyond for f in found if f.error == e.error) for e in found if e.error}
    best = max(errors, key=lambda name: errors[name])
    return {
        "verdict": verdict,
        "undecided": (_open(beyond, errors, holds, off, margins) if seen else UNSEEN) if verdict == UNDECIDED else None,
        "probabilities": probabilities,
        "level_holds": holds,
        "level_off": off,
        "mechanism": _mechanism(found, best, errors[best] / beyond) if beyond > 0.5 else None,
        "floor_or_weights": {
            "floor": sum(e.weight for e in found if e.floor == OWN and e.error != WEIGHTS),
            "weights": weights,
        },
        "explanations": [e.data for e in sorted(found, key=lambda e: -e.weight)],
    }


UNSEEN = "slope: T_gpu varies too little over the cells"


def _open(beyond: float, errors: Mapping[str, float], holds: float, off: float, margins: Margins) -> str:
    """What an undecided verdict leaves open."""
    if max(beyond, 1.0 - beyond) < margins.probability:
        by_weights = errors.get(WEIGHTS, 0.0) > 0.5 * beyond
        return "level: a floor or the weights' bandwidth" if by_weights else "slope"
    if max(min(holds, 1.0 - off), off) < margins.probability:
        return "level: within the margins or not"
    return "level: another floor, or an error of T_gpu within the margin"


def _mechanism(found: Sequence[Explanation], name: str, weight: float) -> dict[str, Any]:
    """The error with most posterior weight among those beyond the margin."""
    mine = [e for e in found if e.error == name]
    total = sum(e.weight for e in mine)
    size = sum(e.weight * e.size for e in mine) / total
    sd = np.sqrt(sum(e.weight * (e.size_sd**2 + (e.size - size) ** 2) for e in mine) / total)
    return {"name": name, "label": MECHANISMS[name], "weight": weight, "size": size, "size_sd": float(sd)}


def _slope_sd(draws: Draws, masks: Sequence[Mask]) -> float:
    """sd of a slope common to the GPUs beside free floors; infinite where T_gpu does not vary."""
    information = sum(1.0 / slope(draws, mask)[1] ** 2 for mask in masks)
    with np.errstate(divide="ignore"):
        return float(1.0 / np.sqrt(draws.weight @ information))


def pooled_slope(draws: Draws, masks: Sequence[Mask], margins: Margins) -> dict[str, Any]:
    """Slope of the step on T_gpu with a free floor on each GPU: its mean over GPUs like these, and its place.

    The between-GPU sd is half-Cauchy(`margins.slope_rope` / 2), the mean flat (`hypotheses.pooled_below`); on one GPU
    it is that GPU's slope. None where T_gpu does not vary. Describes; the verdict weighs the level in as well.
    """
    rows = np.linspace(0, len(draws.weight) - 1, min(50, len(draws.weight))).astype(int)
    told = [slope(draws, mask) for mask in masks]
    means, sds = (np.stack([one[k][rows] for one in told], -1) for k in (0, 1))
    seen = np.isfinite(sds).all(0)
    if not seen.any():
        return {"slope": None, "slope_in_rope": None}
    means, sds, weight = means[:, seen], sds[:, seen], draws.weight[rows] / draws.weight[rows].sum()
    scale = BETWEEN_SIZE * max(margins.slope_rope, 0.01)

    def below(at: Array) -> Array:
        if means.shape[-1] == 1:
            return np.asarray(weight @ ndtr((at - means) / sds))
        return np.array([weight @ pooled_below(means, sds, float(a), scale) for a in at])

    centre, reach = float(weight @ means.mean(-1)), 6.0 * float(np.sqrt((sds**2).mean()) + means.std())
    grid = centre + reach * np.linspace(-1.0, 1.0, 121)
    cdf = below(grid)
    probabilities = np.diff(cdf, prepend=0.0)
    middle = float((grid * probabilities).sum() / probabilities.sum())
    ends = {level: np.interp(tails(level), cdf, grid).tolist() for level in LEVELS}
    intervals = {str(level): (pair[0], pair[1]) for level, pair in ends.items()}
    low, high = below(np.array([1.0 - margins.slope_rope, 1.0 + margins.slope_rope]))
    estimate = Estimate(middle, "slope of y on T_gpu with a free floor, mean over GPUs", "1", intervals)
    return {"slope": estimate.data, "slope_in_rope": float(high - low)}


# ---- words ------------------------------------------------------------------------------------------------------


def _words(row: Mapping[str, Any], margins: Margins) -> str:
    p = row["probabilities"]
    verdict = row["verdict"]
    told = [
        verdict
        + (f" ({row['undecided']})" if row["undecided"] else "")
        + f"; P(transfers) {say(p[TRANSFERS])}, P(another floor) {say(p[RECALIBRATE])}, P(an error of T_gpu beyond "
        f"{100 * margins.slope_rope:g} %) {say(p[MISMATCH])}"
    ]
    if row["slope"] is not None:
        told.append(f"slope of the step on T_gpu with a free floor {Estimate(**row['slope'])}")
    if verdict in (RECALIBRATE, INDISTINGUISHABLE):
        told.append(f"new floor minus the anchor's {Estimate(**row['floor_above_anchor'])} ms")
    if verdict == INDISTINGUISHABLE:
        shares = row["floor_or_weights"]
        told.append(
            f"a floor has a posterior weight of {say(shares['floor'])}, the weights' bandwidth "
            f"{say(shares['weights'])}: the former may be no more than the latter's image"
        )
    cause = row["mechanism"]
    if cause is not None:
        told.append(
            f"best explained by an error of {cause['label']}: {cause['size']:+.2f} +- {cause['size_sd']:.2f}, with "
            f"{say(cause['weight'])} of the weight of all errors beyond the margin"
        )
    told.append(f"MAPE under the anchor's floor {Estimate(**row['level'])} % (90 % intervals)")
    return "; ".join(told) + "."


def _notes(gap: Gap, overall: Mapping[str, Any]) -> list[str]:
    """What these cells cannot tell, and what hangs on the prior, in words."""
    notes = []
    doubled = overall["doubled_priors"]["verdict"]
    if doubled != overall["verdict"]:
        notes.append(f"With twice the prior sds of floors and errors all GPUs together would say: {doubled}.")
    for name, others in gap.names.items():
        if len(others) > 1:
            same = ", ".join(MECHANISMS[other] for other in others[1:])
            notes.append(f"These cells cannot tell an error of {MECHANISMS[name]} from: {same}.")
    if gap.members.shape[1] == 1:
        notes.append("One GPU cannot tell a floor from an error of the weights' bandwidth; several can.")
    return notes


# ---- planted families -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planted:
    """What a simulated family does, beside an anchor whose calibration is right.

    Attributes
    ----------
    model : str
    gpus : tuple of str
    grid : tuple of (batch, context)
    whole, weights, kv : float
        True time of every DRAM-bound kernel, of the weights, of the cache read, over what T_gpu says.
    floor_ms : float
        The family's floor less the anchor's, which is uniform in 2 to 6 ms on each GPU.
    on : tuple of str
        GPUs on which this is so; empty: on all.
    noise : float
        Relative sd of a step.
    """

    model: str = FAMILY
    gpus: tuple[str, ...] = ("H100", "H200", "A100-40GB")
    grid: tuple[tuple[int, int], ...] = GRID
    whole: float = 1.0
    weights: float = 1.0
    kv: float = 1.0
    floor_ms: float = 0.0
    on: tuple[str, ...] = ()
    noise: float = NOISE


def planted(truth: Planted, rng: np.random.Generator, sets: int, *, draws: int = 300) -> list[Draws]:
    """Posteriors (by quadrature, constants known) of data sets in which the truth holds.

    Returns
    -------
    list of Draws
        With the constants of `power.CONSTANTS`, which are the anchor's true ones.
    """
    rows = [(m, g, b, c) for m in (ANCHOR, truth.model) for g in truth.gpus for b, c in truth.grid]
    cells = Cells.from_columns(*zip(*rows, strict=True))
    work = stack_work(cells)
    said = work_ms(work, CONSTANTS)
    slower = Efficiency(
        eta_bw=CONSTANTS.eta_bw / (truth.whole * truth.weights),
        eta_fa=CONSTANTS.eta_fa / (truth.whole * truth.kv),
        eta_tc=CONSTANTS.eta_tc,
        l_half=CONSTANTS.l_half,
    )
    wrong = (cells.model == truth.model) & np.isin(cells.gpu, truth.on or truth.gpus)
    true = np.where(wrong, work_ms(work, slower), said)
    floor = rng.uniform(2.0, 6.0, (sets, len(truth.gpus)))[:, cells.gpu_code] + truth.floor_ms * wrong
    steps = (true + floor) * (1.0 + truth.noise * rng.standard_normal((sets, len(cells))))
    found = quadrature(cells, said, steps, rng, draws=draws)
    return [with_own_noise(draws_of(cells, said, y, found, n, ANCHOR, SIMULATED), rng) for n, y in enumerate(steps)]
