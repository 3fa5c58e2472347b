"""Why is a calibration off for a new family, or is it not? A cause per GPU and overall, with what it cannot tell apart.

What a family's steps are off by has several explanations (`transfer.explanations`): nothing, a floor of its own, an
error of one part of T_gpu, or both. Their posterior weights, those of sizes beyond the margins, and the level of the
error under the anchor's floor make the cause. Whether the calibration holds for use (`transfer.use`) is asked before.

Which explanations cannot be told apart is left to the evidence: on one GPU a floor and an error of the weights'
bandwidth are the same column, on several the latter is proportional to each GPU's weight time. Under a free floor the
slope sees only what varies over the grid; the pattern of levels over GPUs tells the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

from rooffloor.validate.common.errors import InputError
from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws
from rooffloor.validate.estimates.estimate import LEVELS, Estimate, tails
from rooffloor.validate.hypotheses.h3 import PRIOR_SCALES, SLOPE_SD
from rooffloor.validate.hypotheses.level import by_unit, correlation_by_unit, level_error, pooled_below
from rooffloor.validate.hypotheses.slope import slope
from rooffloor.validate.study.margins import Margins
from rooffloor.validate.transfer import words
from rooffloor.validate.transfer.explanations import (
    BETWEEN_SIZE,
    BY_SEQUENCE,
    MECHANISMS,
    OWN,
    WEIGHTS,
    Explanation,
    Gap,
    Join,
    explanations,
    gap,
)
from rooffloor.validate.transfer.family_fit import Family
from rooffloor.validate.transfer.left_out import ahead
from rooffloor.validate.transfer.statements import (
    CANNOT_TELL,
    CAUSES,
    ERROR_OR_BATCH,
    FLOOR_OR_ERROR,
    FLOOR_OR_WEIGHTS,
    INDISTINGUISHABLE,
    MISMATCH,
    NONE,
    NOTHING,
    OF_SEVERAL,
    RECALIBRATE,
    SLOPE,
    UNDER_ANY_FLOOR,
    UNSEEN,
    WITHIN_MARGIN,
    WITHIN_OR_NOT,
)

type Array = NDArray[np.float64]
type Mask = NDArray[np.bool_]

BETWEEN = 1.25
"""Scale of the half-Cauchy between-GPU sd of levels (that of H1), in margins."""
SUSPECT = 0.2
"""With more than this probability of an error that the slope shows, the level alone makes no cause."""
AHEAD = 3.0
"""An error is named where it foretells left-out cells better than all others by more than this, nats."""
IMPROBABLE = 0.01
"""A statement of a smaller probability is not named as what is left open."""
MARGINS_USED = ("h1_points", "h1_absolute", "slope_rope", "probability", "label")


@dataclass(frozen=True)
class Cause:
    """What the measurements say of a family's transfer.

    Attributes
    ----------
    data : dict
        Everything, ready for JSON.
    """

    data: dict[str, Any]

    def __repr__(self) -> str:
        gpus = ", ".join(f"{row['gpu']}: {row['cause']}" for row in self.per_sku)
        return f"Cause({self.data['model']}: {self.cause}; {gpus})"

    @property
    def cause(self) -> str:
        """One of `CAUSES`."""
        return str(self.data["cause"])

    @property
    def probabilities(self) -> Mapping[str, float]:
        """Posterior probability of each of `statements.STATED`.

        "floor or weight bandwidth" contains "recalibrate the floor" and shares mass with "shape mismatch": it says that
        the level is off and that no other error of T_gpu alone does it, whatever the slope; "none of these" is what the
        first three leave: a level off by an error within the margin, or one that may be within its margins or not.
        """
        return dict(self.data["probabilities"])

    @property
    def per_sku(self) -> list[dict[str, Any]]:
        """The same by GPU (from its cells alone), with the level, the slope and the floor."""
        return list(self.data["per_sku"])


def judge(family: Family, margins: Margins, *, name: bool = True) -> Cause:
    """Say per GPU and overall whether the anchor's calibration transfers to a family.

    T_gpu in its draws should be the anchor's (treatment "cut" or fixed constants): where the family's cells took part
    in the constants, they have moved T_gpu towards themselves.

    Parameters
    ----------
    name : bool
        Name an error of T_gpu where it foretells left-out cells better than all others; without, none is tried.

    Raises
    ------
    InputError
        The cells are imputed, or the family was measured on no GPU on which the anchor was.
    """
    draws, model, around = family.draws, family.model, family.around
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
    gaps = [gap(family, found, join) for join in ((None,) if around is None else (around.anchor, around.own))]
    levels = _Levels.of(family, masks)
    branch = draws if around is None else _own_branch(draws, around.own)
    rows = []
    for k, (gpu, mask) in enumerate(masks.items()):
        some = [one.where(one.sku == k) for one in gaps]
        rows.append(_judged(draws, branch, margins, gpu, [mask], some, levels.where([k]), name))
    several = len(rows) > 1
    rows = _adjusted(rows, margins)
    overall = _judged(draws, branch, margins, "all", found, gaps, levels, name) if several else rows[0] | {"gpu": "all"}
    anchors = [mask for g in masks if (mask := draws.mask(draws.anchor, g)).sum() > 1]
    overall |= {"anchor_slope": pooled_slope(branch, anchors, margins)["slope"] if anchors else None}
    split = [row["gpu"] for row in rows if row["cause"] == MISMATCH]
    if split and overall["cause"] in (NOTHING, RECALIBRATE, INDISTINGUISHABLE):
        overall |= {"cause": CANNOT_TELL, "open": f"slope: a shape mismatch on {', '.join(split)} alone"}
    data = {
        "model": model,
        "anchor": draws.anchor,
        "label": draws.label,
        "margins": {name: getattr(margins, name) for name in MARGINS_USED},
    }
    return stated(data, overall, rows, words.notes(gaps[0], overall), margins)


def stated(
    data: Mapping[str, Any],
    overall: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    notes: Sequence[str],
    margins: Margins,
) -> Cause:
    """A verdict in words: what is said of all GPUs, of each where there are several, and what cannot be told."""
    several = len(rows) > 1
    told = [row | {"sentence": f"{row['gpu']}: {words.sentence(row, margins, brief=several)}"} for row in rows]
    opening = f"{data['model']} on {' and '.join(row['gpu'] for row in rows)}: {words.sentence(overall, margins)}"
    return Cause(
        {
            **data,
            "cause": overall["cause"],
            "probabilities": overall["probabilities"],
            "overall": overall,
            "per_sku": told,
            "sentences": [opening, *([row["sentence"] for row in told] if several else []), *notes],
            "notes": list(notes),
        }
    )


def _adjusted(rows: Sequence[dict[str, Any]], margins: Margins) -> list[dict[str, Any]]:
    """The GPUs' own verdicts with mismatches adjusted for their number.

    Several GPUs are several chances to be wrong. By Holm's rule the n-th surest mismatch of K must have an error
    probability of (1 - what a verdict needs) / (K - n + 1) at most: the chance that any named one is none stays below
    what one verdict alone may have.
    """
    found, spare = list(rows), 1.0 - margins.probability
    named = [k for k, row in enumerate(rows) if row["cause"] == MISMATCH]
    wrong = sorted(named, key=lambda k: 1.0 - rows[k]["probabilities"][MISMATCH])
    for n, k in enumerate(wrong):
        if 1.0 - rows[k]["probabilities"][MISMATCH] > spare / (len(rows) - n):
            for k in wrong[n:]:
                found[k] = rows[k] | {"cause": CANNOT_TELL, "open": OF_SEVERAL}
            break
    return found


@dataclass(frozen=True, eq=False)
class _Levels:
    """Arrays [draw, gpu]: MAPE under the anchor's floor, percent, and floors.

    The same less the anchor's (`less`) and less that under its own floor (`gained`); floor less the anchor's, ms.
    """

    level: Array
    less: Array
    gained: Array
    floor_ms: Array

    @classmethod
    def of(cls, family: Family, masks: Mapping[str, Mask]) -> "_Levels":
        draws, around = family.draws, family.around
        level = np.stack([level_error(draws, mask, draws.calibrated_ms) for mask in masks.values()], -1)
        anchor = draws.cells.model == draws.anchor
        theirs = [own if (own := draws.mask(draws.anchor, gpu)).any() else anchor for gpu in masks]
        anchors = [level_error(draws, mask, draws.calibrated_ms) for mask in theirs]
        above = draws.floor_ms - draws.anchor_floor_ms if around is None else around.above_ms
        floors = [above[:, mask][:, 0] for mask in masks.values()]
        own = np.stack([level_error(draws, mask, draws.floor_ms) for mask in masks.values()], -1)
        return cls(level, level - np.stack(anchors, -1), level - own, np.stack(floors, -1))

    def where(self, gpus: list[int]) -> "_Levels":
        return _Levels(*(values[:, gpus] for values in (self.level, self.less, self.gained, self.floor_ms)))


def _own_branch(draws: Draws, join: Join) -> Draws:
    """Steps and T_gpu such that the slope is 1 and the offset the floor where the shape is right and floors overlap.

    The slope of a step on T_gpu is below 1 there, however right the shape: (T_gpu / step)^(1/q - 1).
    """
    by_gpu, by_floor = join.by_gpu_ms / join.by_floor, 1.0 / join.by_floor
    steps = (draws.step_ms - join.step_ms) * by_floor + by_gpu * join.gpu_ms + join.floor_ms
    return replace(draws, step_ms=steps, gpu_ms=draws.gpu_ms * by_gpu, noise_ms=draws.noise_ms * by_floor)


def _judged(
    draws: Draws,
    branch: Draws,
    margins: Margins,
    gpu: str,
    masks: Sequence[Mask],
    gaps: Sequence[Gap],
    levels: _Levels,
    name: bool,
) -> dict[str, Any]:
    """What the cells of some GPUs say together; `branch` and `gaps` as `judge` makes them."""
    exceeds, above = levels.less >= margins.h1_points, levels.level >= margins.h1_absolute
    better = _holds(draws, levels.less, margins.h1_points, margins)
    good = _holds(draws, levels.level, margins.h1_absolute, margins)
    off = (exceeds | above).any(-1)
    by_floor = ((exceeds | above) & (levels.gained >= margins.h1_points)).any(-1)
    level = _Level(min(better, good), *(float(draws.weight @ event) for event in (off, by_floor)))
    told = [explanations(gaps[0], margins.slope_rope, own=gaps[-1], spread=s) for s in PRIOR_SCALES.values()]
    seen = _slope_sd(branch, masks) < 0.5 * SLOPE_SD
    stated, *others = (_decided(found, level, seen, gaps[0], margins) for found in told)
    stated |= {
        "mechanism": _foretelling(stated["mechanism"], gaps, margins) if name and stated["cause"] == MISMATCH else None
    }
    mean = ", mean over GPUs" if len(masks) > 1 else ""
    return {
        "gpu": gpu,
        "cells": len(gaps[0].sku),
        **stated,
        "doubled_priors": {name: others[0][name] for name in ("cause", "probabilities")},
        "difference": draws.estimate(
            levels.less.mean(-1), f"expected residual MAPE of the family minus that of the anchor{mean}", "points"
        ).data,
        "level": draws.estimate(
            levels.level.mean(-1), f"expected residual MAPE under the anchor's floor{mean}", "percent"
        ).data,
        "better": Estimate(better, f"P(difference < {margins.h1_points:g} points){mean}", "probability", {}).data,
        "good": Estimate(good, f"P(residual MAPE < {margins.h1_absolute:g} %){mean}", "probability", {}).data,
        **pooled_slope(branch, masks, margins),
        "floor_above_anchor": draws.estimate(
            levels.floor_ms.mean(-1), f"floor of the family minus the anchor's{mean}", "ms"
        ).data,
        "log_evidence": float(logsumexp([e.log_joint for e in told[0]])),
        "weights_ms": float(gaps[0].columns[WEIGHTS].mean()),
    }


def _holds(draws: Draws, values: Array, margin: float, margins: Margins) -> float:
    """P(values [draw, gpu] below a margin): on one GPU; of several, their mean over GPUs like these, as in H1.

    Values of several GPUs move together with the constants: their joint covariance is taken, and no probability exceeds
    that of their plain mean over the draws, which may be skewed.
    """
    if values.shape[-1] == 1:
        return float(draws.weight @ (values[:, 0] < margin))
    means, sds, mass = by_unit(draws, values)
    scale = BETWEEN * margins.h1_points
    pooled = mass @ pooled_below(means, sds, margin, scale, correlation_by_unit(draws, values))
    return min(float(pooled), float(draws.weight @ (values.mean(-1) < margin)))


@dataclass(frozen=True)
class _Level:
    """Probabilities of the level under the anchor's floor.

    P(it holds, on average over GPUs like these), P(it fails on one of these), P(it fails there and a floor of its own
    brings it down by the margin). Given the cells they depend little on the explanation, so that they multiply.
    """

    holds: float
    off: float
    by_floor: float


def _decided(found: Sequence[Explanation], level: _Level, seen: bool, gap: Gap, margins: Margins) -> dict[str, Any]:
    """Probabilities of the statements and the verdict.

    Parameters
    ----------
    seen : bool
        Whether the cells narrow the slope.
    gap : Gap
        Which errors have one column. Where a floor and an error of the weights have, nothing but their priors tells
        them apart, and neither is named. Time per sequence may be the host's as well as a kernel's: an error that is no
        other than that is no verdict on T_gpu.
    """
    floor_or_weights = gap.floor_or_weights
    beyond = sum(e.weight * e.beyond for e in found)
    weights = sum(e.weight for e in found if e.error == WEIGHTS)
    slope_beyond = sum(e.weight * e.beyond for e in found if e.error != WEIGHTS)
    own = sum(e.weight * (1.0 - e.beyond) for e in found if e.floor == OWN)
    by_level = sum(e.weight for e in found if e.floor == OWN or e.error == WEIGHTS)
    probabilities = {
        NOTHING: (1.0 - beyond) * min(level.holds, 1.0 - level.off),
        RECALIBRATE: own * level.by_floor,
        MISMATCH: beyond,
        INDISTINGUISHABLE: by_level * level.by_floor,
    }
    probabilities = {name: min(max(0.0, p), 1.0) for name, p in probabilities.items()}  # sums of weights round
    probabilities[NONE] = max(0.0, 1.0 - sum(probabilities[v] for v in (NOTHING, RECALIBRATE, MISMATCH)))
    reached = [v for v in CAUSES[:-1] if probabilities[v] >= margins.probability]
    of_gpu = sum(e.weight * e.beyond for e in found if e.error and not set(gap.names[e.error]) & set(BY_SEQUENCE))
    batch = MISMATCH in reached and of_gpu < margins.probability
    if batch:
        reached.remove(MISMATCH)
    if floor_or_weights:
        reached = [v for v in reached if v != RECALIBRATE]
        if slope_beyond < margins.probability:
            reached = [v for v in reached if v != MISMATCH]
    if not seen:  # then P(no error) is the prior's
        reached = [v for v in reached if v == MISMATCH]
    told_apart = weights < 1.0 - margins.probability and not floor_or_weights
    if reached == [INDISTINGUISHABLE] and (slope_beyond > SUSPECT or told_apart):
        reached = []
    verdict = reached[0] if reached else CANNOT_TELL
    errors = {e.error: sum(f.weight * f.beyond for f in found if f.error == e.error) for e in found if e.error}
    best = max(errors, key=lambda name: errors[name])
    question = ERROR_OR_BATCH if batch else _open(probabilities, errors, level, margins)
    return {
        "cause": verdict,
        "open": (question if seen else UNSEEN) if verdict == CANNOT_TELL else None,
        "probabilities": probabilities,
        "level_holds": level.holds,
        "level_off": level.off,
        "level_off_by_floor": level.by_floor,
        "mechanism": _mechanism(found, gap.names[best], errors[best] / beyond) if beyond > 0.5 else None,
        "floor_or_weights": {
            "floor": sum(e.weight for e in found if e.floor == OWN and e.error != WEIGHTS),
            "weights": weights,
            "one_column": floor_or_weights,
        },
        "explanations": [e.data for e in sorted(found, key=lambda e: -e.weight)],
    }


def _open(probabilities: Mapping[str, float], errors: Mapping[str, float], level: _Level, margins: Margins) -> str:
    """What an undecided verdict leaves open: of the slope and the level what is known less; nothing improbable."""
    beyond, a_floor = probabilities[MISMATCH], probabilities[RECALIBRATE] >= IMPROBABLE
    slope_open = min(beyond, 1.0 - beyond)
    level_open = 1.0 - max(min(level.holds, 1.0 - level.off), level.off)
    if max(slope_open, level_open) > 1.0 - margins.probability:
        if level_open > slope_open:
            return WITHIN_OR_NOT
        by_weights = errors.get(WEIGHTS, 0.0) > 0.5 * beyond
        return FLOOR_OR_WEIGHTS if by_weights and a_floor else SLOPE
    if level.off - level.by_floor > 0.5:
        return UNDER_ANY_FLOOR
    return FLOOR_OR_ERROR if a_floor else WITHIN_MARGIN


def _mechanism(found: Sequence[Explanation], names: Sequence[str], weight: float) -> dict[str, Any]:
    """The error with most posterior weight among those beyond the margin, with those of the same column."""
    mine = [e for e in found if e.error == names[0]]
    total = sum(e.weight for e in mine)
    size = sum(e.weight * e.size for e in mine) / total
    sd = np.sqrt(sum(e.weight * (e.size_sd**2 + (e.size - size) ** 2) for e in mine) / total)
    label = ", or ".join(MECHANISMS[name] for name in names)
    told = {"name": names[0], "alike": list(names[1:]), "label": label}
    return {**told, "weight": weight, "size": size, "size_sd": float(sd)}


def _foretelling(found: dict[str, Any] | None, gaps: Sequence[Gap], margins: Margins) -> dict[str, Any] | None:
    """The likeliest error, where it foretells left-out cells better than all others; by how much, nats."""
    if found is None:
        return None
    by = ahead(gaps[0], found["name"], margins.slope_rope, own=gaps[-1])
    return found | {"ahead": by} if by > AHEAD else None


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
