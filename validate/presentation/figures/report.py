"""Figures of the two numbers, the floors and what a step is made of."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from rooffloor.validate.presentation.figures import style
from rooffloor.validate.presentation.figures.style import (
    Given,
    Rows,
    Sheet,
    draw_interval,
    name_rows,
    names_of,
    published_handle,
    styled,
)

PARTS = {
    "weights": ("weights", style.COLOURS[0]),
    "kv": ("KV cache", style.COLOURS[9]),
    "other": ("other kernels", style.COLOURS[2]),
    "floor": ("floor", style.COLOURS[1]),
    "leftover": ("leftover", "0.75"),
}


@styled
def two_number_table(table: Rows, label: str, *, axes: Given = None) -> NDArray[Any]:
    """Raw and residual MAPE of every model, one panel per GPU and one for the pooled means.

    `table` is that of the report, percent.
    """
    models, gpus = names_of(table, "model"), sorted(names_of(table, "gpu"), key="pooled".__eq__)
    columns = min(len(gpus), 4)
    sheet = Sheet.of(axes, len(gpus), columns=columns, height=1.9 + 0.62 * len(models))
    kinds = {"raw": (style.COLOURS[0], "o", -0.21), "residual": (style.COLOURS[1], "s", 0.21)}
    for i, (ax, gpu) in enumerate(zip(sheet.panels, gpus, strict=True)):
        for at, model in enumerate(models):
            row = next((r for r in table if r["model"] == model and r["gpu"] == gpu), None)
            if row is None:
                ax.text(0.03, at, "no cell", transform=ax.get_yaxis_transform(), color=style.GREY, va="center", size=9)
                continue
            for kind, (colour, marker, shift) in kinds.items():
                estimates = row[kind]
                if estimates is not None:
                    draw_interval(ax, estimates["expected"], at + shift - 0.09, colour, marker)
                    draw_interval(ax, estimates["as_measured"], at + shift + 0.09, colour, marker, hollow=True)
                number = (row["published"] or {}).get(kind)
                if number is not None:
                    ax.plot(number, at + shift + 0.09, zorder=4, **style.PUBLISHED)
        ax.set_title("pooled: mean over GPUs" if gpu == "pooled" else gpu)
        ax.set_xlabel("MAPE (percent)")
        name_rows(ax, [""] * len(models) if i % columns else models)
        for edge in np.arange(0.5, len(models) - 1):
            ax.axhline(edge, color="0.85", lw=0.8)
    high = max(ax.get_xlim()[1] for ax in sheet.panels)
    for ax in sheet.panels:
        ax.set_xlim(0, high)
    handles = [
        Line2D([], [], color=colour, marker=marker, mfc=face, ls="none", label=f"{kind} MAPE, {estimand}")
        for kind, (colour, marker, _) in kinds.items()
        for face, estimand in ((colour, "expected"), ("white", "of the cells as measured"))
    ]
    how = f"{style.POINTS} Raw: without a floor; residual: with the anchor's floor of that GPU."
    if any(value is not None for row in table for value in (row["published"] or {}).values()):
        handles.append(published_handle())
    return sheet.finish("Two-number report: raw and residual MAPE", label, handles, how)


@styled
def floors(rows: Rows, self_floors: Rows, label: str, *, ax: Axes | None = None) -> Axes:
    """Forest plot of the floors, ms, by GPU; the study's own self-floors beside the model's.

    `rows` are the report's `floors["by_class"]` or `["by_model"]`, `self_floors` its `["self_floors"]`; a model that
    `rows` lacks gets a row of its own.
    """
    own_floor = {(r["gpu"], r["model"]): r for r in self_floors}
    found = {(r["gpu"], r.get("class") or r["model"]): r["floor"] for r in rows}
    alone = {key: r["floor"] for key, r in own_floor.items() if key not in found}
    gpus = names_of(rows, "gpu")
    entries: list[tuple[str, str | None]] = []
    for gpu in gpus:
        entries += [(gpu, None), *(key for key in (*found, *alone) if key[0] == gpu)]
    sheet = Sheet.of(ax, height=1.9 + 0.3 * len(entries))
    (ax,) = sheet.panels
    ax.axvline(0, color=style.BLACK, lw=1)
    for at, (gpu, name) in enumerate(entries):
        if name is None:
            continue
        key, colour = (gpu, name), style.COLOURS[gpus.index(gpu) % len(style.COLOURS)]
        draw_interval(ax, found.get(key) or alone[key], at, colour, "o")
        if key in own_floor:
            draw_interval(ax, own_floor[key]["reading"], at + 0.3, style.BLACK, "s", hollow=True)
            if own_floor[key]["published"] is not None:
                ax.plot(own_floor[key]["published"], at + 0.3, zorder=4, **style.PUBLISHED)
    names = [gpu if name is None else name + (", self-floor" if (gpu, name) in alone else "") for gpu, name in entries]
    name_rows(ax, names, bold=[name is None for _, name in entries])
    ax.set_xlabel("floor δ added to T_gpu (ms)")
    handles = [Line2D([], [], color=style.GREY, marker="o", ls="none", label="the model's floor δ")]
    if self_floors:
        reading: dict[str, Any] = {"marker": "s", "mfc": "white", "ls": "none", "label": "the study's reading"}
        handles.append(Line2D([], [], color=style.BLACK, **reading))
        handles.append(published_handle("published self-floor"))
    sheet.finish("Floors by GPU", label, handles, style.POINTS)
    return ax


@styled
def breakdown(rows: Rows, label: str, *, axes: Given = None) -> NDArray[Any]:
    """What the mean step of each cell group is made of, ms: stacked bars, one panel per GPU.

    `rows` are the report's `breakdown`. Negative parts are hatched and stacked to the left of zero.
    """
    gpus, entries = names_of(rows, "gpu"), list[tuple[str, str | None]]()
    for model in names_of(rows, "model"):
        entries += [(model, None), *dict.fromkeys((model, r["group"]) for r in rows if r["model"] == model)]
    place = {entry: at for at, entry in enumerate(entries)}
    columns = min(len(gpus), 3)
    sheet = Sheet.of(axes, len(gpus), columns=columns, height=2.1 + 0.36 * len(entries))
    for i, (ax, gpu) in enumerate(zip(sheet.panels, gpus, strict=True)):
        ax.axvline(0, color=style.BLACK, lw=1)
        for row in (r for r in rows if r["gpu"] == gpu):
            _bar(ax, row, place[row["model"], row["group"]])
        ax.set_title(gpu)
        ax.set_xlabel("mean step (ms)")
        names = [textwrap.fill(group or model, 24) for model, group in entries]
        name_rows(ax, [""] * len(names) if i % columns else names, bold=[group is None for _, group in entries])
    limits = np.array([ax.get_xlim() for ax in sheet.panels])
    for ax in sheet.panels:
        ax.set_xlim(limits.min(), limits.max())
    handles: list[Line2D | Patch] = [Patch(fc=colour, ec="white", label=name) for name, colour in PARTS.values()]
    handles.append(Patch(fc="white", ec=style.GREY, hatch="////", label="negative part (left of zero)"))
    handles.append(Line2D([], [], color=style.BLACK, marker="d", lw=1.3, label="step, 90 % interval"))
    handles.append(Line2D([], [], color=style.BLACK, marker="|", lw=1.3, label="floor's end, 90 % interval"))
    how = "Bars: posterior mean of each part; whiskers: 90 % credible intervals."
    return sheet.finish("What a decode step is made of", label, handles, how, 4)


def _bar(ax: Axes, row: Mapping[str, Any], at: int) -> None:
    """One stacked bar: positive parts to the right of zero, negative ones hatched to the left."""
    ends = {"right": 0.0, "left": 0.0}
    for part, (_, colour) in PARTS.items():
        value, intervals = row["parts"][part]["value"], row["parts"][part]["intervals"]
        if value is None:
            continue
        side, hatch = ("left", "////") if value < 0 else ("right", None)
        ax.barh(at, value, 0.74, left=ends[side], color=colour, ec="white", lw=0.6, hatch=hatch)
        if part == "floor" and "90" in intervals:
            _whisker(ax, [ends[side] + v for v in intervals["90"]], ends[side] + value, at + 0.2, "|")
        ends[side] += value
    if row["step"]["value"] is not None:
        _whisker(ax, row["step"]["intervals"].get("90"), row["step"]["value"], at - 0.14, "d")


def _whisker(ax: Axes, bounds: Sequence[float] | None, value: float, at: float, marker: str) -> None:
    if bounds is not None:
        ax.hlines(at, bounds[0], bounds[1], color=style.BLACK, lw=1.3, zorder=3)
    ax.plot(value, at, marker=marker, color=style.BLACK, ms=6, zorder=3)
