"""What `deciding` found, as a sentence."""

from collections.abc import Sequence

import numpy as np

from rooffloor.validate.transfer.plan.deciding import (
    LARGER,
    LEAST_GAIN,
    OTHER,
    SAME,
    SEVERAL,
    SMALL_BATCH,
    Deciding,
    goal_of,
    shows,
)
from rooffloor.validate.transfer.plan.outlook import SHAPE
from rooffloor.validate.transfer.plan.words import told

_NOWHERE = {
    SAME: f"up to batch {SMALL_BATCH} on the same GPU",
    LARGER: f"above batch {SMALL_BATCH} on the same GPU",
    OTHER: "on another GPU",
}


def say_deciding(found: Sequence[Deciding], question: str) -> str:
    """What `deciding` found, as a sentence."""
    head, goal = f"What would help most {_wanted(question)}", goal_of(question)
    if not found:
        return f"{head}: no further cell of those tried fits."
    several = [one for one in found if one.kind == SEVERAL]
    if several:
        return f"{head}: {_say_several(several[0], goal)}."
    parts = []
    for one in found:
        if shows(question, one.before, one.after):
            like = "a GPU like " if one.kind == OTHER else ""
            parts.append(f"{like}{one.cell}{_mark(one)}: {told(goal, one.before)} to {told(goal, one.after)}")
        elif one.alone < LEAST_GAIN:
            parts.append(f"no cell {_NOWHERE[one.kind]} tells anything")
        else:
            parts.append(f"no cell {_NOWHERE[one.kind]} narrows it by more than {_percent(one.alone)} %")
    return f"{head}: {'; '.join(parts)}."


def _wanted(question: str) -> str:
    """What is open, and whose interval is told."""
    if "weights" in question:
        return "to tell a floor from the weights' bandwidth (90 % interval of the latter's error)"
    if goal_of(question) == SHAPE:
        return "to see whether T_gpu is off (90 % interval of its relative error)"
    return "to narrow the floor (its 90 % interval)"


def _say_several(one: Deciding, goal: str) -> str:
    before, after = told(goal, one.before), told(goal, one.after)
    cells = (one.cell, *one.further)
    if one.gain < LEAST_GAIN or before == after:
        return f"no further cell tells anything; it stays {before} with {len(cells)} more"
    more = f" and {len(cells) - 3} more" if len(cells) > 3 else ""
    return (
        f"no single further cell narrows it by more than {_percent(one.alone)} %; {len(cells)} further cells "
        f"({'; '.join(map(str, cells[:3]))}{more}){_mark(one)} bring it from {before} to {after}"
    )


def _mark(one: Deciding) -> str:
    return " (far outside the calibration)" if one.far else "" if one.inside else " (outside the calibration)"


def _percent(gain: float) -> int:
    """By how much a gain narrows a width, whole percent from 1, rounded up."""
    return max(1, int(np.ceil(-100.0 * np.expm1(-gain))))
