"""A plan as text: its table, and the sentences on what is assumed, promised and left out."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rooffloor.models.calibration.draws import Calibration
from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.hypotheses.h3 import OFFSET_SD_MS, SLOPE_SD
from rooffloor.validate.presentation.text_table import text_table
from rooffloor.validate.transfer import domain
from rooffloor.validate.transfer.explanations import FLOOR_BETWEEN_MS, WHOLE
from rooffloor.validate.transfer.plan.joining import SIMULATIONS
from rooffloor.validate.transfer.plan.outlook import FLOOR, HALF, OVERLAP, SHAPE, Calibrated, Cell, Prospect

if TYPE_CHECKING:
    from rooffloor.validate.transfer.plan.plan import Plan, PlannedCell

GOALS = {
    FLOOR: "to narrow the floor",
    SHAPE: "to tell a floor from an error of T_gpu's shape",
    OVERLAP: "to tell added from overlapped floors",
}
_HEADS = {FLOOR: "floor, 90 %", SHAPE: "slope, 90 %", OVERLAP: "P(structure told)"}
DISTINCT = (
    "Cells are distinct: at one cell measurement noise and what the roof leaves over cannot be told apart, and a "
    "repeat lowers only the former."
)
REPEATS = (
    "Repeats were allowed and count as independent: what the roof leaves over does not average out in them, so that "
    "the expected widths are too narrow by as much as the noise holds of it."
)


def text(plan: "Plan") -> str:
    """The table of a plan and its sentences."""
    goal = plan.goal
    several = goal == FLOOR and len(plan.gpus) > 1
    head = ["", "GPU", "batch", "context", "expected step", _HEADS[goal], *["on that GPU"] * several]
    before = ["0", "", "", "", "", told(goal, plan.before), *[""] * several]
    if goal == FLOOR:
        head.append("with constants'")
        before.append(told(goal, plan.before_with_constants))
    head += ["log Bayes factor"] * (goal == OVERLAP)
    rows = [[*head, "random cells"], before]
    for cell in plan.cells:
        row = [f"{cell.order}{'' if cell.inside_domain else ' *'}", cell.gpu, f"{cell.batch:g}", f"{cell.context:g}"]
        row += [f"{cell.expected_step_ms:.1f} ms", told(goal, cell.expected)]
        row += [told(goal, cell.expected_on_gpu)] * several
        row += [told(goal, cell.expected_with_constants)] * (goal == FLOOR)
        row += [] if cell.log_bayes_factor is None else [f"{cell.log_bayes_factor:z.1f}"]
        rows.append([*row, told(goal, cell.random_cells)])
    title = f"{plan.model} on {', '.join(plan.gpus)}: {cells(len(plan.cells))} {GOALS[goal]}"
    return "\n".join([title, *text_table(rows, ">"), *plan.sentences])


def cells(count: int) -> str:
    """So many cells."""
    return f"{count} cell{'' if count == 1 else 's'}"


def told(goal: str, value: float) -> str:
    """A half-width or a probability as text."""
    if goal == OVERLAP:
        return f"{value:.2f}"
    if goal == SHAPE:
        return f"±{100 * value:.2g} %"
    return f"±{value:.2f} ms" if value >= 0.095 else f"±{value:.2g} ms"


def source(calibration: Calibrated) -> str:
    """Where the constants come from."""
    if isinstance(calibration, Calibration):
        return f"{calibration.source}, {calibration.label}"
    return "constants taken as known"


def assumed(p: Prospect, goal: str, calibration: Calibrated, noise: float | None) -> str:
    """What was assumed of noise and floors before these cells."""
    per_gpu = " and ".join(f"{100 * np.median(p.noise[:, g]):.2g} % ({gpu})" for g, gpu in enumerate(p.gpus))
    level = f"noise of {per_gpu} of a step" if noise is None else f"noise of {100 * noise:.3g} % of a step"
    if goal == FLOOR:
        prior = "floors before these cells: " + ", ".join(
            f"{p.mean_ms[:, g].mean():.1f} ± {np.sqrt(p.variance[:, g].mean() + p.mean_ms[:, g].var()):.1f} ms ({gpu})"
            for g, gpu in enumerate(p.gpus)
        )
    elif goal == SHAPE:
        prior = (
            f"an error N(0, {SLOPE_SD:g}) common to the GPUs beside floors off the anchor's by N(0, {OFFSET_SD_MS:g} "
            f"ms) in common and N(0, {FLOOR_BETWEEN_MS:g} ms) by GPU"
        )
    else:
        median, sd = DEFAULT_PRIORS.floor_overall
        prior = (
            f"a floor that shows log-normal around {median:g} ms (sd of the log {sd:g}) in the shortest cell under "
            f"both structures, an overlap q anywhere in (0, 1); {SIMULATIONS} simulated data sets, so that "
            f"probabilities are known to ±{2 * np.sqrt(0.25 / SIMULATIONS):.2f}"
        )
    return f"Assumed: T_gpu of {source(calibration)}; {level}, independent between cells; {prior}."


def answer(
    goal: str, width: float | None, needed: int | None, least: float | None, most: int, candidates: int
) -> list[str]:
    """Whether the wanted width is reached, and with how many cells."""
    if width is None or least is None:
        return []
    asked = told(goal, width)
    if needed is None:
        tried = f"the {candidates} candidates" if most == candidates else f"up to {most} cells"
        return [f"No number of {tried} gives {asked}: the narrowest is {told(goal, least)}."]
    if needed == 0:
        return [f"{asked} is reached without a further cell: it is {told(goal, least)}."]
    return [f"{asked} takes {cells(needed)}: {told(goal, least)} is then expected."]


def limits(
    p: Prospect,
    goal: str,
    cells: "Sequence[PlannedCell]",
    chosen: Sequence[int],
    errors: Mapping[str, float],
    with_constants: float,
) -> list[str]:
    """What the constants alone leave of a floor; how far other errors of T_gpu show."""
    if goal == FLOOR and cells:
        widths = [cell.expected_with_constants for cell in cells]
        if widths[-1] > 1.05 * cells[-1].expected:
            text = (
                f"Widths are those beside the calibration's constants. With their uncertainty the floor itself is "
                f"{told(goal, widths[-1])}: no cell of this family narrows that part, and in predicted steps "
                "it cancels against T_gpu's."
            )
            if widths[-1] > 1.01 * min(with_constants, *widths):
                some = np.array(chosen)
                means = [p.gpu_ms[:, some[p.gpu[some] == g]].mean(-1) for g in set(p.gpu[some].tolist())]
                alone = HALF * max(float(mean.std()) for mean in means)
                text += (
                    " It can grow with cells: the floor is then read off as step - T_gpu, and T_gpu alone is uncertain "
                    f"by {told(goal, alone)}."
                )
            return [text]
    if goal == SHAPE:
        unseen = HALF * SLOPE_SD
        seen = ", ".join(f"{name} {told(goal, half)}" for name, half in errors.items() if name != WHOLE)
        return [f"Each other error alone beside the floors after these cells ({told(goal, unseen)}: not seen): {seen}."]
    return []


def outside(
    cells: "Sequence[PlannedCell]", shapes: ModelShapes, specs: Sequence[GpuSpec], calibration: Calibrated
) -> list[str]:
    """Cells that lie outside what was calibrated."""
    if not isinstance(calibration, Calibration):
        return []
    reasons = domain.model_reasons(calibration, shapes)
    reasons += [reason for spec in specs for reason in domain.gpu_reasons(calibration, spec)]
    odd = sum(not cell.inside_domain for cell in cells)
    if odd:
        seen = calibration.domain
        reasons.append(
            f"cells marked * ({odd}): batch {seen.batch[0]:g} to {seen.batch[1]:g}, context {seen.context[0]:g} to "
            f"{seen.context[1]:g} on {', '.join(calibration.gpus)} calibrated"
        )
    return [f"Outside what the calibration has seen: {'; '.join(reasons)}."] if reasons else []


def left_out(unfit: Sequence[Cell], long: Sequence[Cell]) -> list[str]:
    """Cells in hand that could not be used, and why."""
    told = []
    for cells, why in ((unfit, "do not fit into memory"), (long, "lie beyond the model's positions")):
        if cells:
            some = ", ".join(f"({c.gpu}, {c.batch:g}, {c.context:g})" for c in cells[:4])
            more = f" and {len(cells) - 4} more" if len(cells) > 4 else ""
            told.append(f"Left out, since they {why}: {some}{more}.")
    return told
