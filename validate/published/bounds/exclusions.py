"""What the published aggregates alone exclude, as facts over all grids.

`grid_programme` is the linear programme over all grids that print the figures of one row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rooffloor.models.roof.roofline import bytes_floor_ms
from rooffloor.models.specs import gpus
from rooffloor.models.specs.shapes import load as load_shapes
from rooffloor.validate.published.bounds.grid_programme import RATIO, GridProgramme, grid_programme
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


@dataclass(frozen=True)
class Fact:
    """One thing that the aggregates imply: `low` <= quantity <= `high` in `unit`, whatever the unseen cells are."""

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
PROGRAMME = "mixed-integer linear programme over the sums of each sign pattern"
ALGEBRA = "interval algebra"
BYTES = "; bytes from the shapes"


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


def _labels(figures: Sequence[Figure]) -> tuple[str, ...]:
    return tuple(figure.label for figure in figures)


def _within(programme: GridProgramme, ratio: float) -> str:
    low, high = programme.steps_ms
    return f"steps between {low:.3g} and {high:.3g} ms (ratio {ratio:g})"


def _row_facts(figures: PublishedFigures, model: str, gpu: str, programme: GridProgramme, ratio: float) -> list[Fact]:
    row, n = f"{model}/{gpu}", programme.cells
    mapes = ("raw_mape", "residual_mape", "self_floor_mape")
    used = _labels([r for r in figures if (r.model, r.gpu) == (model, gpu) and r.quantity in mapes])
    assumed = (ROUNDING, POSITIVE, _within(programme, ratio))

    def fact(name: str, bounds: Interval, unit: str, text: str) -> Fact:
        return Fact(f"{row}: {name}", f"{row}: {text}", *bounds, unit, assumed, PROGRAMME, used)

    if not programme.feasible:
        return [fact("no grid", (np.nan, np.nan), "", f"no grid of {n} cells prints these figures.")]
    inverse, share = programme.mean(programme.inverse()), programme.mean(programme.share())
    level = programme.ratio(programme.share(), programme.inverse())
    of_inverse = (
        f"mean(1/y) is {inverse[0]:.4f} to {inverse[1]:.4f} per ms: the harmonic mean of the steps is "
        f"{1 / inverse[1]:.2f} to {1 / inverse[0]:.2f} ms."
    )
    of_share = f"T_gpu is on average {100 * share[0]:.1f} to {100 * share[1]:.1f} % of the step."
    of_level = (
        f"the mean T_gpu, cells weighted by 1/y, is {level[0]:.2f} to {level[1]:.2f} ms; the plain mean is at least "
        "the lower bound where T and y order the cells alike."
    )
    facts = [
        fact("mean 1/y", inverse, "1/ms", of_inverse),
        fact("mean T/y", share, "", of_share),
        fact("mean T, weighted by 1/y", level, "ms", of_level),
    ]
    for name in (error.name for error in programme.errors):
        signed = _points(programme.mean(programme.signed(name)))
        count = programme.bounds(programme.over(name))
        of_signed = f"the mean signed {name} error is {signed[0]:+.1f} to {signed[1]:+.1f} points."
        of_count = f"{round(count[0])} to {round(count[1])} of {n} cells are over-predicted ({name})."
        facts += [
            fact(f"mean signed {name} error", signed, "points", of_signed),
            fact(f"cells over-predicted, {name}", count, "cells", of_count),
        ]
    return facts


def _self_floor_facts(figures: PublishedFigures, programme: GridProgramme, ratio: float) -> list[Fact]:
    """What the three errors of the 1B on the A100 say of its self-floor."""
    printed = [figures.get(SMALL, A100, q) for q in ("raw_mape", "residual_mape", "self_floor", "self_floor_mape")]
    used = _labels([*printed, figures.get(ANCHOR, A100, "anchor_offset")])
    assumed = (ROUNDING, POSITIVE)
    n, row = programme.cells, f"{SMALL}/{A100}"
    free = GridProgramme(programme.errors, n)
    over = free.over_sum("self-floor")
    under = over - free.signed("self-floor")
    excess, under_points = _points(free.mean(free.signed("self-floor"))), _points(free.mean(under))
    above, count = free.mean(free.over_sum("raw"))[1], programme.bounds(programme.over("raw"))
    sided, worst = free.ratio(over, under)[0], n * under_points[1]
    of_count = (
        f"{row}: adding the anchor's negative offset raises the MAPE by at most its size times mean(1/y), with "
        f"equality only if T <= y everywhere; with the self-floor's MAPE at most {count[1]:.0f} of {n} cells can "
        f"have T > y, by {100 * n * above:.1f} points at most if added up. No bound here assumes T < y."
    )
    of_excess = (
        f"{row}: the self-floor over-predicts by {excess[0]:.1f} to {excess[1]:.1f} points on average, of a MAPE of "
        f"{printed[3].value:g}: it is no centre of the errors."
    )
    of_under = (
        f"{row}: all under-predictions of the self-floor add up to at most {worst:.1f} points over {n} cells: at most "
        f"{int(worst // 3)} cells by more than 3 points, at most {int(worst // 5)} by more than 5."
    )
    of_sided = (
        f"{row}: a self-floor that is the mean of y - T, or relative least squares, needs one step at least "
        f"{sided:.2f} times another within the grid (over-predictions add up to {sided:.2f} times the "
        "under-predictions at least, and these offsets weight each error by y, or by 1/y, to a sum of 0)."
    )
    bounded, name = (*assumed, _within(programme, ratio)), f"{row}: steps under a mean offset"
    return [
        Fact(f"{row}: cells with T > y", of_count, *count, "cells", bounded, PROGRAMME, used),
        Fact(f"{row}: excess of the self-floor", of_excess, *excess, "points", assumed, PROGRAMME, used),
        Fact(f"{row}: under-prediction of the self-floor", of_under, *under_points, "points", assumed, PROGRAMME, used),
        Fact(name, of_sided, sided, np.inf, "ratio", assumed, f"{PROGRAMME}, Dinkelbach", used),
    ]


def _compute_facts(figures: PublishedFigures, facts: Mapping[str, Fact]) -> list[Fact]:
    """What the 1B's mean T_gpu on three SKUs says of its bytes."""
    levels = {gpu: facts[f"{SMALL}/{gpu}: mean T, weighted by 1/y"] for gpu in (A100, H100, H200)}
    out = []
    for gpu, t in levels.items():
        weights, largest = (float(bytes_floor_ms(SMALL, gpu, *cell)) for cell in ((1, 0), (16, 8192)))
        text = (
            f"{SMALL}/{gpu}: mean T_gpu (weights 1/y) of at least {t.low:.2f} ms is {t.low / weights:.1f} times its "
            f"weights at peak bandwidth ({weights:.2f} ms) and {t.low / largest:.2f} times the bytes of its largest "
            f"cell (16, 8192) ({largest:.2f} ms)."
        )
        bounds = t.low / weights, t.high / weights
        name = f"{SMALL}/{gpu}: T over bytes"
        out.append(Fact(name, text, *bounds, "ratio", t.assumptions, PROGRAMME + BYTES, t.figures))
    for slow, fast in ((A100, H100), (H100, H200)):
        a, b = levels[slow], levels[fast]
        bandwidth = gpus.load(fast).bandwidth / gpus.load(slow).bandwidth
        ratio = a.low / b.high, a.high / b.low
        needed = max(ratio[0] / bandwidth, bandwidth / ratio[1], 1.0)
        text = (
            f"{SMALL}: mean T_gpu (weights 1/y) on {slow} is {ratio[0]:.2f} to {ratio[1]:.2f} times that on {fast}; "
            f"bytes alone under shared constants give {bandwidth:.2f} in every cell. Excluded where the steps of the "
            "two grids are proportional, or where their spreads (largest over smallest step) multiply to less than "
            f"{needed:.3f}."
        )
        assumed, name = a.assumptions + b.assumptions[2:], f"{SMALL}: T_{slow} / T_{fast}"
        out.append(Fact(name, text, *ratio, "ratio", assumed, PROGRAMME, a.figures + b.figures))
    t, share = levels[A100], facts[f"{SMALL}/{A100}: mean T/y"]
    top = figures.get(SMALL, "unspecified", "gpu_compute_high")
    text = (
        f"{SMALL}/{A100}: the text calls the step almost entirely host floor, with 2 to 5 ms of compute; the table "
        f"makes T_gpu {100 * share.low:.0f} % of the step or more, {t.low:.2f} to {t.high:.2f} ms in the mean (weights "
        f"1/y; 'about 5' reaches {top.interval[1]:g})."
    )
    name, used = f"{SMALL}/{A100}: almost entirely floor", (*share.figures, top.label)
    out.append(Fact(name, text, share.low, share.high, "", share.assumptions, PROGRAMME, used))
    return out


def _anchor_facts(figures: PublishedFigures, facts: Mapping[str, Fact], cells: int) -> list[Fact]:
    """What the sign of each anchor offset implies."""
    out = []
    for gpu in (H100, H200, A100):
        offset = figures.get(ANCHOR, gpu, "anchor_offset")
        over = facts[f"{ANCHOR}/{gpu}: cells over-predicted, raw"]
        low, high = (over.low, over.high) if offset.value < 0 else (cells - over.high, cells - over.low)
        word = "exceeds the step" if offset.value < 0 else "stays below the step"
        text = (
            f"{ANCHOR}/{gpu}: the offset {offset.value:+g} ms lowers the MAPE, so T_gpu {word} in at least "
            f"{round(low)} of {cells} cells; if it is a mean, a quantile or a least-error offset of y - T, then by "
            f"{min(map(abs, offset.interval)):g} ms or more in one of them."
        )
        name, used = f"{ANCHOR}/{gpu}: sign of the offset", (offset.label, *over.figures)
        out.append(Fact(name, text, low, high, "cells", over.assumptions, PROGRAMME, used))
    return out


def _pooled_facts(figures: PublishedFigures) -> list[Fact]:
    facts = []
    for pooled in (r for r in figures if (r.gpu, r.quantity) == ("pooled", "residual_mape")):
        rows = [r for r in figures if (r.model, r.quantity) == (pooled.model, "residual_mape") and r.gpu != "pooled"]
        low, high = (float(np.mean(ends)) for ends in zip(*(r.interval for r in rows), strict=True))
        agrees = low <= pooled.interval[1] and pooled.interval[0] <= high
        text = (
            f"{pooled.model}: the plain mean over SKUs is {low:.2f} to {high:.2f} %, the printed {pooled.value:g} % "
            f"{'agrees' if agrees else 'DISAGREES'} (the median of the SKUs would be "
            f"{float(np.median([r.value for r in rows])):g} %; with equally many cells a SKU, the mean over cells is "
            "the same number)."
        )
        name, used = f"{pooled.model}: pooled residual", _labels([*rows, pooled])
        facts.append(Fact(name, text, low, high, "percent", (ROUNDING,), ALGEBRA, used))
    return facts


def _moe_facts(figures: PublishedFigures) -> list[Fact]:
    names = ("predicted_with_self_floor", "measured", "error", "self_floor")
    predicted, measured, error, floor = (figures.get(MOE, H100, name) for name in names)
    (p_low, p_high), (m_low, m_high) = predicted.interval, measured.interval
    implied = 100 * (p_low / m_high - 1), 100 * (p_high / m_low - 1)
    agrees = implied[0] <= error.interval[1] and error.interval[0] <= implied[1]
    compute = p_low - floor.interval[1], p_high - floor.interval[0]
    cell = float(predicted.batch or 16), float(predicted.context or 8192)
    listing = []
    for experts in ("active", "distinct", "balanced"):
        least = float(bytes_floor_ms(MOE, H100, *cell, experts=experts))
        verdict = (
            f"would need {100 * least / compute[1]:.1f} to {100 * least / compute[0]:.1f} % of peak on every byte"
            if least <= compute[1]
            else "is excluded (T_gpu would lie below its bytes)"
        )
        listing.append(f"{experts} ({least:.2f} ms at peak) {verdict}")
    row, where = f"{MOE}/{H100}", f"({cell[0]:g}, {cell[1]:g})"
    of_error = (
        f"{row}: {predicted.value:g} against {measured.value:g} ms is {implied[0]:.1f} to {implied[1]:.1f} % off; the "
        f"printed {error.value:g} % {'agrees' if agrees else 'DISAGREES'} within the rounding."
    )
    of_compute = (
        f"{row}: T_gpu at {where} is {compute[0]:.1f} to {compute[1]:.1f} ms. Experts streamed: {'; '.join(listing)}."
    )
    used, added = _labels([predicted, measured, error]), (ROUNDING, "predicted = T_gpu + self-floor")
    of_floor = _labels([predicted, floor])
    return [
        Fact(f"{row}: error of {where}", of_error, *implied, "percent", (ROUNDING,), ALGEBRA, used),
        Fact(f"{row}: T of {where}", of_compute, *compute, "ms", added, ALGEBRA + BYTES, of_floor),
    ]


SPANS = tuple((batch, 512, 8192) for batch in (1, 4, 8)) + tuple((16, s, 8192) for s in (128, 512, 1024, 2048))
"""Where the long-context rise may have been measured: (batch, shortest context, longest context)."""


def _rise_facts(figures: PublishedFigures) -> list[Fact]:
    """What the rise from short to long contexts needs of the KV cache's bytes."""
    rises = {m: figures.get(m, A100, "long_context_rise") for m in (ANCHOR, SIBLING, SMALL)}
    per_token = {m: 1e3 * load_shapes(m).kv_bytes_per_token / gpus.load(A100).bandwidth for m in rises}
    assumed: tuple[str, ...] = (
        ROUNDING,
        "nothing but the KV read grows with the context",
        "batch and contexts as named",
    )
    facts = []
    for batch, start, stop in SPANS:
        need = {m: batch * (stop - start) * per_token[m] for m in rises}
        parts = [
            f"{m} {r.value:+g} ms over {need[m]:.2f} ms ({need[m] / r.interval[1]:.2f} to "
            f"{need[m] / r.interval[0]:.2f})"
            for m, r in rises.items()
        ]
        implied = [need[m] / end for m, r in rises.items() for end in r.interval]
        excluded = [m for m, r in rises.items() if need[m] > r.interval[1]]
        verdict = f"; below what the bytes need at peak: {', '.join(excluded)}" if excluded else "; none is impossible"
        text = (
            f"{A100}, rise from {start} to {stop} tokens if measured at batch {batch}: KV bytes at peak bandwidth, and "
            f"the efficiency implied: {', '.join(parts)}{verdict}."
        )
        name, ends = f"rise at batch {batch} from {start} to {stop}", (min(implied), max(implied))
        facts.append(Fact(name, text, *ends, "efficiency", assumed, ALGEBRA + BYTES, _labels([*rises.values()])))
    most = rises[SMALL].interval[1] / per_token[SMALL]
    text = (
        f"{SMALL}/{A100}: a rise of {rises[SMALL].value:g} ms is possible only over at most {most:,.0f} tokens of "
        f"cache in all: at batch 16 over {most / 16:,.0f} tokens of context, {most / 16 / 7680:.0%} of 512 to 8192."
    )
    assumed = (ROUNDING, "the step rises at least by the KV read at peak bandwidth")
    name, used = f"{SMALL}/{A100}: tokens of the rise", _labels([rises[SMALL]])
    facts.append(Fact(name, text, 0.0, most, "tokens", assumed, ALGEBRA + BYTES, used))
    assumed = (ROUNDING, "one batch and one pair of contexts for both models")
    for model in (SIBLING, SMALL):
        first, second = rises[ANCHOR], rises[model]
        ratio = first.interval[0] / second.interval[1], first.interval[1] / second.interval[0]
        text = (
            f"{A100}: the rise of {ANCHOR} is {ratio[0]:.2f} to {ratio[1]:.2f} times that of {model}, its KV bytes are "
            f"{per_token[ANCHOR] / per_token[model]:.2f} times: the order is that of the bytes, the sizes are not, at "
            "whatever batch and contexts both were measured."
        )
        name, used = f"rise of {ANCHOR} over {model}", _labels([first, second])
        facts.append(Fact(name, text, *ratio, "ratio", assumed, ALGEBRA + BYTES, used))
    return facts
