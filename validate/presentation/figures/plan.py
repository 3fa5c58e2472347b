"""Figure of a plan of further cells."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from rooffloor.validate.presentation.figures import style
from rooffloor.validate.presentation.figures.style import Sheet, styled

GOALS = {
    "floor": "floor known to ± (ms, 90 % interval)",
    "shape": "slope known to ± (percent, 90 % interval)",
    "overlap": "probability of telling the structure",
}


@styled
def plan(found: Any, *, ax: Axes | None = None) -> Axes:
    """What is expected of a plan (`Plan`) against the number of cells, beside as many random cells."""
    sheet = Sheet.of(ax, height=4.4)
    (ax,) = sheet.panels
    count = np.arange(len(found.cells) + 1)
    scale = 100.0 if found.goal == "shape" else 1.0
    random = scale * np.array([found.before, *(cell.random_cells for cell in found.cells)])
    planned = scale * np.array([found.before, *(cell.expected for cell in found.cells)])
    ax.plot(count, random, color=style.GREY, marker="s", mfc="white", ls="--", label="random cells, mean")
    ax.plot(count, planned, color=style.COLOURS[0], marker="o", label="planned cells")
    if found.goal == "floor" and any(cell.expected_with_constants > 1.05 * cell.expected for cell in found.cells):
        whole = [cell.expected_with_constants for cell in found.cells]
        text = "planned, with the uncertainty of the constants"
        ax.plot(count[1:], whole, color=style.COLOURS[0], marker="o", mfc="white", ls=":", label=text)
    if found.width is not None:
        ax.axhline(scale * found.width, color=style.BLACK, lw=1, ls=":", label="asked")
    turned = 90.0 if len(found.cells) > 8 else 0.0
    for n, cell in enumerate(found.cells, 1):
        where = f"{cell.gpu}\n" if len(found.gpus) > 1 else ""
        text = f"{where}({cell.batch:g}, {cell.context:g})"
        ax.text(n, 0.01, text, transform=ax.get_xaxis_transform(), size=8, va="bottom", ha="center", rotation=turned)
    low, high, first = 0.0, 1.05 * float(max(planned.max(), random.max())), -0.3
    if found.goal == "overlap":
        low, high = 0.38, 1.0
    elif len(count) > 1 and planned[0] > 6.0 * random[1:].max():  # the width before would hide all others
        high, first = 1.3 * float(max(random[1:].max(), planned[1:].max(), scale * (found.width or 0.0))), 0.5
    ax.set(xlim=(first, len(found.cells) + 0.4), ylim=(low, high))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    before = f"; before: {planned[0]:.2g}" if first > 0 else ""
    ax.set(xlabel=f"further cells (batch, context){before}", ylabel=GOALS[found.goal])
    ax.legend(loc="best")
    sheet.finish(f"{found.model} on {', '.join(found.gpus)}: what further cells tell", "expected, not measured")
    return ax
