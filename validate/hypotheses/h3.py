"""H3: smaller dense models. Does an offset, a scale, or both explain their distance from the anchor's prediction?"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from rooffloor.models.specs.shapes import load as load_shapes
from rooffloor.validate.estimates.cell_draws import Draws
from rooffloor.validate.hypotheses import words
from rooffloor.validate.hypotheses.joins import Explained
from rooffloor.validate.hypotheses.level import (
    FEW_CELLS,
    beside_anchor,
    few_cells_error,
    left_out_error,
    level_error,
    long_context_error,
    sampled,
)
from rooffloor.validate.hypotheses.result import (
    NOT_TESTED,
    REFUTED,
    STATEMENTS,
    SUPPORTED,
    UNDECIDED,
    Result,
    not_tested,
    weakest,
)
from rooffloor.validate.hypotheses.slope import collinearity, offset_slope, pooled_slope, slope_summary
from rooffloor.validate.study.margins import Margins

type Array = NDArray[np.float64]
type Mask = NDArray[np.bool_]

EXPLANATIONS = ("offset only", "scale only", "both")

PRIOR_SCALES = {"as stated": 1.0, "doubled": 2.0}
OFFSET_SD_MS, SLOPE_SD = 5.0, 0.5
"""Prior sd of a floor around the anchor's, and of a slope around 1, in the comparison of explanations."""


def h3(draws: Draws, margins: Margins, *, explained: Explained | None = None) -> Result:
    """The test; its verdict is the weakest of the models that diverge. `explained` as in `h1`."""
    explained = explained or Explained(draws, margins)
    anchor = _parameters(draws.anchor)
    smaller = [
        m
        for m in draws.cells.models
        if draws.classes[m] not in ("moe", draws.classes[draws.anchor])
        and (anchor is None or (own := _parameters(m)) is None or own < anchor)
    ]
    found = [_model(draws, m, masks, margins, explained) for m in smaller if (masks := beside_anchor(draws, m, 2))]
    if not found:
        why = "No smaller dense model of another class was measured in two cells beside the anchor."
        return not_tested("H3", why, draws.label, margins)
    pooled, rows = [model for model, _ in found], [row for _, rows in found for row in rows]
    diverging = {model["verdict"] for model in pooled} - {NOT_TESTED}
    verdict = weakest(diverging) if diverging else NOT_TESTED
    data = {
        "verdict": verdict,
        "statement": STATEMENTS["H3"],
        "sentences": words.divergences(pooled, rows, verdict, margins),
        "pooled": pooled,
        "per_sku": rows,
    }
    return Result("H3", verdict, data, draws.label, margins)


def _model(
    draws: Draws,
    model: str,
    masks: Sequence[tuple[str, Mask]],
    margins: Margins,
    explained: Explained,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One model over the GPUs on which it diverges, and the row of every GPU.

    The shape is judged by the slope pooled over these GPUs: on one alone it is seldom known well enough. It is the
    floor where that slope lies within the ROPE, a factor on all of T_gpu under the anchor's floor does not explain the
    cells, and a floor of the model's own leaves less than the absolute margin; it is not where the slope lies outside,
    unless another join of T_gpu and floor explains the cells with a slope of 1.
    """
    rows = [_divergence(draws, model, gpu, mask, margins) for gpu, mask in masks]
    off = [mask for (_, mask), row in zip(masks, rows, strict=True) if row["diverges"]["value"] >= margins.probability]
    where = [row["gpu"] for row in rows if row["diverges"]["value"] >= margins.probability]
    join: str | None = None
    if any(row["verdict"] == REFUTED for row in rows) or (len(off) > 1 and _judged(draws, off, margins)[0] == REFUTED):
        join = explained.likeliest(model, own_floor=True)
    for row in rows:
        row["verdict"] = UNDECIDED if join is not None and row["verdict"] == REFUTED else row["verdict"]
    if not off:
        return {"model": model, "gpus": where, "verdict": NOT_TESTED}, rows
    verdict, told = _judged(draws, off, margins)
    verdict = UNDECIDED if join is not None and verdict == REFUTED else verdict
    return {"model": model, "gpus": where, "verdict": verdict, "joined": join, **told}, rows


def _judged(draws: Draws, masks: Sequence[Mask], margins: Margins) -> tuple[str, dict[str, Any]]:
    """Verdict on the pairs of one model that diverge, taken together, and its numbers."""
    numbers = pooled_slope(draws, masks, margins)
    left = np.mean([left_out_error(draws, mask) for mask in masks], axis=0)
    recovered = draws.probability(
        left < margins.h1_absolute, f"P(cross-validated MAPE under its own floor < {margins.h1_absolute:g} %)"
    )
    weights = {name: explanation_weights(draws, masks, scale) for name, scale in PRIOR_SCALES.items()}
    inside = 0.0 if numbers["slope_in_rope"] is None else numbers["slope_in_rope"]["value"]
    # A slope within the ROPE is as good as 1: there the floor alone explains.
    shares = {name: w["offset only"] + w["both"] * inside for name, w in weights.items()}
    scaled = max(w["scale only"] for w in weights.values())
    verdict = numbers["slope_verdict"]
    if verdict == SUPPORTED and not (recovered.value >= margins.probability and scaled <= 1.0 - margins.probability):
        verdict = UNDECIDED
    told = {"recovered": recovered.data, **numbers, "weights": weights, "floor_probability": shares}
    return verdict, told


def _parameters(model: str) -> int | None:
    """Parameters of a model of the catalog, None for others."""
    try:
        return load_shapes(model).parameters
    except ValueError:
        return None


def _divergence(draws: Draws, model: str, gpu: str, mask: Mask, margins: Margins) -> dict[str, Any]:
    """One pair; its verdict is that of its cells alone."""
    shared = level_error(draws, mask, draws.calibrated_ms)
    own = left_out_error(draws, mask)
    diverges = draws.probability(
        shared > margins.h1_absolute, f"P(residual MAPE under the anchor's floor > {margins.h1_absolute:g} %)"
    )
    numbers = slope_summary(draws, mask, margins)
    verdict, told = _judged(draws, [mask], margins)
    few = few_cells_error(draws, mask) if mask.sum() > FEW_CELLS else None
    elsewhere = {
        "few": (few, f"MAPE of the rest, floor from {FEW_CELLS} cells"),
        "contexts": (long_context_error(draws, mask), "MAPE at the longest context, floor from shorter ones"),
    }
    gap = draws.floor_ms[:, mask][:, 0] - draws.anchor_floor_ms[:, mask][:, 0]
    return {
        "model": model,
        "gpu": gpu,
        "verdict": verdict if diverges.value >= margins.probability else NOT_TESTED,
        "diverges": diverges.data,
        "recovered": told["recovered"],
        "level": draws.estimate(shared, "expected residual MAPE under the anchor's floor", "percent").data,
        "own_level": draws.estimate(own, "MAPE with its own floor, each cell left out in turn", "percent").data,
        "calibrated_elsewhere": {
            key: None if error is None else draws.estimate(error, what, "percent").data
            for key, (error, what) in elsewhere.items()
        },
        "floor_above_anchor": draws.estimate(gap, "floor of the model minus the anchor's", "ms").data,
        **numbers,
        "weights": told["weights"],
        "floor_probability": told["floor_probability"],
        "cos2": collinearity(draws, mask),
        "offset_slope": offset_slope(draws, mask),
    }


def explanation_weights(draws: Draws, masks: Sequence[Mask], scale: float) -> dict[str, float]:
    """Posterior weights of "offset only", "scale only" and "both" for pairs of one model, equal prior weights.

    Each explains y - T - (anchor's floor) by a free offset (prior sd 5 ms), a free slope (prior sd 0.5), or both, on
    every GPU its own; prior sds times `scale`; noise is relative with sd integrated over a lognormal prior (6 %, log sd
    0.7). Weights are averaged over imputations, or over draws of T_gpu.
    """
    evidence, mass = np.zeros(1), np.ones(1)
    for mask in masks:
        rows, mass, T, y = sampled(draws, mask)
        left = y - T - draws.calibrated_ms[rows][:, mask]
        offset, tilt = np.ones_like(T) * OFFSET_SD_MS * scale, T * SLOPE_SD * scale
        designs = [np.stack(columns, -1) / y[..., None] for columns in ([offset], [tilt], [offset, tilt])]
        evidence = evidence + np.stack([_log_evidence(left / y, design) for design in designs], -1)
    weight = np.exp(evidence - logsumexp(evidence, axis=-1, keepdims=True))
    return dict(zip(EXPLANATIONS, (mass @ weight).tolist(), strict=True))


def _log_evidence(residual: Array, design: Array) -> Array:
    """log p(residual) for residual = design b + noise, b standard normal, noise sd lognormal(6 %, 0.7), integrated.

    residual has shape (draw, cell), design (draw, cell, column).
    """
    z = np.linspace(-7.0, 5.0, 161)  # steps of 5 % in the noise: fine enough for 200 cells
    variance = (0.06 * np.exp(0.7 * z)) ** 2
    size, axes = np.linalg.eigh(np.einsum("dci,dcj->dij", design, design))
    cross = np.einsum("dci,dc,dij->dj", design, residual, axes)
    inner = 1.0 + size[..., None] / variance
    fitted = (cross[..., None] ** 2 / inner).sum(-2) / variance**2
    quadratic = (residual**2).sum(-1)[..., None] / variance - fitted
    log_density = -0.5 * (quadratic + np.log(inner).sum(-2) + design.shape[-2] * np.log(2 * np.pi * variance))
    return np.asarray(logsumexp(log_density - 0.5 * z**2 + np.log((z[1] - z[0]) / np.sqrt(2 * np.pi)), axis=-1))
