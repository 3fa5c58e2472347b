"""Figures of a family's check: probabilities of its causes, and errors cell by cell."""

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from rooffloor.validate.presentation.figures import style
from rooffloor.validate.presentation.figures.style import Given, Rows, Sheet, names_of, plain_log, styled


@styled
def verdicts(data: Mapping[str, Any], *, ax: Axes | None = None) -> Axes:
    """Posterior probability of each cause for a family, by GPU and on all together.

    `data` is `Check.data`.
    """
    rows = [*data["per_sku"], data["overall"]] if len(data["per_sku"]) > 1 else data["per_sku"]
    shown = list(data["probabilities"])[:-1]
    colours = (style.COLOURS[2], style.COLOURS[1], style.COLOURS[0], style.COLOURS[4])
    sheet = Sheet.of(ax, height=0.5 + 0.75 * len(rows))
    (ax,) = sheet.panels
    if sheet.own:
        ax.set_title(f"{data['model']}: {data['verdict']}\n{textwrap.fill(f'Data: {data["label"]}', 90)}", loc="left")
    height = 0.8 / len(shown)
    for k, (verdict, colour) in enumerate(zip(shown, colours, strict=True)):
        at = [i + (k - 0.5 * (len(shown) - 1)) * height for i in range(len(rows))]
        ax.barh(at, [row["probabilities"][verdict] for row in rows], 0.9 * height, color=colour, label=verdict)
    ax.axvline(data["margins"]["probability"], color=style.GREY, linewidth=1, linestyle="--")
    ax.set_yticks(range(len(rows)), [f"{row['gpu']}\n{textwrap.fill(row['cause'], 28)}" for row in rows])
    ax.invert_yaxis()
    ax.set(xlim=(0, 1), xlabel="posterior probability (dashed: what a cause needs)")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax


@styled
def checked(rows: Rows, label: str, margins: Mapping[str, Any], *, axes: Given = None) -> NDArray[Any]:
    """Predicted over measured step of a family, one panel per GPU, against T_gpu.

    `rows` are the `cells` and `margins` the `margins` of check.json.
    """
    names = names_of(rows, "gpu")
    sheet = Sheet.of(axes, len(names), columns=2, height=4.1)
    for gpu, ax in zip(names, sheet.panels, strict=True):
        mine = [row for row in rows if row["gpu"] == gpu]
        gpu_ms, step_ms = (np.array([row[key] for row in mine]) for key in ("gpu_ms", "step_ms"))
        ax.axhspan(-margins["h1_absolute"], margins["h1_absolute"], color="0.93", zorder=0)
        ax.axhline(0.0, color=style.GREY, lw=1)
        for name, colour, fill in (("predicted", style.COLOURS[0], True), ("own_floor", style.COLOURS[1], False)):
            found = np.array([(row[name]["value"], *row[name]["intervals"]["90"]) for row in mine])
            y, low, high = 100.0 * (found.T / step_ms - 1.0)
            reach = [np.maximum(y - low, 0.0), np.maximum(high - y, 0.0)]
            look: dict[str, Any] = {"fmt": "o", "mfc": colour} if fill else {"fmt": "s", "mfc": "none"}
            ax.errorbar(gpu_ms * (1.0 if fill else 1.012), y, yerr=reach, color=colour, ms=5, lw=1.2, **look)
        ax.set(title=gpu, xlabel="T_gpu (ms)", ylabel="predicted / measured step - 1 (%)")
        if gpu_ms.max() > 4.0 * gpu_ms.min():
            ax.set_xscale("log")
            plain_log(ax.xaxis)
    handles = [
        Line2D([], [], color=style.COLOURS[0], marker="o", label="as the calibration predicts"),
        Line2D([], [], color=style.COLOURS[1], marker="s", mfc="none", label="T_gpu + the family's own floor"),
        Patch(color="0.93", label="absolute margin"),
    ]
    how = "Bars: 90 % credible intervals of the predicted mean step."
    return sheet.finish("Error of the predicted decode step", label, handles, how)
