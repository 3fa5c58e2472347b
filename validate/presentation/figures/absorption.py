"""Figures of what a scalar floor absorbs of a residual, and of the errors that it hides."""

import textwrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from rooffloor.validate.presentation.figures import style
from rooffloor.validate.presentation.figures.style import Rows, Sheet, draw_interval, name_rows, names_of, styled
from rooffloor.validate.presentation.numbers import number, size_number


@styled
def absorption(rows: Rows, label: str, *, ax: Axes | None = None) -> Axes:
    """Share of the squared relative error that the best scalar removes, per (model, GPU), beside that of pure noise.

    `rows` are the report's `absorption`.
    """
    gpus, entries = names_of(rows, "gpu"), list[tuple[str, str | None]]()
    for model in names_of(rows, "model"):
        entries += [(model, None), *((model, r["gpu"]) for r in rows if r["model"] == model)]
    place = {entry: at for at, entry in enumerate(entries)}
    sheet = Sheet.of(ax, height=1.9 + 0.3 * len(entries))
    (ax,) = sheet.panels
    beside: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "va": "center", "size": 9}
    for row in rows:
        at, noise = place[row["model"], row["gpu"]], row["noise_squared"]
        low, high = noise["intervals"]["90"]
        ax.barh(at, high - low, 0.8, left=low, color="0.85")
        ax.vlines(noise["value"], at - 0.4, at + 0.4, color=style.GREY, lw=1.5)
        draw_interval(ax, row["squared"], at, style.COLOURS[gpus.index(row["gpu"]) % len(style.COLOURS)], "o")
        ax.text(1.02, at, number(row["left"], unit=True), **beside)
    ax.text(1.02, -0.9, "MAPE left", weight="bold", **beside)
    name_rows(ax, [model if gpu is None else gpu for model, gpu in entries], bold=[gpu is None for _, gpu in entries])
    ax.set_xlim(-0.02, 1.02)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
    ax.set_xlabel("squared relative error of T_gpu that the best scalar removes (percent)")
    handles = [
        Line2D([], [], color=style.BLACK, marker="o", ls="none", label="the pair's residual"),
        Patch(fc="0.85", label="pure noise of its size: 90 % interval"),
        Line2D([], [], color=style.GREY, lw=1.5, label="pure noise: mean"),
    ]
    sheet.finish("What a scalar floor absorbs of the residual", label, handles, style.POINTS)
    return ax


@styled
def hidden_errors(rows: Rows, label: str, gpu: str | None = None, *, ax: Axes | None = None) -> Axes:
    """Share of each kind of error that a free scalar hides, error x model on one GPU, and the smallest size that shows.

    `rows` are the report's `hidden_errors`; default of `gpu`: the first of those with most models.
    """
    gpu = gpu or max(names_of(rows, "gpu"), key=lambda name: len({r["model"] for r in rows if r["gpu"] == name}))
    rows = [row for row in rows if row["gpu"] == gpu]
    models, errors = names_of(rows, "model"), names_of(rows, "error")
    words = {row["error"]: f"{textwrap.fill(row['label'], 50)}\nin {row['unit']}" for row in rows}
    sheet = Sheet.of(ax, height=1.6 + 0.52 * len(errors))
    (ax,) = sheet.panels
    shares = np.full((len(errors), len(models)), np.nan)
    for row in rows:
        at = errors.index(row["error"]), models.index(row["model"])
        share, size = row["share_hidden"], row["detectable"]
        unseen = share is None or np.isnan(share)
        shares[at] = np.nan if unseen else share
        if unseen:
            text = "no effect"
        elif size is None or np.isinf(size):
            text = "never"
        else:
            text = size_number(size, row["unit"])
        colour = "white" if shares[at] > 0.55 else style.BLACK
        ax.text(at[1], at[0], text, ha="center", va="center", size=9, color=colour)
    ax.set_facecolor("0.92")
    image = ax.imshow(shares, cmap="YlGnBu", vmin=0, vmax=1, aspect="auto")
    ax.figure.colorbar(image, ax=ax, label="share hidden (of the squared effect)", pad=0.02)
    ax.set_xticks(range(len(models)), [textwrap.fill(m, 14) for m in models])
    if len(models) > 5:
        ax.tick_params(axis="x", rotation=90)
    name_rows(ax, [words[error] for error in errors])
    ax.grid(visible=False)
    ax.set_ylim(len(errors) - 0.5, -0.5)
    ax.set_xlabel(f"model on {gpu}")
    how = (
        "Colour: share that a free scalar hides; number: smallest size that then shows with a power of 80 % at 5 %, in "
        "the unit of its row. At posterior means, without an interval. Grey: no cell depends on it."
    )
    handles = [Patch(fc="0.92", ec=style.GREY, label="no effect, or not in the model")]
    sheet.finish(f"Errors of T_gpu that a scalar floor hides on {gpu}", label, handles, how, 1)
    return ax
