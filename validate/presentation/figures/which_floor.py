"""Figures of which floor structure the data support."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rooffloor.validate.presentation.figures.style import (
    COLOURS,
    GREY,
    MARKERS,
    STYLE,
    WIDTHS,
    heading,
    legend,
    name_rows,
    panels_of,
)


@rc_context(STYLE)
def structures(comparison: Any, *, ax: Axes | None = None) -> Axes:
    """elpd of every floor structure below the best one, with two standard errors of the difference.

    Parameters
    ----------
    comparison : `comparison.Comparison`
    """
    rows = [row for row in comparison.structures if row["elpd"] is not None]
    if ax is None:
        ax = Figure(figsize=(10, 1.6 + 0.34 * len(rows)), dpi=120, layout="constrained").add_subplot()
    place = np.arange(len(rows))[::-1]
    for y, row in zip(place, rows, strict=True):
        chosen = row["name"] == comparison.chosen
        colour = COLOURS[1] if chosen else COLOURS[0]
        gap, reach = row["elpd_diff"], 2.0 * row["dse"]
        ax.plot([gap - reach, gap + reach], [y, y], color=colour, lw=WIDTHS["90"])
        ax.plot(gap, y, "s" if chosen else "o", color=colour, ms=7)
    ax.axvline(0.0, color=GREY, lw=0.8, ls=":")
    ax.set_yticks(place, [f"{row['name']} ({row['parameters']})" for row in rows])
    ax.set_ylim(-0.6, len(rows) - 0.4)
    ax.set_xlabel(
        "elpd below the best structure (log score of unseen cells); bars: two standard errors of the difference"
    )
    ax.set_title(
        f"Floor structures on {comparison.cells} {comparison.label} cells; in brackets: parameters of the floor; "
        "square: chosen",
        loc="left",
    )
    return ax


@rc_context(STYLE)
def competition(which: Mapping[str, Any], *, ax: Axes | None = None) -> Axes:
    """Log Bayes factor of every floor structure against the reference, with two standard errors, per prior scale.

    Parameters
    ----------
    which : mapping
        The report's `which_floor` of published aggregates (`Competition.data` will do).
    ax : Axes, optional

    Returns
    -------
    Axes
    """
    rows, scales = which["structures"], which["scales"]
    (ax,), own = panels_of(ax, 1, height=1.2 + 0.075 * len(rows) * max(len(scales), 4))
    name_rows(ax, [row["name"] for row in rows])
    gains = [one["log_bf"] for row in rows for one in row["per_scale"] if one["log_bf"] is not None]
    if max(map(abs, gains), default=0.0) > 40.0:
        ax.set_xscale("symlog", linthresh=10.0)
        ax.xaxis.set_major_formatter("{x:g}")
    ax.axvspan(-np.log(3.0), np.log(3.0), color="0.9", zorder=0)
    ax.axvline(0.0, color=GREY, lw=0.8, zorder=0)
    shifts = np.linspace(-0.3, 0.3, len(scales)) if len(scales) > 1 else np.zeros(1)
    for at, row in enumerate(rows):
        for k, (one, shift) in enumerate(zip(row["per_scale"], shifts, strict=True)):
            colour, marker = COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)]
            if one["log_bf"] is not None:
                reach = 2.0 * (one["log_bf_se"] or 0.0)
                ax.plot([one["log_bf"] - reach, one["log_bf"] + reach], 2 * [at + shift], color=colour, lw=1.3)
                known = one["log_bf_se"] is not None
                ax.plot(one["log_bf"], at + shift, marker, color=colour, mfc=colour if known else "white", ms=4.5)
            elif one["log_ml"] is None and one.get("run", True):
                ax.plot(0.008, at + shift, "<", color=colour, ms=4.5, transform=ax.get_yaxis_transform())
    ax.set_xlabel(f"log Bayes factor against: {which['reference']} (right: the figures are more probable)")
    handles = [
        Line2D([], [], color=COLOURS[k % len(COLOURS)], marker=MARKERS[k % len(MARKERS)], lw=1.3, label=scale)
        for k, scale in enumerate(scales)
    ]
    handles.append(Line2D([], [], color=GREY, marker="<", ls="none", label="out of reach"))
    how = "Bars: two standard errors; hollow: unknown error. Grey band: Bayes factor 1/3 to 3."
    legend([ax], own, [*handles, Patch(fc="0.9", label="takes no side")], how, columns=4)
    heading([ax], own, "Which floor? Structures on the published figures", "published aggregates")
    return ax
