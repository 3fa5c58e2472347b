"""What all figures share: colours, panels, legends, headings.

Every figure shows the numbers of the report's parts (report.json) or of `Draws`, and nothing else; `label` names what
the data are. Its function takes `ax` or `axes` to draw on, as many as there are panels, and returns them: one, or an
array (panel,). Without, it makes a figure 10 inches (1200 px) wide that pyplot does not know:
`report.floors(...).figure.savefig(path)`; in a notebook, end the cell with `.figure`. It raises ValueError where there
are fewer axes than panels, or nothing to draw. Estimates are the mappings of `Estimate.data`; published numbers are
open diamonds.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import seaborn
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

type Rows = Sequence[Mapping[str, Any]]
type Given = Axes | Sequence[Axes] | NDArray[Any] | None
type Array = NDArray[np.float64]

styled = rc_context(
    {
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
)
COLOURS = tuple(seaborn.color_palette("colorblind").as_hex())
MARKERS = "osD^vP*X<>h"
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
WIDTHS = {"50": 3.6, "90": 1.3}
BLACK, GREY = "0.1", "0.5"
INTERVALS = "thick and thin bars: 50 % and 90 % credible intervals"
POINTS = f"Points: posterior mean; {INTERVALS}."
PUBLISHED: dict[str, Any] = {"marker": "D", "mfc": "none", "mec": BLACK, "mew": 1.3, "ms": 7, "ls": "none"}


@dataclass(frozen=True, eq=False)
class Sheet:
    """The panels to draw on, and whether the figure around them is ours."""

    panels: list[Axes]
    own: bool

    @classmethod
    def of(cls, given: Given, count: int = 1, *, columns: int = 1, height: float) -> "Sheet":
        """As many of the given axes as there are panels, or a figure of our own with rows of so many inches."""
        if given is None:
            rows = -(-count // columns)
            figure = Figure(figsize=(10, 0.9 + height * rows), dpi=120, layout="constrained")
            grid = figure.subplots(rows, columns, squeeze=False).flat
            for spare in grid[count:]:
                spare.remove()
            return cls(list(grid[:count]), True)
        axes = list(np.atleast_1d(np.asarray(given, dtype=object)))
        if len(axes) < count:
            raise ValueError(f"this figure has {count} panels, got {len(axes)} axes")
        return cls(axes[:count], False)

    def finish(
        self, title: str, label: str, handles: Sequence[Any] = (), how: str = "", columns: int = 3
    ) -> NDArray[Any]:
        """The panels, with the title, the label of the data, a legend and the words on how to read the figure.

        Of our own figure the legend stands below, else within the first panel.
        """
        first, text = self.panels[0], f"{title}\n{textwrap.fill(f'Data: {label}', 105)}"
        figure = first.figure
        if self.own and isinstance(figure, Figure):
            if handles:
                columns, words = min(columns, len(handles)), textwrap.fill(how, 150)
                figure.legend(handles=handles, title=words, loc="outside lower center", ncols=columns)
            figure.suptitle(text, x=0.01, ha="left", weight="bold", size=11.5)
        else:
            if handles:
                first.legend(handles=handles, title=textwrap.fill(how, 60), loc="best")
            first.set_title("\n".join(filter(None, (text, first.get_title()))))
        return np.array(self.panels)


def names_of(rows: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    """Different values of a column, in order."""
    names = list(dict.fromkeys(row[key] for row in rows))
    if not names:
        raise ValueError("nothing to draw: the rows are empty")
    return names


def name_rows(ax: Axes, names: Sequence[str], bold: Sequence[bool] | None = None) -> None:
    """Names on the y axis, first on top."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")
    for tick, heavy in zip(ax.get_yticklabels(), bold or [False] * len(names), strict=True):
        tick.set_fontweight("bold" if heavy else "normal")


def draw_interval(
    ax: Axes, estimate: Mapping[str, Any], at: float, colour: str, marker: str, *, hollow: bool = False
) -> None:
    """One estimate as a point with its intervals, along x."""
    if estimate["value"] is None:
        return
    for level, (low, high) in estimate["intervals"].items():
        ax.hlines(at, low, high, color=colour, lw=WIDTHS[level])
    ax.plot(estimate["value"], at, marker=marker, color=colour, mfc="white" if hollow else colour, ms=5.5, zorder=3)


def published_handle(text: str = "published") -> Line2D:
    """The legend's entry of published figures."""
    return Line2D([], [], label=text, **PUBLISHED)


def model_styles(models: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each model: 10 colours and 11 markers, so that pairs do not repeat."""
    return {model: (COLOURS[i % 10], MARKERS[i % 11]) for i, model in enumerate(models)}


def model_handles(styles: Mapping[str, tuple[str, str]]) -> list[Line2D]:
    """The legend's entries of models."""
    return [
        Line2D([], [], color=colour, marker=marker, ls="none", ms=6, label=model)
        for model, (colour, marker) in styles.items()
    ]


def spread_ticks(values: Sequence[float], ratio: float = 1.5) -> list[float]:
    """The largest value and those below it that keep a ratio, so that tick labels do not overlap."""
    kept: list[float] = []
    for value in reversed(values):
        if not kept or kept[-1] >= ratio * value:
            kept.append(value)
    return kept[::-1]


def plain_log(axis: Axis) -> None:
    """Plain numbers at 1, 2 and 5 of each decade of a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
