"""The slope of steps on T_gpu beside a free offset: 1 where the shape of T_gpu is right."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from rooffloor.validate.estimates.cell_draws import Draws
from rooffloor.validate.estimates.estimate import weighted_quantiles
from rooffloor.validate.hypotheses.level import pool_here
from rooffloor.validate.hypotheses.result import REFUTED, SUPPORTED, UNDECIDED, UNTESTABLE
from rooffloor.validate.study.margins import Margins

type Array = NDArray[np.float64]

UNKNOWN = 0.5
"""A slope with a larger sd is not known at all: a slope of 1 would not show, and no other."""


def slope(draws: Draws, mask: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Slope of y on T_gpu with a free offset, per draw: its mean and sd (`weighted_slope`, flat prior).

    y without what its floor holds beside the part that the pair shares.
    """
    return weighted_slope(draws.gpu_ms[:, mask], draws.pair_ms[:, mask], 1.0 / draws.noise_ms[:, mask] ** 2)


def weighted_slope(T: Array, y: Array, w: Array) -> tuple[Array, Array]:
    """Slope of y on T with a free offset by weighted least squares, and its sd, [..., cell] -> [...].

    The sd is infinite, and the slope 1, where T does not vary over the cells.
    """
    total = w.sum(-1, keepdims=True)
    centred = T - (w * T).sum(-1, keepdims=True) / total
    spread = (w * centred**2).sum(-1)
    flat = spread <= 1e-12 * total[..., 0]
    safe = np.where(flat, 1.0, spread)
    mean = np.where(flat, 1.0, (w * centred * y).sum(-1) / safe)
    return mean, np.where(flat, np.inf, 1.0 / np.sqrt(safe))


def slope_summary(draws: Draws, mask: NDArray[np.bool_], margins: Margins) -> dict[str, Any]:
    """Slope with its interval, its place around the ROPE, how much T_gpu varies over the cells, and a verdict.

    Supported where the slope lies within the ROPE, refuted where it lies below it, or above it, each with the
    margins' probability (a slope that is merely unknown lies outside as a whole, but on neither side); untestable where
    its sd exceeds `UNKNOWN`, and, without numbers, where T_gpu does not vary.
    """
    mean, sd = slope(draws, mask)
    T = draws.gpu_ms[:, mask]
    varying = {"varying_share": float(draws.weight @ ((T.max(-1) - T.min(-1)) / T.max(-1)))}
    if not np.isfinite(sd).all():
        return {"slope": None, "slope_in_rope": None, "slope_verdict": UNTESTABLE, **varying}
    low, high = 1 - margins.slope_rope, 1 + margins.slope_rope
    below, above = ndtr((low - mean) / sd), ndtr((mean - high) / sd)
    drawn = mean + sd * np.random.default_rng(int(mask.sum())).standard_normal(mean.shape)
    return {
        "slope": draws.estimate(drawn, "slope of y on T_gpu with a free offset", "1").data,
        **_placed(draws, drawn, below, above, margins),
        **varying,
    }


BETWEEN = 0.5
"""Scale of the half-Cauchy prior on the sd of slopes between GPUs, in widths of the ROPE."""
POOLED_DRAWS = 600
"""Draws on which slopes are pooled."""


def pooled_slope(draws: Draws, masks: Sequence[NDArray[np.bool_]], margins: Margins) -> dict[str, Any]:
    """Slope over several GPUs together: its mean over these GPUs, its place around the ROPE, and a verdict.

    In each draw the slopes of the GPUs are independent given the constants (which all GPUs share), with a between-GPU
    sd ~ half-Cauchy(`BETWEEN` ROPEs) and a flat mean (`level.pool_here`); on one GPU it is that GPU's slope. Keys and
    verdict as in `slope_summary`; GPUs on which T_gpu does not vary are left out.
    """
    step = max(1, len(draws.weight) // POOLED_DRAWS)
    rows = np.arange(len(draws.weight)) if step == 1 else np.arange(0, len(draws.weight), step)
    some = draws.rows(rows) if draws.weight[rows].sum() > 0 else draws
    told = [slope(some, mask) for mask in masks]
    told = [one for one in told if np.isfinite(one[1]).all()]
    if not told:
        return {"slope": None, "slope_in_rope": None, "slope_verdict": UNTESTABLE}
    means, sds = (np.stack([one[k] for one in told], -1) for k in (0, 1))
    rng = np.random.default_rng(int(sum(mask.sum() for mask in masks)))
    low, high = 1 - margins.slope_rope, 1 + margins.slope_rope
    if means.shape[-1] == 1:
        mean, sd = means[:, 0], sds[:, 0]
        below, above = ndtr((low - mean) / sd), ndtr((mean - high) / sd)
        drawn = mean + sd * rng.standard_normal(mean.shape)
    else:
        pooled = pool_here(means, sds, BETWEEN * max(margins.slope_rope, 0.01))
        below, above, drawn = pooled.below(low), 1.0 - pooled.below(high), pooled.sample(rng)
    return {
        "slope": some.estimate(drawn, "slope of y on T_gpu with a free offset, mean over these GPUs", "1").data,
        **_placed(some, drawn, below, above, margins),
    }


def _placed(draws: Draws, drawn: Array, below: Array, above: Array, margins: Margins) -> dict[str, Any]:
    """P(inside the ROPE) and the verdict, from the probabilities of lying below and above it in each draw."""
    low, high = weighted_quantiles(drawn, draws.weight, (0.16, 0.84))  # an sd on either side
    inside = draws.probability(1.0 - below - above, f"P(slope within 1 +- {margins.slope_rope:g})")
    outside = float(max(draws.weight @ below, draws.weight @ above))
    verdict = SUPPORTED if inside.value >= margins.probability else UNDECIDED
    verdict = verdict if high - low < 2.0 * UNKNOWN else UNTESTABLE
    return {
        "slope_in_rope": inside.data,
        "slope_verdict": REFUTED if outside >= margins.probability else verdict,
    }


def collinearity(draws: Draws, mask: NDArray[np.bool_]) -> float:
    """cos^2 between offset and slope on the pair's cells (1: the two cannot be told apart)."""
    T = draws.gpu_ms[:, mask]
    w = 1.0 / draws.noise_ms[:, mask] ** 2
    return float(draws.weight @ ((w * T).sum(-1) ** 2 / (w.sum(-1) * (w * T**2).sum(-1))))


def offset_slope(draws: Draws, mask: NDArray[np.bool_]) -> dict[str, Any] | None:
    """Joint posterior of a pair's offset and slope by its first two moments; None where T_gpu does not vary.

    y on (1, T_gpu) by weighted least squares with a flat prior in each draw, mixed over draws. The offset is less the
    anchor's floor in the same draw, so that the anchor's prediction lies at (0, 1).

    Returns
    -------
    dict
        `mean` (offset in ms, slope), `covariance` (2 x 2), `cos2` (`collinearity`), `mean_gpu_ms` (mean T_gpu as the
        fit weighs cells: the offset there hardly depends on the slope).
    """
    tilt, sd = slope(draws, mask)
    if not np.isfinite(sd).all():
        return None
    T, y = draws.gpu_ms[:, mask], draws.pair_ms[:, mask]
    w = 1.0 / draws.noise_ms[:, mask] ** 2
    total = w.sum(-1)
    T_mean, y_mean = (w * T).sum(-1) / total, (w * y).sum(-1) / total
    anchors = (draws.anchor_floor_ms - (0.0 if draws.host_ms is None else draws.host_ms))[:, mask][:, 0]
    drawn = np.stack([y_mean - tilt * T_mean - anchors, tilt], -1)
    crossed = -T_mean * sd**2
    own = np.stack([np.stack([1.0 / total + (T_mean * sd) ** 2, crossed], -1), np.stack([crossed, sd**2], -1)], -1)
    mean = draws.weight @ drawn
    apart = drawn - mean
    covariance = np.einsum("d,dij->ij", draws.weight, own + apart[:, :, None] * apart[:, None, :])
    return {
        "mean": mean.tolist(),
        "covariance": covariance.tolist(),
        "cos2": collinearity(draws, mask),
        "mean_gpu_ms": float(draws.weight @ T_mean),
    }
