"""H2: a mixture of experts, its level under the anchor's floor (a), its dispatch term (b), and its shape (c)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from rooffloor.models.floor.structures import overlap_ms
from rooffloor.validate.estimates.cell_draws import Draws
from rooffloor.validate.estimates.estimate import Estimate, tails, weighted_quantiles
from rooffloor.validate.estimates.grid_axes import GridAxes
from rooffloor.validate.hypotheses import words
from rooffloor.validate.hypotheses.joins import Explained
from rooffloor.validate.hypotheses.level import beside_anchor, level_error, sampled
from rooffloor.validate.hypotheses.result import (
    NEGLIGIBLE,
    REFUTED,
    STATEMENTS,
    SUPPORTED,
    UNDECIDED,
    UNTESTABLE,
    Result,
    not_tested,
    verdict_of,
)
from rooffloor.validate.hypotheses.slope import slope_summary
from rooffloor.validate.study.margins import Margins

type Mask = NDArray[np.bool_]

DETECTABLE = 2.8
"""A term of so many standard errors is found at 5 % (two-sided) with a power of 0.8."""
JOINS = {"added": 1.0, "half overlapped": 0.5, "the longer of the two": 0.0}
"""q of the ways in which T_gpu and a floor H >= 0 may join, for the corner cell."""
UNBOUNDED = 1e3
"""From this sd on of a factor on the dispatch term, the term is not seen at all."""


def h2(draws: Draws, margins: Margins, *, explained: Explained | None = None) -> Result:
    """The test; its verdict is that of the level. `explained` as in `h1`."""
    explained = explained or Explained(draws, margins)
    moes = [m for m in draws.cells.models if draws.classes[m] == "moe"]
    pairs = [(m, g, mask) for m in moes for g, mask in beside_anchor(draws, m)]
    if not pairs:
        return not_tested("H2", "No mixture of experts was measured beside the anchor.", draws.label, margins)
    parts = {
        "a": _part([_level(draws, *pair, margins, explained) for pair in pairs]),
        "b": _part([_dispatch(draws, *pair, margins) for pair in pairs]),
        "c": _part([_shape(draws, *pair, margins, explained) for pair in pairs]),
    }
    for part, say in (("a", words.moe_level), ("b", words.moe_dispatch), ("c", words.moe_shape)):
        parts[part]["sentences"] = [say(row, margins) for row in parts[part]["per_sku"]]
    data = {
        "verdict": parts["a"]["verdict"],
        "statement": STATEMENTS["H2"],
        "sentences": [s for part in parts.values() for s in part["sentences"]],
        "parts": parts,
    }
    return Result("H2", parts["a"]["verdict"], data, draws.label, margins)


def _part(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    order = (REFUTED, UNDECIDED, UNTESTABLE, SUPPORTED, NEGLIGIBLE)
    return {"verdict": min((r["verdict"] for r in rows), key=order.index), "per_sku": list(rows)}


def _level(draws: Draws, model: str, gpu: str, mask: Mask, margins: Margins, explained: Explained) -> dict[str, Any]:
    level = level_error(draws, mask, draws.calibrated_ms)
    gap = draws.floor_ms[:, mask][:, 0] - draws.anchor_floor_ms[:, mask][:, 0]
    share = draws.probability(level < margins.h1_absolute, f"P(residual MAPE < {margins.h1_absolute:g} %)")
    verdict = verdict_of(share.value, margins)
    join = explained.likeliest(model, own_floor=False) if verdict == REFUTED else None
    return {
        "model": model,
        "gpu": gpu,
        "verdict": verdict if join is None else UNDECIDED,
        "joined": join,
        "probability": share.data,
        "level": draws.estimate(level, "expected residual MAPE under the anchor's floor", "percent").data,
        "floor_above_anchor": draws.estimate(gap, "floor of the model minus the anchor's", "ms").data,
    }


def _dispatch(draws: Draws, model: str, gpu: str, mask: Mask, margins: Margins) -> dict[str, Any]:
    term = draws.dispatch_ms[:, mask]
    percent = 100.0 * term / draws.mean_ms[:, mask]
    below = draws.probability(
        percent.max(-1) < margins.dispatch_percent, f"P(term < {margins.dispatch_percent:g} % of every step)"
    )
    # kappa, the factor on the term, from the step's dependence on it beside a free offset.
    w = 1.0 / draws.noise_ms[:, mask] ** 2
    centred = term - (w * term).sum(-1, keepdims=True) / w.sum(-1, keepdims=True)
    sd = 1.0 / np.sqrt(np.maximum((w * centred**2).sum(-1), 1e-300))
    kappa_sd = float(np.exp(draws.weight @ np.log(sd)))
    median = draws.estimate(np.median(term, axis=-1), "median dispatch term", "ms")
    verdict = UNTESTABLE if kappa_sd > 0.5 else verdict_of(below.value, margins)
    return {
        "model": model,
        "gpu": gpu,
        "verdict": NEGLIGIBLE if below.value >= margins.probability else verdict,
        "probability": below.data,
        "term": median.data,
        "kappa_sd": kappa_sd,
        "detectable_ms": kappa_sd * DETECTABLE * median.value if kappa_sd < UNBOUNDED else None,
    }


def _shape(draws: Draws, model: str, gpu: str, mask: Mask, margins: Margins, explained: Explained) -> dict[str, Any]:
    numbers = slope_summary(draws, mask, margins)
    own = level_error(draws, mask, draws.own_calibrated_ms)
    axes = GridAxes.of(draws)
    (batch, context), corner = list(axes.points(mask).items())[-1]
    predicted = axes.take(draws.gpu_ms + draws.own_calibrated_ms, corner)
    y = axes.take(draws.step_ms, corner)
    error = draws.estimate(100.0 * (predicted / y - 1.0), "relative error of the cell, own floor", "percent")
    verdict = numbers["slope_verdict"]
    join = explained.likeliest(model, own_floor=True) if verdict == REFUTED else None
    return {
        "model": model,
        "gpu": gpu,
        "verdict": verdict if join is None else UNDECIDED,
        "joined": join,
        **numbers,
        "own_level": draws.estimate(own, "expected MAPE under its own floor", "percent").data,
        "corner": {
            "batch": batch,
            "context": context,
            "error": error.data,
            "joined": {name: _joined_corner(draws, mask, corner[axes.member], q) for name, q in JOINS.items()},
        },
    }


def _joined_corner(draws: Draws, mask: Mask, corner: NDArray[np.int64], q: float) -> dict[str, Any]:
    """Relative error of the corner cell under a floor H >= 0 refitted to the pair's cells, and its predictive p.

    `corner` is the cell's column in each draw. H is the relative least-squares one of each data set (or of 100 draws of
    T_gpu); the predictive p is two-sided, with the spread that this floor leaves over all cells.
    """
    rows, mass, T, y = sampled(draws, mask)
    at = np.searchsorted(np.flatnonzero(mask), corner[rows])[:, None]
    H = np.linspace(0.0, 1.2, 241)[:, None, None] * y.max(-1)[:, None]
    errors = overlap_ms(T, H, q) / y - 1.0  # [H, row, cell]
    best = (errors**2).sum(-1).argmin(0)
    chosen = np.take_along_axis(errors, best[None, :, None], 0)[0]
    spread = np.sqrt((chosen**2).sum(-1) / max(chosen.shape[-1] - 1, 1))
    cell = np.take_along_axis(chosen, at, 1)[:, 0]
    p = 2.0 * ndtr(-np.abs(cell) / np.maximum(spread, 1e-9))
    percent = 100.0 * cell
    low, high = weighted_quantiles(percent, mass, tails(90))
    mean = float(mass @ percent)
    mcse = float(np.sqrt(mass**2 @ (percent - mean) ** 2))
    of = Estimate(mean, "relative error of the cell, floor H >= 0", "percent", {"90": (low, high)}, mcse)
    return {"q": q, "error": of.data, "p": float(mass @ p)}
