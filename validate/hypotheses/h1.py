"""H1: same-class dense transfer, per family and GPU and averaged over GPUs; beside it the frequentist tests."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws
from rooffloor.validate.estimates.estimate import Estimate
from rooffloor.validate.hypotheses import words
from rooffloor.validate.hypotheses.frequentist_h1 import dies, school
from rooffloor.validate.hypotheses.joins import Explained
from rooffloor.validate.hypotheses.level import (
    beside_anchor,
    by_unit,
    correlation_by_unit,
    level_error,
    pool,
)
from rooffloor.validate.hypotheses.result import (
    REFUTED,
    STATEMENTS,
    SUPPORTED,
    UNDECIDED,
    Result,
    not_tested,
    verdict_of,
    weakest,
)
from rooffloor.validate.hypotheses.slope import pooled_slope, slope_summary
from rooffloor.validate.study.margins import Margins

type Array = NDArray[np.float64]

SPREAD = 1.25
"""Scale of the half-Cauchy prior on the sd between GPUs, in margins."""


def h1(
    draws: Draws,
    margins: Margins,
    *,
    both_schools: bool = True,
    spread: float = SPREAD,
    explained: Explained | None = None,
) -> Result:
    """The test; `both_schools` adds the frequentist tests, which do not change its verdict.

    `explained` says which other joins of T_gpu and floor explain the cells (default: from these draws).
    """
    explained = explained or Explained(draws, margins)
    own_class = draws.classes[draws.anchor]
    names = [m for m in draws.cells.models if m != draws.anchor and draws.classes[m] == own_class]
    scale = spread * margins.h1_points
    families = [_family(draws, m, margins, both_schools, scale, explained) for m in names if beside_anchor(draws, m)]
    if not families:
        why = f"No model of the anchor's class ({own_class}) was measured beside the anchor."
        return not_tested("H1", why, draws.label, margins)
    for family in families:
        family["sentences"] = words.family(family, margins, scale)
    verdict = weakest({f["verdict"] for f in families})
    data = {
        "verdict": verdict,
        "statement": STATEMENTS["H1"],
        "sentences": [s for f in families for s in f["sentences"]],
        "families": families,
    }
    return Result("H1", verdict, data, draws.label, margins)


def _family(
    draws: Draws, family: str, margins: Margins, both_schools: bool, scale: float, explained: Explained
) -> dict[str, Any]:
    levels, gaps, rows = [], [], []
    for gpu, mask in beside_anchor(draws, family):
        level = level_error(draws, mask, draws.calibrated_ms)
        gap = level - level_error(draws, draws.mask(draws.anchor, gpu), draws.calibrated_ms)
        better = draws.probability(gap < margins.h1_points, f"P(difference < {margins.h1_points:g} points)")
        good = draws.probability(level < margins.h1_absolute, f"P(residual MAPE < {margins.h1_absolute:g} %)")
        what = "expected residual MAPE of the family minus that of the anchor"
        rows.append(
            {
                "gpu": gpu,
                "probability": better.data,
                "absolute_probability": good.data,
                "difference": draws.estimate(gap, what, "points").data,
                "level": draws.estimate(level, "expected residual MAPE under the anchor's floor", "percent").data,
                **slope_summary(draws, mask, margins),
            }
        )
        levels.append(level)
        gaps.append(gap)
    gpus, gap, level = [row["gpu"] for row in rows], np.stack(gaps, -1), np.stack(levels, -1)
    on_average = _mean_below(draws, gap, scale)
    better = _averaged(draws, gap, margins.h1_points, scale, f"P(mean difference < {margins.h1_points:g} points)")
    good = _averaged(draws, level, margins.h1_absolute, scale, f"P(mean residual MAPE < {margins.h1_absolute:g} %)")
    verdict = verdict_of(min(better.value, good.value), margins)
    join = explained.likeliest(family, own_floor=False) if verdict == REFUTED else None
    shape = pooled_slope(draws, [mask for _, mask in beside_anchor(draws, family)], margins)
    if verdict == SUPPORTED and shape["slope_verdict"] == REFUTED:
        verdict = UNDECIDED  # the level holds, and yet the part of T_gpu that varies does not transfer
    joint = draws.probability((gap < margins.h1_points).all(-1), f"P(difference < {margins.h1_points:g} on every GPU)")
    curve = [
        {"margin": m, "probability": on_average(m)}
        | {f"on {g}": float(draws.weight @ (gap[:, k] < m)) for k, g in enumerate(gpus)}
        for m in np.linspace(0.0, 5.0, 21).tolist()
    ]
    return {
        "family": family,
        "verdict": verdict if join is None else UNDECIDED,
        "joined": join,
        "probability": better.data,
        "absolute_probability": good.data,
        "difference": draws.estimate(gap.mean(-1), "the same, mean over GPUs", "points").data,
        **shape,
        "per_sku": rows,
        "joint": joint.data,
        "by_die": _by_die(draws, gap, gpus, margins, scale),
        "frequentist": school(draws, family, gpus, margins) if both_schools else None,
        "margins": curve,
    }


def _mean_below(
    draws: Draws, values: Array, scale: float, keep: NDArray[np.bool_] | None = None
) -> Callable[[float], float]:
    """P(mean of values (draw, gpu) over GPUs like these below a margin), as a function of the margin.

    Constants of cells at hand are uncertain for all GPUs alike, so that their errors move together; those of an
    imputation are known.
    """
    means, sds, mass = by_unit(draws, values, keep)
    alone = draws.label == IMPUTED or values.shape[-1] < 2
    together = None if alone else correlation_by_unit(draws, values, keep)
    pooled = pool(means, sds, scale, together)
    return lambda margin: float(mass @ pooled.below(margin))


GROUPS = 20
"""Groups of units that are left out in turn for the Monte Carlo error of a probability over GPUs."""


def _averaged(draws: Draws, values: Array, margin: float, scale: float, of: str) -> Estimate:
    """P(mean of values (draw, gpu) over GPUs like these below a margin), with its Monte Carlo error.

    The error is a jackknife over groups of units: of a cut, the few draws of the constants behind all draws.
    """
    units = np.unique(draws.unit)
    count, error = min(GROUPS, len(units)), float("nan")
    if count > 1:
        group = np.searchsorted(units, draws.unit) * count // len(units)
        kept = [g for g in range(count) if draws.weight[group != g].sum() > 0]
        without = [_mean_below(draws, values, scale, group != g)(margin) for g in kept]
        error = float(np.sqrt((len(kept) - 1) * np.var(without)))
    return Estimate(_mean_below(draws, values, scale)(margin), of, "probability", {}, error)


def _by_die(draws: Draws, gap: Array, gpus: Sequence[str], margins: Margins, scale: float) -> float | None:
    """P(mean difference below the margin) with the GPUs of one die averaged first; None where each has its own."""
    die = np.array(list(dies(gpus).values()))
    if not 1 < len(set(die)) < len(gpus):
        return None
    by_die = np.stack([gap[:, die == d].mean(-1) for d in dict.fromkeys(die)], -1)
    return _mean_below(draws, by_die, scale)(margins.h1_points)
