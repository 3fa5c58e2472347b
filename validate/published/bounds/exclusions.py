"""What the published aggregates alone exclude, as facts over all grids.

`published.printed_figures` holds the figures, `bounds.grid_programme` the linear programme over all grids that print
them, `bounds.offset_readings` the readings of an offset, `bounds.shared_roof` the roof with constants shared by
all SKUs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rooffloor.models.roof.roofline import bytes_floor_ms
from rooffloor.models.specs import gpus
from rooffloor.models.specs.shapes import load as load_shapes
from rooffloor.validate.published.bounds.grid_programme import RATIO, GridProgramme, grid_programme
from rooffloor.validate.published.bounds.offset_readings import ReadingFeasibility, offset_readings
from rooffloor.validate.published.bounds.shared_roof import SharedRoof, shared_roof
from rooffloor.validate.published.printed_figures import (
    A100,
    ANCHOR,
    CELLS,
    H100,
    H200,
    MOE,
    SIBLING,
    SMALL,
    Figure,
    Interval,
    PublishedFigures,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Exclusions",
    "Fact",
    "Figure",
    "PublishedFigures",
    "ReadingFeasibility",
    "SharedRoof",
    "exclusions",
    "offset_readings",
    "shared_roof",
]


@dataclass(frozen=True)
class Fact:
    """One thing that the aggregates imply: `low` <= quantity <= `high` in `unit`, whatever the unseen
    cells are."""

    name: str
    statement: str
    low: float
    high: float
    unit: str
    assumptions: tuple[str, ...]
    method: str
    figures: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Fact({self.name}: {self.statement})"


@dataclass(frozen=True)
class Exclusions:
    """What the published aggregates alone exclude; iterates over the facts."""

    facts: tuple[Fact, ...]
    cells: int
    ratio: float

    def __iter__(self) -> Iterator[Fact]:
        return iter(self.facts)

    def __len__(self) -> int:
        return len(self.facts)

    def __getitem__(self, name: str) -> Fact:
        for fact in self.facts:
            if fact.name == name:
                return fact
        raise KeyError(f"no fact {name!r}; facts: {', '.join(f.name for f in self.facts)}")

    def __repr__(self) -> str:
        head = f"Exclusions: {len(self)} facts over all grids of {self.cells} cells, ratio {self.ratio:g}"
        return "\n".join([head, *(f"- {f.statement}" for f in self.facts)])

    def to_frame(self) -> "pd.DataFrame":
        """One row a fact."""
        import pandas as pd

        names = list(Fact.__dataclass_fields__)
        frame = pd.DataFrame([[getattr(f, n) for n in names] for f in self.facts], columns=names)
        for column in ("assumptions", "figures"):
            frame[column] = frame[column].map("; ".join)
        return frame


ROUNDING = "each figure lies anywhere within its rounding"
POSITIVE = "T_gpu >= 0 and y > 0 in every cell"
METHOD = "mixed-integer linear programme over the sums of each sign pattern"


def exclusions(figures: PublishedFigures | None = None, cells: int = CELLS, ratio: float = RATIO) -> Exclusions:
    """What the published aggregates alone exclude, over all grids.

    Parameters
    ----------
    figures : PublishedFigures, optional
        By default the embedded study.
    cells : int
        Cells of each (model, SKU) grid; the study's five-by-three grid has 15.
    ratio : float
        Steps of one grid lie within this factor of their harmonic mean and of the published small-batch step.

    Returns
    -------
    Exclusions
        Most facts need neither `ratio` nor T < y; each names its assumptions.

    Raises
    ------
    ValueError
        cells < 1 or ratio < 1.
    InputError
        A figure that an argument needs is not among `figures`.
    """
    if cells < 1 or ratio < 1:
        raise ValueError(f"expected cells >= 1 and ratio >= 1, got cells={cells}, ratio={ratio:g}")
    figures = PublishedFigures.load() if figures is None else figures
    grids = list(dict.fromkeys((r.model, r.gpu) for r in figures if r.quantity.endswith("_mape") and r.gpu != "pooled"))
    programmes = {grid: grid_programme(figures, *grid, cells, ratio) for grid in grids}
    facts = [fact for grid, programme in programmes.items() for fact in _row_facts(figures, *grid, programme, ratio)]
    known = {fact.name: fact for fact in facts}
    facts += _self_floor_facts(figures, programmes[SMALL, A100], ratio)
    facts += _compute_facts(figures, known)
    facts += _anchor_facts(figures, known, cells)
    facts += _pooled_facts(figures)
    facts += _moe_facts(figures)
    facts += _rise_facts(figures)
    return Exclusions(tuple(facts), cells, ratio)


def _points(fractions: Interval) -> Interval:
    return 100 * fractions[0], 100 * fractions[1]


def _row_facts(figures: PublishedFigures, model: str, gpu: str, programme: GridProgramme, ratio: float) -> list[Fact]:
    row = f"{model}/{gpu}"
    used = tuple(
        r.label
        for r in figures
        if (r.model, r.gpu) == (model, gpu) and r.quantity in ("raw_mape", "residual_mape", "self_floor_mape")
    )
    low, high = programme.steps_ms
    assumed = (ROUNDING, POSITIVE, f"steps between {low:.3g} and {high:.3g} ms (ratio {ratio:g})")

    def fact(name: str, bounds: Interval, unit: str, text: str) -> Fact:
        return Fact(f"{row}: {name}", f"{row}: {text}", *bounds, unit, assumed, METHOD, used)

    if not programme.feasible:
        return [fact("no grid", (np.nan, np.nan), "", f"no grid of {programme.cells} cells prints these figures.")]
    inverse, share = programme.mean(programme.inverse()), programme.mean(programme.share())
    level = programme.ratio(programme.share(), programme.inverse())
    facts = [
        fact(
            "mean 1/y",
            inverse,
            "1/ms",
            f"mean(1/y) is {inverse[0]:.4f} to {inverse[1]:.4f} per ms: the harmonic mean of the steps is "
            f"{1 / inverse[1]:.2f} to {1 / inverse[0]:.2f} ms.",
        ),
        fact(
            "mean T/y",
            share,
            "",
            f"T_gpu is on average {100 * share[0]:.1f} to {100 * share[1]:.1f} % of the step.",
        ),
        fact(
            "mean T, weighted by 1/y",
            level,
            "ms",
            f"the mean T_gpu, cells weighted by 1/y, is {level[0]:.2f} to {level[1]:.2f} ms; the plain "
            f"mean is at least the lower bound where T and y order the cells alike.",
        ),
    ]
    for error in programme.errors:
        signed = programme.mean(programme.signed(error.name))
        count = programme.bounds(programme.over(error.name))
        facts += [
            fact(
                f"mean signed {error.name} error",
                (100 * signed[0], 100 * signed[1]),
                "points",
                f"the mean signed {error.name} error is {100 * signed[0]:+.1f} to {100 * signed[1]:+.1f} points.",
            ),
            fact(
                f"cells over-predicted, {error.name}",
                count,
                "cells",
                f"{round(count[0])} to {round(count[1])} of {programme.cells} cells are over-predicted ({error.name}).",
            ),
        ]
    return facts


def _self_floor_facts(figures: PublishedFigures, programme: GridProgramme, ratio: float) -> list[Fact]:
    """What the three errors of the 1B on the A100 say of its self-floor."""
    printed = ("raw_mape", "residual_mape", "self_floor", "self_floor_mape")
    used = (
        *(figures.get(SMALL, A100, q).label for q in printed),
        figures.get(ANCHOR, A100, "anchor_offset").label,
    )
    free = (ROUNDING, POSITIVE)
    n, row = programme.cells, f"{SMALL}/{A100}"
    free_range = GridProgramme(programme.errors, n)
    excess = _points(free_range.mean(free_range.signed("self-floor")))
    under = free_range.over_sum("self-floor") - free_range.signed("self-floor")
    under_points = _points(free_range.mean(under))
    above = free_range.mean(free_range.over_sum("raw"))
    count = programme.bounds(programme.over("raw"))
    sided = free_range.ratio(free_range.over_sum("self-floor"), under)[0]
    worst = n * under_points[1]
    return [
        Fact(
            f"{row}: cells with T > y",
            f"{row}: adding the anchor's negative offset raises the MAPE by at most its size times "
            f"mean(1/y), with equality only if T <= y everywhere; with the self-floor's MAPE at most "
            f"{count[1]:.0f} of {n} cells can have T > y, by {100 * n * above[1]:.1f} points at most if "
            f"added up. No bound here assumes T < y.",
            *count,
            "cells",
            (
                *free,
                f"steps between {programme.steps_ms[0]:.3g} and {programme.steps_ms[1]:.3g} ms (ratio {ratio:g})",
            ),
            METHOD,
            used,
        ),
        Fact(
            f"{row}: excess of the self-floor",
            f"{row}: the self-floor over-predicts by {excess[0]:.1f} to {excess[1]:.1f} points on "
            f"average, of a MAPE of {figures.value(SMALL, A100, 'self_floor_mape'):g}: it is no centre of "
            f"the errors.",
            *excess,
            "points",
            free,
            METHOD,
            used,
        ),
        Fact(
            f"{row}: under-prediction of the self-floor",
            f"{row}: all under-predictions of the self-floor add up to at most {worst:.1f} points over "
            f"{n} cells: at most {int(worst // 3)} cells by more than 3 points, at most {int(worst // 5)} "
            f"by more than 5.",
            *under_points,
            "points",
            free,
            METHOD,
            used,
        ),
        Fact(
            f"{row}: steps under a mean offset",
            f"{row}: a self-floor that is the mean of y - T, or relative least squares, needs one step at "
            f"least {sided:.2f} times another within the grid (over-predictions add up to {sided:.2f} "
            f"times the under-predictions at least, and these offsets weight each error by y, or by 1/y, "
            f"to a sum of 0).",
            sided,
            np.inf,
            "ratio",
            free,
            METHOD + ", Dinkelbach",
            used,
        ),
    ]


def _compute_facts(figures: PublishedFigures, facts: Mapping[str, Fact]) -> list[Fact]:
    """What the 1B's mean T_gpu on three SKUs says of its bytes."""

    def level(gpu: str) -> Fact:
        return facts[f"{SMALL}/{gpu}: mean T, weighted by 1/y"]

    out = []
    for gpu in (A100, H100, H200):
        weights, largest = (float(bytes_floor_ms(SMALL, gpu, *cell)) for cell in ((1, 0), (16, 8192)))
        t = level(gpu)
        out.append(
            Fact(
                f"{SMALL}/{gpu}: T over bytes",
                f"{SMALL}/{gpu}: mean T_gpu (weights 1/y) of at least {t.low:.2f} ms is "
                f"{t.low / weights:.1f} times its weights at peak bandwidth ({weights:.2f} ms) and "
                f"{t.low / largest:.2f} times the bytes of its largest cell (16, 8192) ({largest:.2f} ms).",
                t.low / weights,
                t.high / weights,
                "ratio",
                t.assumptions,
                METHOD + "; bytes from the shapes",
                t.figures,
            )
        )
    for slow, fast in ((A100, H100), (H100, H200)):
        a, b = level(slow), level(fast)
        bandwidth = gpus.load(fast).bandwidth / gpus.load(slow).bandwidth
        ratio = a.low / b.high, a.high / b.low
        needed = max(ratio[0] / bandwidth, bandwidth / ratio[1], 1.0)
        out.append(
            Fact(
                f"{SMALL}: T_{slow} / T_{fast}",
                f"{SMALL}: mean T_gpu (weights 1/y) on {slow} is {ratio[0]:.2f} to {ratio[1]:.2f} times "
                f"that on {fast}; bytes alone under shared constants give {bandwidth:.2f} in every cell. "
                f"Excluded where the steps of the two grids are proportional, or where their spreads "
                f"(largest over smallest step) multiply to less than {needed:.3f}.",
                *ratio,
                "ratio",
                a.assumptions + b.assumptions[2:],
                METHOD,
                a.figures + b.figures,
            )
        )
    t, share = level(A100), facts[f"{SMALL}/{A100}: mean T/y"]
    top = figures.interval(SMALL, "unspecified", "gpu_compute_high")
    out.append(
        Fact(
            f"{SMALL}/{A100}: almost entirely floor",
            f"{SMALL}/{A100}: the text calls the step almost entirely host floor, with 2 to 5 ms of "
            f"compute; the table makes T_gpu {100 * share.low:.0f} % of the step or more, {t.low:.2f} to "
            f"{t.high:.2f} ms in the mean (weights 1/y; 'about 5' reaches {top[1]:g}).",
            share.low,
            share.high,
            "",
            share.assumptions,
            METHOD,
            (*share.figures, figures.get(SMALL, "unspecified", "gpu_compute_high").label),
        )
    )
    return out


def _anchor_facts(figures: PublishedFigures, facts: Mapping[str, Fact], cells: int) -> list[Fact]:
    """What the sign of each anchor offset implies."""
    out = []
    for gpu in (H100, H200, A100):
        offset = figures.get(ANCHOR, gpu, "anchor_offset")
        over = facts[f"{ANCHOR}/{gpu}: cells over-predicted, raw"]
        low, high = (over.low, over.high) if offset.value < 0 else (cells - over.high, cells - over.low)
        word = "exceeds the step" if offset.value < 0 else "stays below the step"
        out.append(
            Fact(
                f"{ANCHOR}/{gpu}: sign of the offset",
                f"{ANCHOR}/{gpu}: the offset {offset.value:+g} ms lowers the MAPE, so T_gpu {word} in at "
                f"least {round(low)} of {cells} cells; if it is a mean, a quantile or a least-error "
                f"offset of y - T, then by {min(map(abs, offset.interval)):g} ms or more in one of them.",
                low,
                high,
                "cells",
                over.assumptions,
                METHOD,
                (offset.label, *over.figures),
            )
        )
    return out


def _pooled_facts(figures: PublishedFigures) -> list[Fact]:
    facts = []
    for pooled in (r for r in figures if (r.gpu, r.quantity) == ("pooled", "residual_mape")):
        rows = [r for r in figures if (r.model, r.quantity) == (pooled.model, "residual_mape") and r.gpu != "pooled"]
        low, high = (float(np.mean(ends)) for ends in zip(*(r.interval for r in rows), strict=True))
        agrees = low <= pooled.interval[1] and pooled.interval[0] <= high
        median = float(np.median([r.value for r in rows]))
        facts.append(
            Fact(
                f"{pooled.model}: pooled residual",
                f"{pooled.model}: the plain mean over SKUs is {low:.2f} to {high:.2f} %, the printed "
                f"{pooled.value:g} % {'agrees' if agrees else 'DISAGREES'} (the median of the SKUs would "
                f"be {median:g} %; with equally many cells a SKU, the mean over cells is the same number).",
                low,
                high,
                "percent",
                (ROUNDING,),
                "interval algebra",
                tuple(r.label for r in (*rows, pooled)),
            )
        )
    return facts


def _moe_facts(figures: PublishedFigures) -> list[Fact]:
    predicted, measured, error, floor = (
        figures.get(MOE, H100, q) for q in ("predicted_with_self_floor", "measured", "error", "self_floor")
    )
    (p_low, p_high), (m_low, m_high) = predicted.interval, measured.interval
    implied = 100 * (p_low / m_high - 1), 100 * (p_high / m_low - 1)
    agrees = implied[0] <= error.interval[1] and error.interval[0] <= implied[1]
    compute = p_low - floor.interval[1], p_high - floor.interval[0]
    cell = float(predicted.batch or 16), float(predicted.context or 8192)
    floors = {e: float(bytes_floor_ms(MOE, H100, *cell, experts=e)) for e in ("active", "distinct", "balanced")}
    verdict = {
        e: f"would need {100 * v / compute[1]:.1f} to {100 * v / compute[0]:.1f} % of peak on every byte"
        if v <= compute[1]
        else "is excluded (T_gpu would lie below its bytes)"
        for e, v in floors.items()
    }
    listing = "; ".join(f"{e} ({v:.2f} ms at peak) {verdict[e]}" for e, v in floors.items())
    where = f"({cell[0]:g}, {cell[1]:g})"
    return [
        Fact(
            f"{MOE}/{H100}: error of {where}",
            f"{MOE}/{H100}: {predicted.value:g} against {measured.value:g} ms is {implied[0]:.1f} to "
            f"{implied[1]:.1f} % off; the printed {error.value:g} % {'agrees' if agrees else 'DISAGREES'} "
            f"within the rounding.",
            *implied,
            "percent",
            (ROUNDING,),
            "interval algebra",
            (predicted.label, measured.label, error.label),
        ),
        Fact(
            f"{MOE}/{H100}: T of {where}",
            f"{MOE}/{H100}: T_gpu at {where} is {compute[0]:.1f} to {compute[1]:.1f} ms. Experts streamed: {listing}.",
            *compute,
            "ms",
            (ROUNDING, "predicted = T_gpu + self-floor"),
            "interval algebra; bytes from the shapes",
            (predicted.label, floor.label),
        ),
    ]


SPANS = tuple((batch, 512, 8192) for batch in (1, 4, 8)) + tuple((16, s, 8192) for s in (128, 512, 1024, 2048))
"""Where the long-context rise may have been measured: (batch, shortest context, longest context)."""


def _rise_facts(figures: PublishedFigures) -> list[Fact]:
    rises = {m: figures.get(m, A100, "long_context_rise") for m in (ANCHOR, SIBLING, SMALL)}
    used = tuple(r.label for r in rises.values())
    per_token = {m: 1e3 * load_shapes(m).kv_bytes_per_token / gpus.load(A100).bandwidth for m in rises}
    facts = []
    for batch, start, stop in SPANS:
        tokens = batch * (stop - start)
        need = {m: tokens * per_token[m] for m in rises}
        parts = [
            f"{m} {r.value:+g} ms over {need[m]:.2f} ms ({need[m] / r.interval[1]:.2f} to "
            f"{need[m] / r.interval[0]:.2f})"
            for m, r in rises.items()
        ]
        implied = [need[m] / end for m, r in rises.items() for end in r.interval]
        excluded = [m for m, r in rises.items() if need[m] > r.interval[1]]
        verdict = f"; below what the bytes need at peak: {', '.join(excluded)}" if excluded else "; none is impossible"
        facts.append(
            Fact(
                f"rise at batch {batch} from {start} to {stop}",
                f"{A100}, rise from {start} to {stop} tokens if measured at batch {batch}: KV bytes at "
                f"peak bandwidth, and the efficiency implied: {', '.join(parts)}{verdict}.",
                min(implied),
                max(implied),
                "efficiency",
                (ROUNDING, "nothing but the KV read grows with the context", "batch and contexts as named"),
                "interval algebra; bytes from the shapes",
                used,
            )
        )
    most = rises[SMALL].interval[1] / per_token[SMALL]
    facts.append(
        Fact(
            f"{SMALL}/{A100}: tokens of the rise",
            f"{SMALL}/{A100}: a rise of {rises[SMALL].value:g} ms is possible only over at most "
            f"{most:,.0f} tokens of cache in all: at batch 16 over {most / 16:,.0f} tokens of context, "
            f"{most / 16 / 7680:.0%} of 512 to 8192.",
            0.0,
            most,
            "tokens",
            (ROUNDING, "the step rises at least by the KV read at peak bandwidth"),
            "interval algebra; bytes from the shapes",
            (rises[SMALL].label,),
        )
    )
    for model in (SIBLING, SMALL):
        bytes_ratio = per_token[ANCHOR] / per_token[model]
        ratio = (
            rises[ANCHOR].interval[0] / rises[model].interval[1],
            rises[ANCHOR].interval[1] / rises[model].interval[0],
        )
        facts.append(
            Fact(
                f"rise of {ANCHOR} over {model}",
                f"{A100}: the rise of {ANCHOR} is {ratio[0]:.2f} to {ratio[1]:.2f} times that of {model}, "
                f"its KV bytes are {bytes_ratio:.2f} times: the order is that of the bytes, the sizes are "
                f"not, at whatever batch and contexts both were measured.",
                *ratio,
                "ratio",
                (ROUNDING, "one batch and one pair of contexts for both models"),
                "interval algebra; bytes from the shapes",
                (rises[ANCHOR].label, rises[model].label),
            )
        )
    return facts
