"""Figures of the report; each shows the numbers of the report's parts (report.json) or of `Draws`, and nothing else.

Every function takes `ax` or `axes` to draw on and returns them. Without, it makes a figure 10 inches (1200 px) wide
that pyplot does not know: `plots.floors(...).figure.savefig(path)`; in a notebook, end the cell with `.figure`.
Estimates are the mappings of `Estimate.data`; published numbers are open diamonds; every figure names its data.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import seaborn
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from rooffloor.validate.estimates.cell_draws import IMPUTED, LEVELS, Draws, tails, weighted_quantiles
from rooffloor.validate.hypotheses.absorption import size_number
from rooffloor.validate.presentation.numbers import number

type Rows = Sequence[Mapping[str, Any]]
type Given = Axes | Sequence[Axes] | NDArray[Any] | None
type Array = NDArray[np.float64]

_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "legend.fontsize": 9.5,
    "legend.title_fontsize": 9.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # a model may be called anything
}
_COLOURS = tuple(seaborn.color_palette("colorblind").as_hex())
_MARKERS = "osD^vP*X<>h"
_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_WIDTHS = {"50": 3.6, "90": 1.3}
_BLACK, _GREY = "0.1", "0.5"
_INTERVALS = "thick and thin bars: 50 % and 90 % credible intervals"
_PUBLISHED: dict[str, Any] = {"marker": "D", "mfc": "none", "mec": _BLACK, "mew": 1.3, "ms": 7, "ls": "none"}
_PARTS = {
    "weights": ("weights", _COLOURS[0]),
    "kv": ("KV cache", _COLOURS[9]),
    "other": ("other kernels", _COLOURS[2]),
    "floor": ("floor", _COLOURS[1]),
    "leftover": ("leftover", "0.75"),
}


@rc_context(_STYLE)
def two_number_table(table: Rows, label: str, *, axes: Given = None) -> NDArray[Any]:
    """Raw and residual MAPE of every model, one panel per GPU and one for the pooled means.

    Parameters
    ----------
    table : list of mappings
        Rows of the report's `table`, percent.
    label : str
        What the data are: `Draws.label`.
    axes : Axes or sequence of Axes, optional
        As many as there are GPUs (with "pooled") in the table.

    Returns
    -------
    array of Axes, shape (gpu,)

    Raises
    ------
    ValueError
        The table is empty, or there are fewer axes than panels.
    """
    models, gpus = _names(table, "model"), sorted(_names(table, "gpu"), key="pooled".__eq__)
    columns = min(len(gpus), 4)
    panels, own = _panels(axes, len(gpus), columns=columns, height=1.9 + 0.62 * len(models))
    kinds = {"raw": (_COLOURS[0], "o", -0.21), "residual": (_COLOURS[1], "s", 0.21)}
    for i, (ax, gpu) in enumerate(zip(panels, gpus, strict=True)):
        for at, model in enumerate(models):
            row = next((r for r in table if r["model"] == model and r["gpu"] == gpu), None)
            if row is None:
                ax.text(0.03, at, "no cell", transform=ax.get_yaxis_transform(), color=_GREY, va="center", size=9)
                continue
            for kind, (colour, marker, shift) in kinds.items():
                estimates = row[kind]
                if estimates is not None:
                    _interval(ax, estimates["expected"], at + shift - 0.09, colour, marker)
                    _interval(ax, estimates["as_measured"], at + shift + 0.09, colour, marker, hollow=True)
                number = (row["published"] or {}).get(kind)
                if number is not None:
                    ax.plot(number, at + shift + 0.09, zorder=4, **_PUBLISHED)
        ax.set_title("pooled: mean over GPUs" if gpu == "pooled" else gpu)
        ax.set_xlabel("MAPE (percent)")
        _rows(ax, [""] * len(models) if i % columns else models)
        for edge in np.arange(0.5, len(models) - 1):
            ax.axhline(edge, color="0.85", lw=0.8)
    high = max(ax.get_xlim()[1] for ax in panels)
    for ax in panels:
        ax.set_xlim(0, high)
    handles = [
        Line2D([], [], color=colour, marker=marker, mfc=face, ls="none", label=f"{kind} MAPE, {estimand}")
        for kind, (colour, marker, _) in kinds.items()
        for face, estimand in ((colour, "expected"), ("white", "of the cells as measured"))
    ]
    how = f"Points: posterior mean; {_INTERVALS}. Raw: without a floor; residual: with the anchor's floor of that GPU."
    if any(value is not None for row in table for value in (row["published"] or {}).values()):
        handles.append(_published())
    _legend(panels, own, handles, how, columns=3)
    _heading(panels, own, "Two-number report: raw and residual MAPE", label)
    return np.array(panels)


@rc_context(_STYLE)
def floors(rows: Rows, self_floors: Rows, label: str, *, ax: Axes | None = None) -> Axes:
    """Forest plot of the floors, ms, by GPU; the study's own self-floors beside the model's.

    Parameters
    ----------
    rows : list of mappings
        The report's `floors["by_class"]` or `floors["by_model"]`.
    self_floors : list of mappings
        The report's `floors["self_floors"]`; a model that `rows` lacks gets a row of its own.
    label : str
        What the data are.
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        There are no floors.
    """
    own_floor = {(r["gpu"], r["model"]): r for r in self_floors}
    found = {(r["gpu"], r.get("class") or r["model"]): r["floor"] for r in rows}
    alone = {key: r["floor"] for key, r in own_floor.items() if key not in found}
    gpus = _names(rows, "gpu")
    entries: list[tuple[str, str | None]] = []
    for gpu in gpus:
        entries += [(gpu, None), *(key for key in (*found, *alone) if key[0] == gpu)]
    (ax,), own = _panels(ax, 1, height=1.9 + 0.3 * len(entries))
    ax.axvline(0, color=_BLACK, lw=1)
    for at, (gpu, name) in enumerate(entries):
        if name is None:
            continue
        key, colour = (gpu, name), _COLOURS[gpus.index(gpu) % len(_COLOURS)]
        _interval(ax, found.get(key) or alone[key], at, colour, "o")
        if key in own_floor:
            _interval(ax, own_floor[key]["reading"], at + 0.3, _BLACK, "s", hollow=True)
            if own_floor[key]["published"] is not None:
                ax.plot(own_floor[key]["published"], at + 0.3, zorder=4, **_PUBLISHED)
    names = [gpu if name is None else name + (", self-floor" if (gpu, name) in alone else "") for gpu, name in entries]
    _rows(ax, names, bold=[name is None for _, name in entries])
    ax.set_xlabel("floor δ added to T_gpu (ms)")
    handles = [Line2D([], [], color=_GREY, marker="o", ls="none", label="the model's floor δ")]
    if self_floors:
        handles.append(Line2D([], [], color=_BLACK, marker="s", mfc="white", ls="none", label="the study's reading"))
        handles.append(_published("published self-floor"))
    _legend([ax], own, handles, f"Points: posterior mean; {_INTERVALS}.", columns=3)
    _heading([ax], own, "Floors by GPU", label)
    return ax


@rc_context(_STYLE)
def measured_predicted(draws: Draws, *, axes: Given = None) -> NDArray[Any]:
    """Step against T_gpu + the anchor's floor, one panel per GPU; last panel the MoE, or each model's own floor.

    Parameters
    ----------
    draws : Draws
        Where there is a dispatch term (a mixture of experts), the last panel shows those cells with and without it;
        else all cells with their own floors.
    axes : Axes or sequence of Axes, optional
        One more than there are GPUs.

    Returns
    -------
    array of Axes, shape (gpu + 1,)

    Raises
    ------
    ValueError
        There are fewer axes than panels.
    """
    cells, styles, kind = draws.cells, _model_styles(draws.cells.models), _kind(draws)
    panels, own = _panels(axes, len(cells.gpus) + 1, columns=2, height=4.1)
    last, anchored = panels[-1], draws.gpu_ms + draws.anchor_floor_ms
    for model, gpu, mask in draws.pairs():
        ax = panels[cells.gpus.index(gpu)]
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
        terms = {"with": (whole, _COLOURS[0], "o"), "without": (whole - draws.dispatch_ms, _COLOURS[1], "x")}
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
    for ax in panels:
        ax.set_ylabel(f"{kind} step (ms)")
        _diagonal(ax)
    both = " and the step" if kind == "imputed" else ""
    how = f"A point is a cell; bars: 90 % credible intervals of the prediction{both}. Diagonal: prediction = step."
    _legend(panels, own, _model_handles(styles), how + _mixture(draws), columns=4)
    _heading(panels, own, f"{kind.capitalize()} against predicted decode step", draws.label)
    return np.array(panels)


@rc_context(_STYLE)
def breakdown(rows: Rows, label: str, *, axes: Given = None) -> NDArray[Any]:
    """What the mean step of each cell group is made of, ms: stacked bars, one panel per GPU.

    Parameters
    ----------
    rows : list of mappings
        The report's `breakdown`. Negative parts are hatched and stacked to the left of zero.
    label : str
        What the data are.
    axes : Axes or sequence of Axes, optional
        As many as there are GPUs.

    Returns
    -------
    array of Axes, shape (gpu,)

    Raises
    ------
    ValueError
        There are no rows, or fewer axes than panels.
    """
    gpus, entries = _names(rows, "gpu"), list[tuple[str, str | None]]()
    for model in _names(rows, "model"):
        entries += [(model, None), *dict.fromkeys((model, r["group"]) for r in rows if r["model"] == model)]
    place = {entry: at for at, entry in enumerate(entries)}
    columns = min(len(gpus), 3)
    panels, own = _panels(axes, len(gpus), columns=columns, height=2.1 + 0.36 * len(entries))
    for i, (ax, gpu) in enumerate(zip(panels, gpus, strict=True)):
        ax.axvline(0, color=_BLACK, lw=1)
        for row in (r for r in rows if r["gpu"] == gpu):
            _bar(ax, row, place[row["model"], row["group"]])
        ax.set_title(gpu)
        ax.set_xlabel("mean step (ms)")
        names = [textwrap.fill(group or model, 24) for model, group in entries]
        _rows(ax, [""] * len(names) if i % columns else names, bold=[group is None for _, group in entries])
    low, high = min(ax.get_xlim()[0] for ax in panels), max(ax.get_xlim()[1] for ax in panels)
    for ax in panels:
        ax.set_xlim(low, high)
    handles: list[Line2D | Patch] = [Patch(fc=colour, ec="white", label=name) for name, colour in _PARTS.values()]
    handles.append(Patch(fc="white", ec=_GREY, hatch="////", label="negative part (left of zero)"))
    handles.append(Line2D([], [], color=_BLACK, marker="d", lw=1.3, label="step, 90 % interval"))
    handles.append(Line2D([], [], color=_BLACK, marker="|", lw=1.3, label="floor's end, 90 % interval"))
    _legend(panels, own, handles, "Bars: posterior mean of each part; whiskers: 90 % credible intervals.", columns=4)
    _heading(panels, own, "What a decode step is made of", label)
    return np.array(panels)


@rc_context(_STYLE)
def context_slopes(
    draws: Draws, rises: Mapping[tuple[str, str], float] | None = None, *, axes: Given = None
) -> NDArray[Any]:
    """Step against context at the largest batch of each model, one panel per GPU, beside T_gpu + own floor.

    Parameters
    ----------
    draws : Draws
    rises : mapping of (model, gpu) to float, optional
        Published rises of the step from the shortest to the longest context, ms.
    axes : Axes or sequence of Axes, optional
        As many as there are GPUs.

    Returns
    -------
    array of Axes, shape (gpu,)

    Raises
    ------
    ValueError
        There are fewer axes than panels.
    """
    cells, styles, rises = draws.cells, _model_styles(draws.cells.models), rises or {}
    columns, faint = (3, 0.15) if len(cells.models) <= 5 else (2, 0.06)
    panels, own = _panels(axes, len(cells.gpus), columns=min(len(cells.gpus), columns), height=4.4)
    batches: dict[str, set[float]] = {gpu: set() for gpu in cells.gpus}
    ticks: set[float] = set()
    for model, gpu, mask in draws.pairs():
        ax, (colour, marker) = panels[cells.gpus.index(gpu)], styles[model]
        batch, tokens, (step, mean) = _largest_batch(*_summaries(draws, mask, draws.step_ms, draws.mean_ms))
        batches[gpu].add(batch)
        ticks.update(tokens.tolist())
        context = tokens * 1.3 ** (cells.models.index(model) / max(1, len(cells.models) - 1) - 0.5)
        ax.fill_between(context, mean["90"][0], mean["90"][1], color=colour, alpha=faint, lw=0)
        ax.plot(context, mean["mean"], color=colour, lw=1.3, ls="--")
        for level, width in _WIDTHS.items():
            ax.vlines(context, step[level][0], step[level][1], color=colour, lw=width)
        ax.plot(context, step["mean"], marker=marker, color=colour, ls="none", ms=6)
        if (model, gpu) in rises:
            end = (float(context[-1]), float(step["mean"][0]) + rises[model, gpu])
            ax.plot(*end, zorder=4, **_PUBLISHED)
            ax.annotate(f"{rises[model, gpu]:+.1f}", end, (8, 0), textcoords="offset points", va="center", size=9)
    shown = _spread(sorted(ticks))
    for ax, gpu in zip(panels, cells.gpus, strict=True):
        sizes = [f"{size:g}" for size in sorted(batches[gpu])]
        ax.set_title(f"{gpu}, B = {sizes[0]}" if len(sizes) == 1 else f"{gpu}, largest B ({', '.join(sizes)})")
        ax.set_xscale("log", base=2)
        ax.set_xticks(shown, [f"{tick:g}" for tick in shown])
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.margins(x=0.16)
        ax.set_xlabel("context L (tokens, shifted by model)")
        ax.set_ylabel("step (ms)")
        ax.grid(axis="y")
    handles = [*_model_handles(styles), Line2D([], [], color=_GREY, ls="--", label="T_gpu + own floor, 90 % band")]
    if rises:
        handles.append(_published("published rise above the shortest context, ms"))
    kind = _kind(draws)
    points = f", posterior mean; {_INTERVALS}" if kind == "imputed" else "; bands: credible intervals"
    _legend(panels, own, handles, f"Points: {kind} step{points}.{_mixture(draws)}", columns=3)
    _heading(panels, own, f"{kind.capitalize()} step against context at the largest batch", draws.label)
    return np.array(panels)


@rc_context(_STYLE)
def margins(
    h1: Mapping[str, Any], label: str, margin: float, *, probability: float = 0.95, axes: Given = None
) -> NDArray[Any]:
    """Probability that a family's residual MAPE is within a margin of the anchor's, as a curve over margins.

    Parameters
    ----------
    h1 : mapping
        The report's `hypotheses["H1"]`; one panel per family.
    label : str
        What the data are.
    margin : float
        The stated margin, percentage points of MAPE.
    probability : float
        Decision limit; a verdict is refuted below 1 - `probability`.
    axes : Axes or sequence of Axes, optional
        As many as there are families, one where H1 was not tested.

    Returns
    -------
    array of Axes, shape (family,)

    Raises
    ------
    ValueError
        There are fewer axes than panels.
    """
    families: Rows = h1.get("families", [])
    count = max(1, len(families))
    panels, own = _panels(axes, count, columns=min(count, 3), height=4.2 if count < 4 else 3.1)
    gpus = list(dict.fromkeys(sku["gpu"] for family in families for sku in family["per_sku"]))
    styles = {gpu: (_COLOURS[i % 10], _LINES[i % 5], _MARKERS[i % 11]) for i, gpu in enumerate(gpus)}
    if not families:
        words = textwrap.fill(" ".join(h1["sentences"]), 70)
        panels[0].text(0.5, 0.5, words, ha="center", va="center", transform=panels[0].transAxes)
    for ax, family in zip(panels, families, strict=False):
        points = [p["margin"] for p in family["margins"]]
        for sku in family["per_sku"]:
            colour, line, marker = styles[sku["gpu"]]
            ax.plot(points, [p[f"on {sku['gpu']}"] for p in family["margins"]], color=colour, ls=line, lw=1.8)
            ax.plot(margin, sku["probability"]["value"], color=colour, marker=marker, ms=6)
        ax.plot(points, [p["probability"] for p in family["margins"]], color=_BLACK, lw=2.6)
        ax.plot(margin, family["probability"]["value"], color=_BLACK, marker="o", ms=7)
        ax.plot(margin, family["absolute_probability"]["value"], color=_BLACK, marker="o", mfc="white", ms=7)
        ax.set_title(f"{family['family']}: {family['verdict']}")
    for ax in panels:
        ax.axvline(margin, color=_GREY, ls=":", lw=1.5, zorder=0)
        for level in (probability, 1 - probability):
            ax.axhline(level, color=_GREY, lw=1, zorder=0)
        ax.set_xlim(-0.1, 5.1)
        ax.set_ylim(-0.03, 1.03)
        ax.set_xlabel("margin (points of MAPE)")
        ax.set_ylabel("posterior probability")
    handles = [
        Line2D([], [], color=colour, ls=line, lw=1.8, marker=marker, label=gpu)
        for gpu, (colour, line, marker) in styles.items()
    ]
    handles.append(Line2D([], [], color=_BLACK, lw=2.6, marker="o", label="pooled over GPUs"))
    handles.append(Line2D([], [], color=_GREY, ls=":", lw=1.5, label=f"stated margin, {margin:g} points"))
    absolute = "pooled: residual MAPE itself below the absolute margin"
    handles.append(Line2D([], [], color=_BLACK, marker="o", mfc="white", ls="none", label=absolute))
    how = (
        "Curves: probability that the residual MAPE exceeds the anchor's by less than the margin. Grey lines: supported"
        f" from {probability:g}, refuted up to {1 - probability:.2g}; the verdict takes the lower pooled circle."
    )
    _legend(panels, own, handles, how, columns=3)
    _heading(panels, own, "Transfer within the class (H1) as a function of the margin", label)
    return np.array(panels)


@rc_context(_STYLE)
def power(rates: Any, *, ax: Axes | None = None) -> Axes:
    """How often H1 is supported or refuted against the true difference, three GPUs, by simulation.

    Parameters
    ----------
    rates : Rates
        Of `simulation.hypotheses`.
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        No such scenario was simulated.
    """
    rows = rates.table
    rows = rows[
        (rows["test"] == "H1") & (rows["gpus"] == 3) & (rows["mechanism"] == "leftover") & (rows["leftover"] > 0)
    ]
    rows = rows[rows["between"] == 1.0].sort_values("difference")
    if not len(rows):
        raise ValueError("no simulated study of H1 on three GPUs to draw")
    (ax,), own = _panels(ax, 1, height=4.6)
    wanted = {
        "supported": ("supported", _COLOURS[0], "o"),
        "refuted": ("refuted", _COLOURS[1], "s"),
        "t, K-1 df": ("t-test over GPUs, p < 0.05", _GREY, "^"),
    }
    for quantity, (name, colour, marker) in wanted.items():
        own_rows = rows[rows["quantity"] == quantity]
        ax.errorbar(
            own_rows["difference"],
            100 * own_rows["rate"],
            yerr=200 * own_rows["se"],
            color=colour,
            marker=marker,
            label=name,
            capsize=2,
        )
    ax.axvline(2.0, color=_BLACK, lw=1, ls="--")
    ax.text(2.05, 97, "margin", va="top", size=9)
    ax.axhline(5, color=_GREY, lw=0.8, ls=":")
    ax.set_ylim(-3, 103)
    ax.set_xlabel("true residual MAPE of the family less the anchor's (points)")
    ax.set_ylabel("share of simulated studies (percent)")
    ax.legend(loc=(0.62, 0.74), frameon=False)
    _heading([ax], own, "Size and power of H1, three GPUs that differ by 1 point (sd)", "simulated; bars: 2 se")
    return ax


@rc_context(_STYLE)
def joint(rows: Rows, label: str, *, axes: Given = None) -> NDArray[Any]:
    """Joint posterior of offset and slope of each pair that H3 judges: ellipses of 50 and 90 %.

    Left the offset at T_gpu = 0, right that at the pair's mean T_gpu, both less the anchor's floor.

    Parameters
    ----------
    rows : list of mappings
        `per_sku` of the report's `hypotheses["H3"]`; pairs that do not diverge, or whose T_gpu does not vary, are left
        out.
    label : str
        What the data are.
    axes : sequence of Axes, optional
        Two.

    Returns
    -------
    array of Axes, shape (2,)

    Raises
    ------
    ValueError
        No pair is left to draw, or there are fewer than two axes.
    """
    judged = [row for row in rows if row["verdict"] != "not tested" and row["offset_slope"] is not None]
    names = [f"{row['model']} on {row['gpu']}" for row in judged]
    styles = _model_styles(names)
    if not judged:
        raise ValueError("nothing to draw: H3 judges no pair whose T_gpu varies")
    panels, own = _panels(axes, 2, columns=2, height=4.4)
    for row, name in zip(judged, names, strict=True):
        found, (colour, marker) = row["offset_slope"], styles[name]
        mean, covariance = np.array(found["mean"]), np.array(found["covariance"])
        lever = np.array([[1.0, found["mean_gpu_ms"]], [0.0, 1.0]])
        shifted = lever @ mean - [found["mean_gpu_ms"], 0.0], lever @ covariance @ lever.T
        for ax, (at, spread) in zip(panels, ((mean, covariance), shifted), strict=True):
            for level in LEVELS:
                ax.plot(*_ellipse(at, spread, level / 100), color=colour, lw=0.5 * _WIDTHS[str(level)] + 0.5)
            ax.plot(*at, marker=marker, color=colour, ms=6)
    for ax, where in zip(panels, ("T_gpu = 0", "mean T_gpu"), strict=True):
        ax.axhline(1.0, color=_GREY, lw=1, zorder=0)
        ax.set_xlabel(f"offset at {where}, less the anchor's floor (ms)")
        ax.set_ylabel("slope of the step on T_gpu")
        ax.xaxis.set_major_locator(MaxNLocator(6))
    panels[0].axvline(0.0, color=_GREY, lw=1.3, ls=":", zorder=0)
    handles = [
        Line2D([], [], color=colour, marker=marker, label=f"{name}: cos² {row['offset_slope']['cos2']:.2f}")
        for row, (name, (colour, marker)) in zip(judged, styles.items(), strict=True)
    ]
    handles.append(Line2D([], [], color=_GREY, lw=1, label="slope 1: offset only"))
    handles.append(Line2D([], [], color=_GREY, lw=1.3, ls=":", label="no offset: scale only"))
    how = (
        "Thick and thin ellipses: 50 % and 90 % of the normal distribution with the posterior's mean and covariance; "
        "no marginal intervals. cos² of 1: offset and slope cannot be told apart."
    )
    _legend(panels, own, handles, how, columns=3)
    _heading(panels, own, "Offset and slope of the models that diverge (H3)", label)
    return np.array(panels)


def _ellipse(mean: Array, covariance: Array, share: float) -> Array:
    """Points (2, n) around the smallest region that holds a share of a normal distribution of two variables."""
    size, directions = np.linalg.eigh(covariance)
    angle = np.linspace(0.0, 2.0 * np.pi, 121)
    reach = np.sqrt(-2.0 * np.log1p(-share) * np.maximum(size, 0.0))
    return np.asarray(mean[:, None] + directions @ (reach[:, None] * np.stack([np.cos(angle), np.sin(angle)])))


@rc_context(_STYLE)
def absorption(rows: Rows, label: str, *, ax: Axes | None = None) -> Axes:
    """Share of the squared relative error that the best scalar removes, per (model, GPU), beside that of pure noise.

    Parameters
    ----------
    rows : list of mappings
        The report's `absorption`.
    label : str
        What the data are.
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        There are no rows.
    """
    gpus, entries = _names(rows, "gpu"), list[tuple[str, str | None]]()
    for model in _names(rows, "model"):
        entries += [(model, None), *((model, r["gpu"]) for r in rows if r["model"] == model)]
    place = {entry: at for at, entry in enumerate(entries)}
    (ax,), own = _panels(ax, 1, height=1.9 + 0.3 * len(entries))
    for row in rows:
        at, noise = place[row["model"], row["gpu"]], row["noise_squared"]
        low, high = noise["intervals"]["90"]
        ax.barh(at, high - low, 0.8, left=low, color="0.85")
        ax.vlines(noise["value"], at - 0.4, at + 0.4, color=_GREY, lw=1.5)
        _interval(ax, row["squared"], at, _COLOURS[gpus.index(row["gpu"]) % len(_COLOURS)], "o")
        ax.text(1.02, at, number(row["left"], unit=True), transform=ax.get_yaxis_transform(), va="center", size=9)
    ax.text(1.02, -0.9, "MAPE left", transform=ax.get_yaxis_transform(), va="center", size=9, weight="bold")
    _rows(ax, [model if gpu is None else gpu for model, gpu in entries], bold=[gpu is None for _, gpu in entries])
    ax.set_xlim(-0.02, 1.02)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
    ax.set_xlabel("squared relative error of T_gpu that the best scalar removes (percent)")
    handles = [
        Line2D([], [], color=_BLACK, marker="o", ls="none", label="the pair's residual"),
        Patch(fc="0.85", label="pure noise of its size: 90 % interval"),
        Line2D([], [], color=_GREY, lw=1.5, label="pure noise: mean"),
    ]
    _legend([ax], own, handles, f"Points: posterior mean; {_INTERVALS}.", columns=3)
    _heading([ax], own, "What a scalar floor absorbs of the residual", label)
    return ax


@rc_context(_STYLE)
def hidden_errors(rows: Rows, label: str, gpu: str | None = None, *, ax: Axes | None = None) -> Axes:
    """Share of each kind of error that a free scalar hides, error x model on one GPU, and the smallest size that shows.

    Parameters
    ----------
    rows : list of mappings
        The report's `hidden_errors`.
    label : str
        What the data are.
    gpu : str, optional
        Default: the first of those with most models.
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        There are no rows of that GPU.
    """
    gpu = gpu or max(_names(rows, "gpu"), key=lambda name: len({r["model"] for r in rows if r["gpu"] == name}))
    rows = [row for row in rows if row["gpu"] == gpu]
    models, errors = _names(rows, "model"), _names(rows, "error")
    words = {row["error"]: f"{textwrap.fill(row['label'], 50)}\nin {row['unit']}" for row in rows}
    (ax,), own = _panels(ax, 1, height=1.6 + 0.52 * len(errors))
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
        ax.text(at[1], at[0], text, ha="center", va="center", size=9, color="white" if shares[at] > 0.55 else _BLACK)
    ax.set_facecolor("0.92")
    image = ax.imshow(shares, cmap="YlGnBu", vmin=0, vmax=1, aspect="auto")
    ax.figure.colorbar(image, ax=ax, label="share hidden (of the squared effect)", pad=0.02)
    ax.set_xticks(range(len(models)), [textwrap.fill(m, 14) for m in models])
    if len(models) > 5:
        ax.tick_params(axis="x", rotation=90)
    _rows(ax, [words[error] for error in errors])
    ax.grid(visible=False)
    ax.set_ylim(len(errors) - 0.5, -0.5)
    ax.set_xlabel(f"model on {gpu}")
    how = (
        "Colour: share that a free scalar hides; number: smallest size that then shows with a power of 80 % at 5 %, in "
        "the unit of its row. At posterior means, without an interval. Grey: no cell depends on it."
    )
    _legend([ax], own, [Patch(fc="0.92", ec=_GREY, label="no effect, or not in the model")], how, columns=1)
    _heading([ax], own, f"Errors of T_gpu that a scalar floor hides on {gpu}", label)
    return ax


# ---- pieces ----------------------------------------------------------------------------------------------------


def _panels(given: Given, count: int, *, columns: int = 1, height: float) -> tuple[list[Axes], bool]:
    """The axes to draw on, and whether the figure is ours."""
    if given is None:
        rows = -(-count // columns)
        figure = Figure(figsize=(10, 0.9 + height * rows), dpi=120, layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).flat
        for spare in grid[count:]:
            spare.remove()
        return list(grid[:count]), True
    axes = list(np.atleast_1d(np.asarray(given, dtype=object)))
    if len(axes) < count:
        raise ValueError(f"this figure has {count} panels, got {len(axes)} axes")
    return axes[:count], False


def _heading(panels: Sequence[Axes], own: bool, title: str, label: str) -> None:
    """Title of the figure, with the label of the data."""
    text = f"{title}\n{textwrap.fill(f'Data: {label}', 105)}"
    figure = panels[0].figure
    if own and isinstance(figure, Figure):
        figure.suptitle(text, x=0.01, ha="left", weight="bold", size=11.5)
    else:
        panels[0].set_title("\n".join(filter(None, (text, panels[0].get_title()))))


def _legend(panels: Sequence[Axes], own: bool, handles: Sequence[Any], how: str, columns: int) -> None:
    """Legend below our own figures, or within the first of the given axes, with the words on how to read the figure."""
    figure = panels[0].figure
    if own and isinstance(figure, Figure):
        title = textwrap.fill(how, 150)
        figure.legend(handles=handles, title=title, loc="outside lower center", ncols=min(columns, len(handles)))
    else:
        panels[0].legend(handles=handles, title=textwrap.fill(how, 60), loc="best")


def _names(rows: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    """Different values of a column, in order."""
    names = list(dict.fromkeys(row[key] for row in rows))
    if not names:
        raise ValueError("nothing to draw: the rows are empty")
    return names


def _rows(ax: Axes, names: Sequence[str], bold: Sequence[bool] | None = None) -> None:
    """Names on the y axis, first on top."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")
    for tick, heavy in zip(ax.get_yticklabels(), bold or [False] * len(names), strict=True):
        tick.set_fontweight("bold" if heavy else "normal")


def _interval(
    ax: Axes, estimate: Mapping[str, Any], at: float, colour: str, marker: str, *, hollow: bool = False
) -> None:
    """One estimate as a point with its intervals, along x."""
    if estimate["value"] is None:
        return
    for level, (low, high) in estimate["intervals"].items():
        ax.hlines(at, low, high, color=colour, lw=_WIDTHS[level])
    ax.plot(estimate["value"], at, marker=marker, color=colour, mfc="white" if hollow else colour, ms=5.5, zorder=3)


def _published(text: str = "published") -> Line2D:
    return Line2D([], [], label=text, **_PUBLISHED)


def _model_styles(models: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each model: 10 colours and 11 markers, so that pairs do not repeat."""
    return {model: (_COLOURS[i % 10], _MARKERS[i % 11]) for i, model in enumerate(models)}


def _model_handles(styles: Mapping[str, tuple[str, str]]) -> list[Line2D]:
    return [
        Line2D([], [], color=colour, marker=marker, ls="none", ms=6, label=model)
        for model, (colour, marker) in styles.items()
    ]


def _kind(draws: Draws) -> str:
    if draws.label == IMPUTED:
        return "imputed"
    return "simulated" if "simulated" in draws.label else "measured"


def _mixture(draws: Draws) -> str:
    """What is to be said where grids differ in their axes."""
    return "" if len(draws.batch) == 1 else " Each cell over the imputed grids that hold it."


def _used(names: NDArray[np.str_]) -> list[str]:
    return list(dict.fromkeys(names.tolist()))


def _summary(values: Array, weight: Array) -> dict[str, Any]:
    """Weighted mean of each column, (low, high) of each level, sum of weights: arrays (cell,).

    One row: the numbers themselves.
    """
    if len(values) == 1:
        weight = np.ones(1)
    probabilities = [q for level in LEVELS for q in tails(level)]
    found = np.array([weighted_quantiles(column, weight, probabilities) for column in values.T])
    bounds = {str(level): (found[:, 2 * i], found[:, 2 * i + 1]) for i, level in enumerate(LEVELS)}
    return {
        "mean": np.average(values, axis=0, weights=weight),
        "share": np.full(values.shape[1], weight.sum()),
        **bounds,
    }


def _summaries(draws: Draws, mask: NDArray[np.bool_], *values: Array) -> tuple[Array, Array, list[dict[str, Any]]]:
    """Batch, context and the summary of each of `values` by cell; imputed grids may differ in their axes.

    Where they do, a cell is a (batch, context), summarised over the draws whose grid holds it.
    """
    if len(draws.batch) == 1:
        found = [_summary(v[:, mask], draws.weight) for v in values]
        return draws.batch[0, mask], draws.context[0, mask], found
    grids, member = np.unique((draws.batch + 1j * draws.context)[:, mask], axis=0, return_inverse=True)
    places: dict[complex, list[tuple[NDArray[np.int64], int]]] = {}
    for g, grid in enumerate(grids):
        rows = np.flatnonzero((member == g) & (draws.weight > 0))
        for column, key in enumerate(grid.tolist()):
            places.setdefault(key, []).append((rows, column))
    weights = [np.concatenate([draws.weight[rows] for rows, _ in held]) for held in places.values()]
    out = []
    for v in values:
        drawn = v[:, mask]
        columns = [np.concatenate([drawn[rows, c] for rows, c in held])[:, None] for held in places.values()]
        parts = [_summary(column, weight) for column, weight in zip(columns, weights, strict=True)]
        bounds = {str(q): tuple(np.concatenate([p[str(q)][i] for p in parts]) for i in (0, 1)) for q in LEVELS}
        out.append({name: np.concatenate([p[name] for p in parts]) for name in ("mean", "share")} | bounds)
    axes = np.array(list(places))
    return axes.real, axes.imag, out


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
    ax.plot(
        x["mean"], y["mean"], marker=marker, color=colour, ls="none", ms=5.5, mec=colour if marker == "x" else "white"
    )


def _diagonal(ax: Axes) -> None:
    """Equal limits of both axes, logarithmic where they span a factor of 8 or more, and the diagonal."""
    box = ax.dataLim
    low, high = float(min(box.min)), float(max(box.max))
    if not np.isfinite([low, high]).all():
        low, high = 0.0, 1.0
    if low > 0 and high > 8 * low:
        limits = (low / 1.15, high * 1.15)
        for axis, scale in ((ax.xaxis, ax.set_xscale), (ax.yaxis, ax.set_yscale)):
            scale("log")
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
    else:
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(6))
        limits = (low - 0.05 * (high - low), high + 0.05 * (high - low))
    ax.plot(limits, limits, color=_GREY, lw=1, zorder=1)
    ax.set_xlim(*limits)
    ax.set_ylim(*limits)
    ax.grid(visible=True)


def _bar(ax: Axes, row: Mapping[str, Any], at: int) -> None:
    """One stacked bar: positive parts to the right of zero, negative ones hatched to the left."""
    ends: dict[Literal["right", "left"], float] = {"right": 0.0, "left": 0.0}
    for part, (_, colour) in _PARTS.items():
        value = row["parts"][part]["value"]
        if value is None:
            continue
        side: Literal["right", "left"] = "left" if value < 0 else "right"
        ax.barh(at, value, 0.74, left=ends[side], color=colour, ec="white", lw=0.6, hatch="////" if value < 0 else None)
        if part == "floor" and "90" in row["parts"][part]["intervals"]:
            _whisker(
                ax, [ends[side] + v for v in row["parts"][part]["intervals"]["90"]], ends[side] + value, at + 0.2, "|"
            )
        ends[side] += value
    if row["step"]["value"] is not None:
        _whisker(ax, row["step"]["intervals"].get("90"), row["step"]["value"], at - 0.14, "d")


def _whisker(ax: Axes, bounds: Sequence[float] | None, value: float, at: float, marker: str) -> None:
    if bounds is not None:
        ax.hlines(at, bounds[0], bounds[1], color=_BLACK, lw=1.3, zorder=3)
    ax.plot(value, at, marker=marker, color=_BLACK, ms=6, zorder=3)


def _spread(values: Sequence[float], ratio: float = 1.5) -> list[float]:
    """The largest value and those below it that keep a ratio, so that tick labels do not overlap."""
    kept: list[float] = []
    for value in reversed(values):
        if not kept or kept[-1] >= ratio * value:
            kept.append(value)
    return kept[::-1]


@rc_context(_STYLE)
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
        colour = _COLOURS[1] if chosen else _COLOURS[0]
        gap, reach = row["elpd_diff"], 2.0 * row["dse"]
        ax.plot([gap - reach, gap + reach], [y, y], color=colour, lw=_WIDTHS["90"])
        ax.plot(gap, y, "s" if chosen else "o", color=colour, ms=7)
    ax.axvline(0.0, color=_GREY, lw=0.8, ls=":")
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


@rc_context(_STYLE)
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
    (ax,), own = _panels(ax, 1, height=1.2 + 0.075 * len(rows) * max(len(scales), 4))
    _rows(ax, [row["name"] for row in rows])
    gains = [one["log_bf"] for row in rows for one in row["per_scale"] if one["log_bf"] is not None]
    if max(map(abs, gains), default=0.0) > 40.0:
        ax.set_xscale("symlog", linthresh=10.0)
        ax.xaxis.set_major_formatter("{x:g}")
    ax.axvspan(-np.log(3.0), np.log(3.0), color="0.9", zorder=0)
    ax.axvline(0.0, color=_GREY, lw=0.8, zorder=0)
    shifts = np.linspace(-0.3, 0.3, len(scales)) if len(scales) > 1 else np.zeros(1)
    for at, row in enumerate(rows):
        for k, (one, shift) in enumerate(zip(row["per_scale"], shifts, strict=True)):
            colour, marker = _COLOURS[k % len(_COLOURS)], _MARKERS[k % len(_MARKERS)]
            if one["log_bf"] is not None:
                reach = 2.0 * (one["log_bf_se"] or 0.0)
                ax.plot([one["log_bf"] - reach, one["log_bf"] + reach], 2 * [at + shift], color=colour, lw=1.3)
                known = one["log_bf_se"] is not None
                ax.plot(one["log_bf"], at + shift, marker, color=colour, mfc=colour if known else "white", ms=4.5)
            elif one["log_ml"] is None and one.get("run", True):
                ax.plot(0.008, at + shift, "<", color=colour, ms=4.5, transform=ax.get_yaxis_transform())
    ax.set_xlabel(f"log Bayes factor against: {which['reference']} (right: the figures are more probable)")
    handles = [
        Line2D([], [], color=_COLOURS[k % len(_COLOURS)], marker=_MARKERS[k % len(_MARKERS)], lw=1.3, label=scale)
        for k, scale in enumerate(scales)
    ]
    handles.append(Line2D([], [], color=_GREY, marker="<", ls="none", label="out of reach"))
    how = "Bars: two standard errors; hollow: unknown error. Grey band: Bayes factor 1/3 to 3."
    _legend([ax], own, [*handles, Patch(fc="0.9", label="takes no side")], how, columns=4)
    _heading([ax], own, "Which floor? Structures on the published figures", "published aggregates")
    return ax


@rc_context(_STYLE)
def plan(found: Any, *, ax: Axes | None = None) -> Axes:
    """What is expected of a plan against the number of cells, beside as many random cells.

    Parameters
    ----------
    found : Plan
        Of `plan.plan`.
    ax : Axes, optional

    Returns
    -------
    Axes
    """
    (ax,), own = _panels(ax, 1, height=4.4)
    count = np.arange(len(found.cells) + 1)
    scale = 100.0 if found.goal == "shape" else 1.0
    label = {
        "floor": "floor known to ± (ms, 90 % interval)",
        "shape": "slope known to ± (percent, 90 % interval)",
        "overlap": "probability of telling the structure",
    }[found.goal]
    random = scale * np.array([found.before, *found.random])
    planned = scale * np.array([found.before, *(cell.expected for cell in found.cells)])
    ax.plot(count, random, color=_GREY, marker="s", mfc="white", ls="--", label="random cells, mean")
    ax.plot(count, planned, color=_COLOURS[0], marker="o", label="planned cells")
    if found.goal == "floor" and any(cell.with_constants > 1.05 * cell.expected for cell in found.cells):
        whole = [cell.with_constants for cell in found.cells]
        text = "planned, with the uncertainty of the constants"
        ax.plot(count[1:], whole, color=_COLOURS[0], marker="o", mfc="white", ls=":", label=text)
    if found.width is not None:
        ax.axhline(scale * found.width, color=_BLACK, lw=1, ls=":", label="asked")
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
    ax.set(xlabel=f"further cells (batch, context){before}", ylabel=label)
    ax.legend(loc="best")
    _heading([ax], own, f"{found.model} on {', '.join(found.gpus)}: what further cells tell", "expected, not measured")
    return ax


@rc_context(_STYLE)
def prediction(
    rows: Rows, label: str, against: str = "batch", *, step: str = "measured", ax: Axes | None = None
) -> Axes:
    """Predicted step with 50 and 90 % bands against batch or context: a curve per model, GPU and value of the other.

    Parameters
    ----------
    rows : list of mappings
        `rows` of a prediction (`Prediction.data`), with or without those `not_predicted`.
    label : str
        What the numbers rest on: `Prediction.label`.
    against : {"batch", "context"}
    step : {"measured", "mean"}
        The step that a measurement would show, or the mean step.
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Nothing is predicted, there are more than 10 models x GPUs, or `against` or `step` is unknown.
    """
    pairs = _pairs(rows)
    if len(pairs) > len(_COLOURS):
        raise ValueError(f"one panel shows at most {len(_COLOURS)} models x GPUs, got {len(pairs)}")
    (ax,), own = _panels(ax, 1, height=5.4)
    others = _few({row[_other(against)] for row in rows}, max(1, min(3, len(_COLOURS) // len(pairs))))
    curves = [(pair, other) for pair in pairs for other in others]
    for at, (pair, other) in enumerate(curves):
        _curve(ax, _chosen(rows, pair, _other(against), other), against, step, at)
    _predicted_axes(ax, rows, against, step)
    handles: list[Any] = [
        Line2D([], [], color=_COLOURS[at], marker=_MARKERS[at], label=f"{model} on {gpu}, {_other(against)} {other}")
        for at, ((model, gpu), other) in enumerate(curves)
    ]
    _legend([ax], own, [*handles, *_band_handles(rows)], _bands_caption(step), columns=3)
    _heading([ax], own, f"Predicted decode step against {against}", label)
    return ax


@rc_context(_STYLE)
def predictions(rows: Rows, label: str, *, step: str = "measured", axes: Given = None) -> NDArray[Any]:
    """`prediction` with a row of panels per model and GPU: against batch, and against context where there are several.

    Parameters
    ----------
    rows, label, step
        As in `prediction`.
    axes : Axes or sequence of Axes, optional

    Returns
    -------
    array of Axes, shape (panel,)

    Raises
    ------
    ValueError
        Nothing is predicted, there are more than 12 models x GPUs, or fewer axes than panels.
    """
    pairs = _pairs(rows)
    if len(pairs) > 12:
        raise ValueError(f"one figure shows at most 12 models x GPUs, got {len(pairs)}")
    kinds = [kind for kind in ("batch", "context") if len({row[kind] for row in rows}) > 1] or ["batch"]
    panels, own = _panels(axes, len(pairs) * len(kinds), columns=len(kinds), height=3.6)
    for at, ax in enumerate(panels):
        pair, against = pairs[at // len(kinds)], kinds[at % len(kinds)]
        others = _few({row[_other(against)] for row in rows}, 3)
        for k, other in enumerate(others):
            _curve(ax, _chosen(rows, pair, _other(against), other), against, step, k)
        _predicted_axes(ax, [row for row in rows if (row["model"], row["gpu"]) == pair], against, step)
        ax.set_title(f"{pair[0]} on {pair[1]}")
        named = [
            Line2D([], [], color=_COLOURS[k], marker=_MARKERS[k], label=f"{_other(against)} {other}")
            for k, other in enumerate(others)
        ]
        ax.legend(handles=named, loc="upper left", ncols=3, columnspacing=1.2, borderaxespad=0.1)
        ax.set_ylim(top=ax.get_ylim()[1] * (1.6 if ax.get_yscale() == "log" else 1.15))
    _legend(panels, own, _band_handles(rows), _bands_caption(step), columns=4)
    _heading(panels, own, "Predicted decode steps", label)
    return np.array(panels)


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


def _few(values: Iterable[int], most: int) -> list[int]:
    """At most so many values, evenly taken from the sorted ones, both ends among them."""
    found = sorted(values)
    return [found[i] for i in dict.fromkeys(np.linspace(0, len(found) - 1, min(most, len(found))).round().astype(int))]


def _chosen(rows: Rows, pair: tuple[str, str], other: str, value: int) -> list[Mapping[str, Any]]:
    return [row for row in rows if (row["model"], row["gpu"]) == pair and row[other] == value]


def _curve(ax: Axes, rows: Rows, against: str, step: str, at: int) -> None:
    """Mean and bands of one curve; dashed and hatched outside the calibrated domain; a cross where nothing fits."""
    colour, marker = _COLOURS[at], _MARKERS[at]
    for row in rows:
        if row["status"] != "predicted":
            ax.plot(row[against], 0.03 + 0.045 * at, "x", color=colour, transform=ax.get_xaxis_transform())
    shown = sorted((row for row in rows if row["status"] == "predicted"), key=lambda row: row[against])
    if not shown:
        return
    found = [row[f"{step}_step_ms"] for row in shown]
    x, y = np.array([row[against] for row in shown], dtype=float), np.array([f["value"] for f in found])
    bands = {level: np.array([f["intervals"][level] for f in found]).T for level in _WIDTHS}
    outside = np.array([bool(row["outside"]) for row in shown])
    if len(x) == 1:
        for level, width in _WIDTHS.items():
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
        ax.set_xticks(_spread(ticks), [f"{tick:.0f}" for tick in _spread(ticks)])
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.set_xlabel("batch (sequences)" if against == "batch" else "context (tokens in the cache of each sequence)")
    low, high = ax.dataLim.intervaly
    if low > 0 and high > 8 * low:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_ylim(0, None)
    ax.set_ylabel("predicted step (ms)" if step == "measured" else "predicted mean step (ms)")
    ax.grid(visible=True)


def _band_handles(rows: Rows) -> list[Any]:
    """What bands, dashes and crosses mean, as far as they occur."""
    handles: list[Any] = [
        Line2D([], [], color=_GREY, lw=1.5, label="posterior mean"),
        Patch(fc=_GREY, alpha=0.4, label="50 % interval"),
        Patch(fc=_GREY, alpha=0.14, label="90 % interval"),
    ]
    if any(row["outside"] for row in rows):
        handles.append(Patch(fc="white", ec=_GREY, hatch="////", ls="--", label="outside the calibrated domain"))
    if any(row["status"] != "predicted" for row in rows):
        handles.append(Line2D([], [], color=_GREY, marker="x", ls="none", label="not predicted (memory)"))
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


@rc_context(_STYLE)
def verdicts(data: Mapping[str, Any], *, ax: Axes | None = None) -> Axes:
    """Posterior probability of each verdict's statement on a family, by GPU and on all together.

    Parameters
    ----------
    data : mapping
        `Verdict.data`.
    """
    rows = [*data["per_sku"], data["overall"]] if len(data["per_sku"]) > 1 else data["per_sku"]
    shown = list(data["probabilities"])[:-1]
    colours = (_COLOURS[2], _COLOURS[1], _COLOURS[0], _COLOURS[4])
    if ax is None:
        ax = Figure(figsize=(10, 1.4 + 0.75 * len(rows)), layout="constrained").subplots()
        ax.set_title(f"{data['model']}: {data['verdict']}\n{textwrap.fill(f'Data: {data["label"]}', 90)}", loc="left")
    height = 0.8 / len(shown)
    for k, (verdict, colour) in enumerate(zip(shown, colours, strict=True)):
        at = [i + (k - 0.5 * (len(shown) - 1)) * height for i in range(len(rows))]
        ax.barh(at, [row["probabilities"][verdict] for row in rows], 0.9 * height, color=colour, label=verdict)
    ax.axvline(data["margins"]["probability"], color=_GREY, linewidth=1, linestyle="--")
    ax.set_yticks(range(len(rows)), [f"{row['gpu']}\n{textwrap.fill(row['verdict'], 28)}" for row in rows])
    ax.invert_yaxis()
    ax.set(xlim=(0, 1), xlabel="posterior probability (dashed: what a verdict needs)")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax


@rc_context(_STYLE)
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
    names = _names(rows, "gpu")
    panels, own = _panels(axes, len(names), columns=2, height=4.1)
    for gpu, ax in zip(names, panels, strict=False):
        mine = [row for row in rows if row["gpu"] == gpu]
        ax.axhspan(-margins["h1_absolute"], margins["h1_absolute"], color="0.93", zorder=0)
        ax.axhline(0.0, color=_GREY, lw=1)
        for name, colour, fill in (("predicted", _COLOURS[0], True), ("own_floor", _COLOURS[1], False)):
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
            _plain_log(ax)
    handles = [
        Line2D([], [], color=_COLOURS[0], marker="o", label="T_gpu + the anchor's floor"),
        Line2D([], [], color=_COLOURS[1], marker="s", mfc="none", label="T_gpu + the family's own floor"),
        Patch(color="0.93", label="absolute margin"),
    ]
    _legend(panels, own, handles, "Bars: 90 % credible intervals of the predicted mean step.", columns=3)
    _heading(panels, own, "Error of the predicted decode step", label)
    return np.array(panels)


def _plain_log(ax: Axes) -> None:
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
