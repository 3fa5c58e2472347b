"""Figures of the hypotheses: probability by margin, error rates by simulation, offset beside slope."""

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from rooffloor.validate.estimates.estimate import LEVELS
from rooffloor.validate.presentation.figures import style
from rooffloor.validate.presentation.figures.style import Array, Given, Rows, Sheet, model_styles, styled


@styled
def margins(
    h1: Mapping[str, Any], label: str, margin: float, *, probability: float = 0.95, axes: Given = None
) -> NDArray[Any]:
    """Probability that a family's residual MAPE is within a margin of the anchor's, as a curve over margins.

    `h1` is the report's `hypotheses["H1"]`: one panel per family, one where H1 was not tested. `margin` is the stated
    one, points of MAPE; `probability` what a verdict needs: it is refuted below 1 - `probability`.
    """
    families: Rows = h1.get("families", [])
    count = max(1, len(families))
    sheet = Sheet.of(axes, count, columns=min(count, 3), height=4.2 if count < 4 else 3.1)
    gpus = list(dict.fromkeys(sku["gpu"] for family in families for sku in family["per_sku"]))
    styles = {gpu: (style.COLOURS[i % 10], style.LINES[i % 5], style.MARKERS[i % 11]) for i, gpu in enumerate(gpus)}
    if not families:
        first, words = sheet.panels[0], textwrap.fill(" ".join(h1["sentences"]), 70)
        first.text(0.5, 0.5, words, ha="center", va="center", transform=first.transAxes)
    for ax, family in zip(sheet.panels, families, strict=False):
        points = [p["margin"] for p in family["margins"]]
        for sku in family["per_sku"]:
            colour, line, marker = styles[sku["gpu"]]
            ax.plot(points, [p[f"on {sku['gpu']}"] for p in family["margins"]], color=colour, ls=line, lw=1.8)
            ax.plot(margin, sku["probability"]["value"], color=colour, marker=marker, ms=6)
        ax.plot(points, [p["probability"] for p in family["margins"]], color=style.BLACK, lw=2.6)
        ax.plot(margin, family["probability"]["value"], color=style.BLACK, marker="o", ms=7)
        ax.plot(margin, family["absolute_probability"]["value"], color=style.BLACK, marker="o", mfc="white", ms=7)
        ax.set_title(f"{family['family']}: {family['verdict']}")
    for ax in sheet.panels:
        ax.axvline(margin, color=style.GREY, ls=":", lw=1.5, zorder=0)
        for level in (probability, 1 - probability):
            ax.axhline(level, color=style.GREY, lw=1, zorder=0)
        ax.set(xlim=(-0.1, 5.1), ylim=(-0.03, 1.03))
        ax.set(xlabel="margin (points of MAPE)", ylabel="posterior probability")
    handles = [
        Line2D([], [], color=colour, ls=line, lw=1.8, marker=marker, label=gpu)
        for gpu, (colour, line, marker) in styles.items()
    ]
    handles.append(Line2D([], [], color=style.BLACK, lw=2.6, marker="o", label="pooled over GPUs"))
    handles.append(Line2D([], [], color=style.GREY, ls=":", lw=1.5, label=f"stated margin, {margin:g} points"))
    absolute = "pooled: residual MAPE itself below the absolute margin"
    handles.append(Line2D([], [], color=style.BLACK, marker="o", mfc="white", ls="none", label=absolute))
    how = (
        "Curves: probability that the residual MAPE exceeds the anchor's by less than the margin. Grey lines: supported"
        f" from {probability:g}, refuted up to {1 - probability:.2g}; the verdict takes the lower pooled circle."
    )
    return sheet.finish("Transfer within the class (H1) as a function of the margin", label, handles, how)


@styled
def power(rates: Any, *, ax: Axes | None = None) -> Axes:
    """How often H1 is supported or refuted against the true difference, three GPUs, by simulation (`Rates`)."""
    rows = rates.table
    rows = rows[(rows["test"] == "H1") & (rows["gpus"] == 3) & (rows["mechanism"] == "leftover")]
    rows = rows[(rows["leftover"] > 0) & (rows["between"] == 1.0) & (rows["join"] == "added")]
    rows = rows[rows["leftover"] == rows["leftover"].max()].sort_values("difference")
    if not len(rows):
        raise ValueError("no simulated study of H1 on three GPUs to draw")
    sheet = Sheet.of(ax, height=4.6)
    (ax,) = sheet.panels
    wanted = {
        "supported": ("supported", style.COLOURS[0], "o"),
        "refuted": ("refuted", style.COLOURS[1], "s"),
        "t, K-1 df": ("t-test over GPUs, p < 0.05", style.GREY, "^"),
    }
    for quantity, (name, colour, marker) in wanted.items():
        own = rows[rows["quantity"] == quantity]
        x, y, reach = own["difference"], 100 * own["rate"], 200 * own["se"]
        ax.errorbar(x, y, yerr=reach, color=colour, marker=marker, label=name, capsize=2)
    ax.axvline(2.0, color=style.BLACK, lw=1, ls="--")
    ax.text(2.05, 97, "margin", va="top", size=9)
    ax.axhline(5, color=style.GREY, lw=0.8, ls=":")
    ax.set_ylim(-3, 103)
    ax.set_xlabel("true residual MAPE of the family less the anchor's (points)")
    ax.set_ylabel("share of simulated studies (percent)")
    ax.legend(loc=(0.62, 0.74), frameon=False)
    sheet.finish("Size and power of H1, three GPUs that differ by 1 point (sd)", "simulated; bars: 2 se")
    return ax


@styled
def joint(rows: Rows, label: str, *, axes: Given = None) -> NDArray[Any]:
    """Joint posterior of offset and slope of each pair that H3 judges: ellipses of 50 and 90 %.

    Left the offset at T_gpu = 0, right that at the pair's mean T_gpu, both less the anchor's floor.

    `rows` are `per_sku` of the report's `hypotheses["H3"]`; pairs that do not diverge, or whose T_gpu does not vary,
    are left out.
    """
    judged = [row for row in rows if row["verdict"] != "not tested" and row["offset_slope"] is not None]
    if not judged:
        raise ValueError("nothing to draw: H3 judges no pair whose T_gpu varies")
    styles = model_styles([f"{row['model']} on {row['gpu']}" for row in judged])
    sheet = Sheet.of(axes, 2, columns=2, height=4.4)
    for row, (colour, marker) in zip(judged, styles.values(), strict=True):
        found = row["offset_slope"]
        mean, covariance = np.array(found["mean"]), np.array(found["covariance"])
        lever = np.array([[1.0, found["mean_gpu_ms"]], [0.0, 1.0]])
        shifted = lever @ mean - [found["mean_gpu_ms"], 0.0], lever @ covariance @ lever.T
        for ax, (at, spread) in zip(sheet.panels, ((mean, covariance), shifted), strict=True):
            for level in LEVELS:
                ax.plot(*_ellipse(at, spread, level / 100), color=colour, lw=0.5 * style.WIDTHS[str(level)] + 0.5)
            ax.plot(*at, marker=marker, color=colour, ms=6)
    for ax, where in zip(sheet.panels, ("T_gpu = 0", "mean T_gpu"), strict=True):
        ax.axhline(1.0, color=style.GREY, lw=1, zorder=0)
        ax.set_xlabel(f"offset at {where}, less the anchor's floor (ms)")
        ax.set_ylabel("slope of the step on T_gpu")
        ax.xaxis.set_major_locator(MaxNLocator(6))
    sheet.panels[0].axvline(0.0, color=style.GREY, lw=1.3, ls=":", zorder=0)
    handles = [
        Line2D([], [], color=colour, marker=marker, label=f"{name}: cos² {row['offset_slope']['cos2']:.2f}")
        for row, (name, (colour, marker)) in zip(judged, styles.items(), strict=True)
    ]
    handles.append(Line2D([], [], color=style.GREY, lw=1, label="slope 1: offset only"))
    handles.append(Line2D([], [], color=style.GREY, lw=1.3, ls=":", label="no offset: scale only"))
    how = (
        "Thick and thin ellipses: 50 % and 90 % of the normal distribution with the posterior's mean and covariance; "
        "no marginal intervals. cos² of 1: offset and slope cannot be told apart."
    )
    return sheet.finish("Offset and slope of the models that diverge (H3)", label, handles, how)


def _ellipse(mean: Array, covariance: Array, share: float) -> Array:
    """Points (2, n) around the smallest region that holds a share of a normal distribution of two variables."""
    size, directions = np.linalg.eigh(covariance)
    angle = np.linspace(0.0, 2.0 * np.pi, 121)
    reach = np.sqrt(-2.0 * np.log1p(-share) * np.maximum(size, 0.0))
    return np.asarray(mean[:, None] + directions @ (reach[:, None] * np.stack([np.cos(angle), np.sin(angle)])))
