"""Figures of a family's check: probabilities of its verdicts, and errors cell by cell."""

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from rooffloor.validate.presentation.figures.style import (
    COLOURS,
    GREY,
    STYLE,
    Given,
    Rows,
    heading,
    legend,
    names_of,
    panels_of,
    plain_log,
)


@rc_context(STYLE)
def verdicts(data: Mapping[str, Any], *, ax: Axes | None = None) -> Axes:
    """Posterior probability of each verdict's statement on a family, by GPU and on all together.

    Parameters
    ----------
    data : mapping
        `Verdict.data`.
    """
    rows = [*data["per_sku"], data["overall"]] if len(data["per_sku"]) > 1 else data["per_sku"]
    shown = list(data["probabilities"])[:-1]
    colours = (COLOURS[2], COLOURS[1], COLOURS[0], COLOURS[4])
    if ax is None:
        ax = Figure(figsize=(10, 1.4 + 0.75 * len(rows)), layout="constrained").subplots()
        ax.set_title(f"{data['model']}: {data['verdict']}\n{textwrap.fill(f'Data: {data["label"]}', 90)}", loc="left")
    height = 0.8 / len(shown)
    for k, (verdict, colour) in enumerate(zip(shown, colours, strict=True)):
        at = [i + (k - 0.5 * (len(shown) - 1)) * height for i in range(len(rows))]
        ax.barh(at, [row["probabilities"][verdict] for row in rows], 0.9 * height, color=colour, label=verdict)
    ax.axvline(data["margins"]["probability"], color=GREY, linewidth=1, linestyle="--")
    ax.set_yticks(range(len(rows)), [f"{row['gpu']}\n{textwrap.fill(row['verdict'], 28)}" for row in rows])
    ax.invert_yaxis()
    ax.set(xlim=(0, 1), xlabel="posterior probability (dashed: what a verdict needs)")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax


@rc_context(STYLE)
def checked(rows: Rows, label: str, margins: Mapping[str, Any], *, axes: Given = None) -> NDArray[Any]:
    """Predicted over measured step of a family, one panel per GPU, against T_gpu.

    Parameters
    ----------
    rows : sequence of mappings
        `cells` of check.json.
    label : str
        Where cells and calibration come from.
    margins : mapping
        `margins` of check.json.
    axes : Axes or sequence of Axes, optional
        One per GPU.
    """
    names = names_of(rows, "gpu")
    panels, own = panels_of(axes, len(names), columns=2, height=4.1)
    for gpu, ax in zip(names, panels, strict=False):
        mine = [row for row in rows if row["gpu"] == gpu]
        ax.axhspan(-margins["h1_absolute"], margins["h1_absolute"], color="0.93", zorder=0)
        ax.axhline(0.0, color=GREY, lw=1)
        for name, colour, fill in (("predicted", COLOURS[0], True), ("own_floor", COLOURS[1], False)):
            x = np.array([row["gpu_ms"] for row in mine])
            y, low, high = (
                100.0 * (np.array(values) / np.array([row["step_ms"] for row in mine]) - 1.0)
                for values in (
                    [row[name]["value"] for row in mine],
                    *([row[name]["intervals"]["90"][end] for row in mine] for end in (0, 1)),
                )
            )
            ax.errorbar(
                x * (1.0 if fill else 1.012),
                y,
                yerr=[np.maximum(y - low, 0.0), np.maximum(high - y, 0.0)],
                fmt="o" if fill else "s",
                color=colour,
                mfc=colour if fill else "none",
                ms=5,
                lw=1.2,
            )
        ax.set(title=gpu, xlabel="T_gpu (ms)", ylabel="predicted / measured step - 1 (%)")
        if np.max(x) > 4.0 * np.min(x):
            ax.set_xscale("log")
            plain_log(ax)
    handles = [
        Line2D([], [], color=COLOURS[0], marker="o", label="T_gpu + the anchor's floor"),
        Line2D([], [], color=COLOURS[1], marker="s", mfc="none", label="T_gpu + the family's own floor"),
        Patch(color="0.93", label="absolute margin"),
    ]
    legend(panels, own, handles, "Bars: 90 % credible intervals of the predicted mean step.", columns=3)
    heading(panels, own, "Error of the predicted decode step", label)
    return np.array(panels)
