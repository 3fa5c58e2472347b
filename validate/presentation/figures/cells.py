"""Figures of cells: measured against predicted steps, and steps against context."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullFormatter
from numpy.typing import NDArray

from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws
from rooffloor.validate.estimates.estimate import LEVELS, tails, weighted_quantiles
from rooffloor.validate.presentation.figures import style
from rooffloor.validate.presentation.figures.style import (
    Array,
    Given,
    Sheet,
    model_handles,
    model_styles,
    plain_log,
    published_handle,
    spread_ticks,
    styled,
)


@styled
def measured_predicted(draws: Draws, *, axes: Given = None) -> NDArray[Any]:
    """Step against T_gpu + the anchor's floor, one panel per GPU; last panel the MoE, or each model's own floor.

    Where there is a dispatch term (a mixture of experts), the last panel shows those cells with and without it; else
    all cells with their own floors.
    """
    cells, styles, kind = draws.cells, model_styles(draws.cells.models), _kind(draws)
    sheet = Sheet.of(axes, len(cells.gpus) + 1, columns=2, height=4.1)
    last, anchored = sheet.panels[-1], draws.gpu_ms + draws.anchor_floor_ms
    for model, gpu, mask in draws.pairs():
        ax = sheet.panels[cells.gpus.index(gpu)]
        if draws.has_anchor(mask):
            _cloud(ax, draws, mask, anchored, *styles[model])
            ax.set_xlabel(f"T_gpu + floor of {draws.anchor} (ms)")
        else:
            _cloud(ax, draws, mask, draws.mean_ms, *styles[model])
            ax.set_xlabel(f"T_gpu + own floor ({draws.anchor} not measured here) (ms)")
        ax.set_title(gpu)
    moe = (draws.dispatch_ms > 0).any(0)
    if moe.any():
        use_anchor = draws.has_anchor(moe)
        whole = anchored if use_anchor else draws.mean_ms
        terms = {"with": (whole, style.COLOURS[0], "o"), "without": (whole - draws.dispatch_ms, style.COLOURS[1], "x")}
        for predicted, colour, marker in terms.values():
            for _, _, mask in draws.pairs():
                _cloud(last, draws, mask & moe, predicted, colour, marker)
        last.set_title(f"{', '.join(_used(cells.model[moe]))} on {', '.join(_used(cells.gpu[moe]))}")
        last.set_xlabel(f"T_gpu + {f'floor of {draws.anchor}' if use_anchor else 'own floor'} (ms)")
        shown = [
            Line2D([], [], color=colour, marker=marker, ls="none", label=f"{name} the dispatch term")
            for name, (_, colour, marker) in terms.items()
        ]
        last.legend(handles=shown, loc="lower right")
    else:
        for model, _, mask in draws.pairs():
            _cloud(last, draws, mask, draws.mean_ms, *styles[model])
        last.set_title("all GPUs, each model with its own floor")
        last.set_xlabel("T_gpu + own floor (ms)")
    for ax in sheet.panels:
        ax.set_ylabel(f"{kind} step (ms)")
        _diagonal(ax)
    both = " and the step" if kind == "imputed" else ""
    how = f"A point is a cell; bars: 90 % credible intervals of the prediction{both}. Diagonal: prediction = step."
    title = f"{kind.capitalize()} against predicted decode step"
    return sheet.finish(title, draws.label, model_handles(styles), how + _mixture(draws), 4)


@styled
def context_slopes(
    draws: Draws, rises: Mapping[tuple[str, str], float] | None = None, *, axes: Given = None
) -> NDArray[Any]:
    """Step against context at the largest batch of each model, one panel per GPU, beside T_gpu + own floor.

    `rises` are published rises of the step from the shortest to the longest context, ms, by (model, gpu).
    """
    cells, styles, rises = draws.cells, model_styles(draws.cells.models), rises or {}
    columns, faint = (3, 0.15) if len(cells.models) <= 5 else (2, 0.06)
    sheet = Sheet.of(axes, len(cells.gpus), columns=min(len(cells.gpus), columns), height=4.4)
    batches: dict[str, set[float]] = {gpu: set() for gpu in cells.gpus}
    ticks: set[float] = set()
    for model, gpu, mask in draws.pairs():
        ax, (colour, marker) = sheet.panels[cells.gpus.index(gpu)], styles[model]
        batch, tokens, (step, mean) = _largest_batch(*_summaries(draws, mask, draws.step_ms, draws.mean_ms))
        batches[gpu].add(batch)
        ticks.update(tokens.tolist())
        context = tokens * 1.3 ** (cells.models.index(model) / max(1, len(cells.models) - 1) - 0.5)
        ax.fill_between(context, mean["90"][0], mean["90"][1], color=colour, alpha=faint, lw=0)
        ax.plot(context, mean["mean"], color=colour, lw=1.3, ls="--")
        for level, width in style.WIDTHS.items():
            ax.vlines(context, step[level][0], step[level][1], color=colour, lw=width)
        ax.plot(context, step["mean"], marker=marker, color=colour, ls="none", ms=6)
        if (model, gpu) in rises:
            end = (float(context[-1]), float(step["mean"][0]) + rises[model, gpu])
            ax.plot(*end, zorder=4, **style.PUBLISHED)
            ax.annotate(f"{rises[model, gpu]:+.1f}", end, (8, 0), textcoords="offset points", va="center", size=9)
    shown = spread_ticks(sorted(ticks))
    for ax, gpu in zip(sheet.panels, cells.gpus, strict=True):
        sizes = [f"{size:g}" for size in sorted(batches[gpu])]
        ax.set_title(f"{gpu}, B = {sizes[0]}" if len(sizes) == 1 else f"{gpu}, largest B ({', '.join(sizes)})")
        ax.set_xscale("log", base=2)
        ax.set_xticks(shown, [f"{tick:g}" for tick in shown])
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.margins(x=0.16)
        ax.set_xlabel("context L (tokens, shifted by model)")
        ax.set_ylabel("step (ms)")
        ax.grid(axis="y")
    handles = [*model_handles(styles), Line2D([], [], color=style.GREY, ls="--", label="T_gpu + own floor, 90 % band")]
    if rises:
        handles.append(published_handle("published rise above the shortest context, ms"))
    kind = _kind(draws)
    points = f", posterior mean; {style.INTERVALS}" if kind == "imputed" else "; bands: credible intervals"
    title = f"{kind.capitalize()} step against context at the largest batch"
    return sheet.finish(title, draws.label, handles, f"Points: {kind} step{points}.{_mixture(draws)}")


def _kind(draws: Draws) -> str:
    if draws.label == IMPUTED:
        return "imputed"
    return "simulated" if "simulated" in draws.label else "measured"


def _mixture(draws: Draws) -> str:
    """What is to be said where grids differ in their axes."""
    return "" if len(draws.batch) == 1 else " Each cell over the imputed grids that hold it."


def _used(names: NDArray[np.str_]) -> list[str]:
    return list(dict.fromkeys(names.tolist()))


def _summary(columns: Sequence[Array], weights: Sequence[Array]) -> dict[str, Any]:
    """Weighted mean, sum of weights and (low, high) of each level of each column: arrays (cell,)."""
    weights = [weight if len(column) > 1 else np.ones(1) for column, weight in zip(columns, weights, strict=True)]
    both = list(zip(columns, weights, strict=True))
    ends = np.array([weighted_quantiles(*one, [q for level in LEVELS for q in tails(level)]) for one in both]).T
    bounds = {str(level): (ends[2 * i], ends[2 * i + 1]) for i, level in enumerate(LEVELS)}
    mean = np.array([np.average(column, weights=weight) for column, weight in both])
    return {"mean": mean, "share": np.array([weight.sum() for weight in weights]), **bounds}


def _summaries(draws: Draws, mask: NDArray[np.bool_], *values: Array) -> tuple[Array, Array, list[dict[str, Any]]]:
    """Batch, context and the summary of each of `values` by cell.

    Where imputed grids differ in their axes, a cell is a (batch, context), over the draws whose grid holds it.
    """
    if len(draws.batch) == 1:
        batch, context = draws.batch[0, mask], draws.context[0, mask]
        every = [draws.weight] * len(batch)
        return batch, context, [_summary(list(v[:, mask].T), every) for v in values]
    grids, member = np.unique((draws.batch + 1j * draws.context)[:, mask], axis=0, return_inverse=True)
    places: dict[complex, list[tuple[NDArray[np.int64], int]]] = {}
    for g, grid in enumerate(grids):
        rows = np.flatnonzero((member == g) & (draws.weight > 0))
        for column, key in enumerate(grid.tolist()):
            places.setdefault(key, []).append((rows, column))
    weights = [np.concatenate([draws.weight[rows] for rows, _ in held]) for held in places.values()]
    drawn = [v[:, mask] for v in values]
    columns = [[np.concatenate([d[rows, c] for rows, c in held]) for held in places.values()] for d in drawn]
    axes = np.array(list(places))
    return axes.real, axes.imag, [_summary(own, weights) for own in columns]


def _largest_batch(batch: Array, context: Array, found: Sequence[Mapping[str, Any]]) -> tuple[float, Array, list[Any]]:
    """The largest batch with two contexts or more (or the largest): its contexts, ascending, and summaries.

    Contexts that only some of the imputed grids hold are left out if two are left: between them the grids would differ.
    """
    everywhere = found[0]["share"] > 0.999
    sizes = np.unique(batch)[::-1]
    at = next(
        (
            np.flatnonzero(held)
            for size in sizes
            for held in ((batch == size) & everywhere, batch == size)
            if len(np.unique(context[held])) > 1
        ),
        np.flatnonzero(batch == sizes[0]),
    )
    at = at[np.argsort(context[at], kind="stable")]
    taken = [
        {"mean": f["mean"][at]} | {str(level): tuple(side[at] for side in f[str(level)]) for level in LEVELS}
        for f in found
    ]
    return float(batch[at[0]]), context[at], taken


def _cloud(ax: Axes, draws: Draws, mask: NDArray[np.bool_], predicted: Array, colour: str, marker: str) -> None:
    """Cells as points, step over prediction, with 90 % intervals of both."""
    if not mask.any():
        return
    _, _, (x, y) = _summaries(draws, mask, predicted, draws.step_ms)
    ax.hlines(y["mean"], *x["90"], color=colour, lw=0.8, alpha=0.6)
    ax.vlines(x["mean"], *y["90"], color=colour, lw=0.8, alpha=0.6)
    edge = colour if marker == "x" else "white"
    ax.plot(x["mean"], y["mean"], marker=marker, color=colour, ls="none", ms=5.5, mec=edge)


def _diagonal(ax: Axes) -> None:
    """Equal limits of both axes, logarithmic where they span a factor of 8 or more, and the diagonal."""
    box = ax.dataLim
    low, high = float(min(box.min)), float(max(box.max))
    if not np.isfinite([low, high]).all():
        low, high = 0.0, 1.0
    if low > 0 and high > 8 * low:
        limits = (low / 1.15, high * 1.15)
        ax.set(xscale="log", yscale="log")
        for axis in (ax.xaxis, ax.yaxis):
            plain_log(axis)
    else:
        limits = (low - 0.05 * (high - low), high + 0.05 * (high - low))
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(6))
    ax.plot(limits, limits, color=style.GREY, lw=1, zorder=1)
    ax.set(xlim=limits, ylim=limits)
    ax.grid(visible=True)
