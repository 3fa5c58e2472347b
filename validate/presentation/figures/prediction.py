"""Figures of predicted steps."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullFormatter
from numpy.typing import NDArray

from rooffloor.validate.presentation.figures import style
from rooffloor.validate.presentation.figures.style import Given, Rows, Sheet, plain_log, spread_ticks, styled


@styled
def prediction(
    rows: Rows, label: str, against: str = "batch", *, step: str = "measured", ax: Axes | None = None
) -> Axes:
    """Predicted step with 50 and 90 % bands against batch or context: a curve per model, GPU and value of the other.

    Parameters
    ----------
    rows : list of mappings
        `rows` of a prediction (`Prediction.data`), with or without those `not_predicted`.
    against : {"batch", "context"}
    step : {"measured", "mean"}
        The step that a measurement would show, or the mean step.

    Raises
    ------
    ValueError
        Nothing is predicted, there are more than 10 models x GPUs, or `against` or `step` is unknown.
    """
    pairs = _pairs(rows)
    if len(pairs) > len(style.COLOURS):
        raise ValueError(f"one panel shows at most {len(style.COLOURS)} models x GPUs, got {len(pairs)}")
    sheet = Sheet.of(ax, height=5.4)
    (ax,) = sheet.panels
    others = _few({row[_other(against)] for row in rows}, max(1, min(3, len(style.COLOURS) // len(pairs))))
    curves = [(pair, other) for pair in pairs for other in others]
    for at, (pair, other) in enumerate(curves):
        _curve(ax, _chosen(rows, pair, _other(against), other), against, step, at)
    _predicted_axes(ax, rows, against, step)
    handles: list[Any] = [
        _key(at, f"{model} on {gpu}, {_other(against)} {other}") for at, ((model, gpu), other) in enumerate(curves)
    ]
    handles += _band_handles(rows)
    sheet.finish(f"Predicted decode step against {against}", label, handles, _bands_caption(step))
    return ax


@styled
def predictions(rows: Rows, label: str, *, step: str = "measured", axes: Given = None) -> NDArray[Any]:
    """`prediction` with a row of panels per model and GPU: against batch, and against context where there are several.

    At most 12 models x GPUs.
    """
    pairs = _pairs(rows)
    if len(pairs) > 12:
        raise ValueError(f"one figure shows at most 12 models x GPUs, got {len(pairs)}")
    kinds = [kind for kind in ("batch", "context") if len({row[kind] for row in rows}) > 1] or ["batch"]
    sheet = Sheet.of(axes, len(pairs) * len(kinds), columns=len(kinds), height=3.6)
    for at, ax in enumerate(sheet.panels):
        pair, against = pairs[at // len(kinds)], kinds[at % len(kinds)]
        others = _few({row[_other(against)] for row in rows}, 3)
        for k, other in enumerate(others):
            _curve(ax, _chosen(rows, pair, _other(against), other), against, step, k)
        _predicted_axes(ax, [row for row in rows if (row["model"], row["gpu"]) == pair], against, step)
        ax.set_title(f"{pair[0]} on {pair[1]}")
        named = [_key(k, f"{_other(against)} {other}") for k, other in enumerate(others)]
        ax.legend(handles=named, loc="upper left", ncols=3, columnspacing=1.2, borderaxespad=0.1)
        ax.set_ylim(top=ax.get_ylim()[1] * (1.6 if ax.get_yscale() == "log" else 1.15))
    return sheet.finish("Predicted decode steps", label, _band_handles(rows), _bands_caption(step), 4)


def _pairs(rows: Rows) -> list[tuple[str, str]]:
    """Models and GPUs of the rows that have numbers."""
    found = list(dict.fromkeys((row["model"], row["gpu"]) for row in rows if row["status"] == "predicted"))
    if not found:
        raise ValueError("nothing to draw: no cell is predicted")
    return found


def _other(against: str) -> str:
    others = {"batch": "context", "context": "batch"}
    if against not in others:
        raise ValueError(f"against must be batch or context, got {against!r}")
    return others[against]


def _key(at: int, label: str) -> Line2D:
    return Line2D([], [], color=style.COLOURS[at], marker=style.MARKERS[at], label=label)


def _few(values: Iterable[int], most: int) -> list[int]:
    """At most so many values, evenly taken from the sorted ones, both ends among them."""
    found = sorted(values)
    return [found[i] for i in dict.fromkeys(np.linspace(0, len(found) - 1, min(most, len(found))).round().astype(int))]


def _chosen(rows: Rows, pair: tuple[str, str], other: str, value: int) -> list[Mapping[str, Any]]:
    return [row for row in rows if (row["model"], row["gpu"]) == pair and row[other] == value]


def _curve(ax: Axes, rows: Rows, against: str, step: str, at: int) -> None:
    """Mean and bands of one curve; dashed and hatched outside the calibrated domain; a cross where nothing fits."""
    colour, marker = style.COLOURS[at], style.MARKERS[at]
    for row in rows:
        if row["status"] != "predicted":
            ax.plot(row[against], 0.03 + 0.045 * at, "x", color=colour, transform=ax.get_xaxis_transform())
    shown = sorted((row for row in rows if row["status"] == "predicted"), key=lambda row: row[against])
    if not shown:
        return
    found = [row[f"{step}_step_ms"] for row in shown]
    x, y = np.array([row[against] for row in shown], dtype=float), np.array([f["value"] for f in found])
    bands = {level: np.array([f["intervals"][level] for f in found]).T for level in style.WIDTHS}
    outside = np.array([bool(row["outside"]) for row in shown])
    if len(x) == 1:
        for level, width in style.WIDTHS.items():
            ax.vlines(x, *bands[level], color=colour, lw=width)
    for level, alpha in (("90", 0.14), ("50", 0.26)):
        ax.fill_between(x, *bands[level], color=colour, alpha=alpha, lw=0)
    for i, beyond in enumerate((outside[:-1] | outside[1:]).tolist()):
        part = slice(i, i + 2)
        ax.plot(x[part], y[part], color=colour, lw=1.5, ls="--" if beyond else "-")
        if beyond:
            low, high = bands["90"][:, part]
            ax.fill_between(x[part], low, high, fc="none", ec=colour, alpha=0.35, hatch="////", lw=0)
    for i, beyond in enumerate(outside.tolist()):
        ax.plot(x[i], y[i], marker, color=colour, mfc="white" if beyond else colour, ms=5, zorder=3)


def _predicted_axes(ax: Axes, rows: Rows, against: str, step: str) -> None:
    """Scales, ticks and names of the axes."""
    ticks = sorted({float(row[against]) for row in rows})
    if ticks[0] > 0 and ticks[-1] > 4 * ticks[0]:
        ax.set_xscale("log", base=2)
        ax.set_xticks(spread_ticks(ticks), [f"{tick:.0f}" for tick in spread_ticks(ticks)])
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.set_xlabel("batch (sequences)" if against == "batch" else "context (tokens in the cache of each sequence)")
    low, high = ax.dataLim.intervaly
    if low > 0 and high > 8 * low:
        ax.set_yscale("log")
        plain_log(ax.yaxis)
    else:
        ax.set_ylim(0, None)
    ax.set_ylabel("predicted step (ms)" if step == "measured" else "predicted mean step (ms)")
    ax.grid(visible=True)


def _band_handles(rows: Rows) -> list[Any]:
    """What bands, dashes and crosses mean, as far as they occur."""
    handles: list[Any] = [
        Line2D([], [], color=style.GREY, lw=1.5, label="posterior median"),
        Patch(fc=style.GREY, alpha=0.4, label="50 % interval"),
        Patch(fc=style.GREY, alpha=0.14, label="90 % interval"),
    ]
    if any(row["outside"] for row in rows):
        handles.append(Patch(fc="white", ec=style.GREY, hatch="////", ls="--", label="outside the calibrated domain"))
    if any(row["status"] != "predicted" for row in rows):
        handles.append(Line2D([], [], color=style.GREY, marker="x", ls="none", label="not predicted (memory)"))
    return handles


def _bands_caption(step: str) -> str:
    if step not in ("measured", "mean"):
        raise ValueError(f"step must be measured or mean, got {step!r}")
    what = {
        "measured": "the step that a measurement would show (posterior predictive: constants, floor and noise)",
        "mean": "the mean step (posterior of T_gpu and floor, without noise)",
    }[step]
    return (
        f"Bands: equal-tailed intervals of {what}. Dashed, hatched and hollow: extrapolated, one end of the piece lies "
        "outside the calibrated domain."
    )
