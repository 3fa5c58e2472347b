"""Figures of which floor structure the data support."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rooffloor.validate.presentation.figures import style
from rooffloor.validate.presentation.figures.style import Sheet, name_rows, styled

CHOSEN, OTHER = (style.COLOURS[1], "s"), (style.COLOURS[0], "o")
"""Colour and marker of a structure."""
SHORT = "short fit"
"""At the gate of a structure that was fitted shortly only."""
MOST_LINEAR = 60.0
"""From a larger difference on, differences are drawn on an axis that is logarithmic beyond 10."""


@styled
def structures(comparison: Any, *, ax: Axes | None = None) -> Axes:
    """elpd of every floor structure of a `Comparison` below the best, with two standard errors of the difference."""
    rows = [row for row in comparison.structures if row["elpd"] is not None]
    sheet = Sheet.of(ax, height=1.4 + 0.3 * len(rows))
    (ax,) = sheet.panels
    name_rows(ax, [f"{row['name']} ({row['parameters']})" for row in rows])
    for y, row in enumerate(rows):
        colour, marker = CHOSEN if row["name"] == comparison.chosen else OTHER
        gap, reach, short = row["elpd_diff"], 2.0 * row["dse"], row["gate"] == SHORT
        ax.plot([gap - reach, gap + reach], [y, y], color=colour, lw=style.WIDTHS["90"])
        ax.plot(gap, y, marker, color=colour, mfc="white" if short else colour, ms=7)
    ax.axvline(0.0, color=style.GREY, lw=0.8, ls=":")
    if max(-row["elpd_diff"] for row in rows) > MOST_LINEAR:
        ax.set_xscale("symlog", linthresh=10.0)
        ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlabel("elpd below the best structure (log score of unseen cells)")
    shown: list[tuple[Any, Any, str]]
    shown = [(CHOSEN, "full", "chosen"), (OTHER, "full", "other"), (OTHER, "none", "short fit")]
    handles = [
        Line2D([], [], color=colour, marker=marker, fillstyle=fill, ls="none", ms=7, label=name)
        for (colour, marker), fill, name in shown
    ]
    how = "Bars: two standard errors of the difference to both sides. In brackets: parameters of the floor."
    sheet.finish(
        "Which floor? Structures on the same cells", f"{comparison.cells} {comparison.label} cells", handles, how
    )
    return ax


@styled
def competition(which: Mapping[str, Any], *, ax: Axes | None = None) -> Axes:
    """Log Bayes factor of every floor structure against the reference, with two standard errors, per prior scale.

    `which` is the report's `which_floor` of published aggregates (`Competition.data` will do).
    """
    rows, scales = which["structures"], which["scales"]
    looks = [(style.COLOURS[k % len(style.COLOURS)], style.MARKERS[k % len(style.MARKERS)]) for k in range(len(scales))]
    sheet = Sheet.of(ax, height=1.2 + 0.075 * len(rows) * max(len(scales), 4))
    (ax,) = sheet.panels
    name_rows(ax, [row["name"] for row in rows])
    gains = [one["log_bf"] for row in rows for one in row["per_scale"] if one["log_bf"] is not None]
    if max(map(abs, gains), default=0.0) > 40.0:
        ax.set_xscale("symlog", linthresh=10.0)
        ax.xaxis.set_major_formatter("{x:g}")
    ax.axvspan(-np.log(3.0), np.log(3.0), color="0.9", zorder=0)
    ax.axvline(0.0, color=style.GREY, lw=0.8, zorder=0)
    shifts = np.linspace(-0.3, 0.3, len(scales)) if len(scales) > 1 else np.zeros(1)
    for row_at, row in enumerate(rows):
        for one, (colour, marker), at in zip(row["per_scale"], looks, row_at + shifts, strict=True):
            if one["log_bf"] is not None:
                reach = 2.0 * (one["log_bf_se"] or 0.0)
                ax.plot([one["log_bf"] - reach, one["log_bf"] + reach], [at, at], color=colour, lw=1.3)
                known = one["log_bf_se"] is not None
                ax.plot(one["log_bf"], at, marker, color=colour, mfc=colour if known else "white", ms=4.5)
            elif one["log_ml"] is None and one.get("run", True):
                ax.plot(0.008, at, "<", color=colour, ms=4.5, transform=ax.get_yaxis_transform())
    ax.set_xlabel(f"log Bayes factor against: {which['reference']} (right: the figures are more probable)")
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=colour, marker=marker, lw=1.3, label=scale)
        for scale, (colour, marker) in zip(scales, looks, strict=True)
    ]
    handles.append(Line2D([], [], color=style.GREY, marker="<", ls="none", label="out of reach"))
    handles.append(Patch(fc="0.9", label="takes no side"))
    how = "Bars: two standard errors; hollow: unknown error. Grey band: Bayes factor 1/3 to 3."
    sheet.finish("Which floor? Structures on the published figures", "published aggregates", handles, how, 4)
    return ax
