"""The section "What a floor absorbs, and what it hides" of a report, made from the rows of hypotheses/absorption.py."""

from collections.abc import Callable, Sequence
from itertools import groupby

from rooffloor.validate.presentation.blocks import PAIR, Block, Field, Fold, Image, Section, Text, items, table
from rooffloor.validate.presentation.numbers import MISSING, Record, size_number

TITLE = "What a floor absorbs, and what it hides"
NO_EFFECT, NEVER = "no effect", "never"


def section(absorbed: Sequence[Record], hidden: Sequence[Record], image: Callable[[str], tuple[Image, ...]]) -> Section:
    """The section on `absorption` and `hidden_errors`; it stands before any residual MAPE."""
    parts = (
        Section("What a scalar absorbs", _absorbed(absorbed, image("absorption"))),
        Section("What a scalar hides", _hidden(hidden, image("hidden_errors"))),
    )
    below = tuple(part for part in parts if part)
    intro = Text(
        "A residual MAPE is what is left after a constant in time was taken away. Before it is read, two questions: "
        "how much of the residual y - T_gpu does a constant remove, and which errors of T_gpu would it remove as well? "
        "A small residual says nothing against an error that the floor hides. Both answers are about the cells at hand."
    )
    return Section(TITLE, (intro,) if below else (), below)


# ---- what a scalar absorbs --------------------------------------------------------------------------------------


def _absorbed(rows: Sequence[Record], image: tuple[Image, ...]) -> tuple[Block, ...]:
    fields = (
        *PAIR,
        Field("cells", "cells"),
        Field("squared error removed, %", lambda r: _in_percent(r["squared"])),
        Field("of pure noise, %", lambda r: _in_percent(r["noise_squared"])),
        Field("absolute error removed, %", lambda r: _in_percent(r["absolute"])),
        Field("of pure noise, %", lambda r: _in_percent(r["noise_absolute"])),
        Field("MAPE left, %", "left"),
    )
    shown = table("What the best scalar removes of the relative error of T_gpu", rows, fields, heads=2)
    return (*([Text(f"{_verdict(rows)} {_WHY}")] if rows else []), *image, *shown)


_WHY = (
    "More than noise gives need not be a floor: an error of T_gpu that is alike in all cells is absorbed wholly, one "
    "that keeps its sign in part. The scalars are fitted to the very cells that they are judged on, so that even of "
    "pure noise about one part in as many as there are cells is removed."
)


def _verdict(rows: Sequence[Record]) -> str:
    """For how many pairs a scalar removes more than noise gives; pairs of one cell do not count."""
    told = [row for row in rows if row["cells"] > 1]
    if not told:
        return "No (model, GPU) has more than one cell, which some scalar always meets: nothing is shown."
    bounds = [_bounds(row) for row in told]
    more = sum(low > limit for low, _, limit in bounds)
    open_ = sum(not low > limit and not high <= limit for low, high, limit in bounds)
    text = (
        "The best scalar of each (model, GPU) removes more of the squared relative error than pure noise gives in "
        f"{more} of {len(told)} pairs (90 % intervals apart)"
    )
    if open_:
        text += f"; in {open_} that depends on the constants, which these data leave open"
    return f"{text}."


def _bounds(row: Record) -> tuple[float, float, float]:
    """The 90 % interval of the squared share, and the upper end of that of pure noise; NaN where there is none."""
    own, noise = (row[key]["intervals"].get("90", (None, None)) for key in ("squared", "noise_squared"))
    low, high, limit = (float("nan") if end is None else float(end) for end in (*own, noise[1]))
    return low, high, limit


def _in_percent(share: Record) -> Record:
    """An estimate of a share as one in percent."""

    def times(value: float | None) -> float | None:
        return None if value is None else 100.0 * value

    intervals = {level: [times(end) for end in ends] for level, ends in share["intervals"].items()}
    value, mcse = times(share["value"]), times(share["mcse"])
    return {**share, "value": value, "unit": "percent", "intervals": intervals, "mcse": mcse}


# ---- what a scalar hides ----------------------------------------------------------------------------------------

_HOW = (
    "An error of T_gpu changes the cells by some pattern; what of it lies along a constant a free floor takes up, and "
    "no number of repeats would show it. Shares are of the squared effect: of its root mean square a floor takes less, "
    "1 - √(1 - share), 16 % where the share is 30 %. What remains shows only from some size on: the smallest that a "
    "two-sided test at 5 % finds in four of five tries, given the noise of these cells; percent of a switch: of the "
    "change from one formula to the other."
)
_ALONE = (
    "Errors are taken one at a time, the noise as known and independent between cells, constants at their posterior "
    "means; several errors at once hide more."
)


def _hidden(rows: Sequence[Record], image: tuple[Image, ...]) -> tuple[Block, ...]:
    if not rows:
        return image
    return (
        Text(f"{_HOW} {_ALONE}"),
        *items(_kinds(rows)),
        *image,
        *_overview(rows),
        *(_of_gpu(gpu, [r for r in rows if r["gpu"] == gpu]) for gpu in dict.fromkeys(r["gpu"] for r in rows)),
    )


def _by_kind(rows: Sequence[Record]) -> list[list[Record]]:
    return [[r for r in rows if r["error"] == name] for name in dict.fromkeys(r["error"] for r in rows)]


def _in_effect_hidden(row: Record) -> bool:
    """Whether no size that the error can have would show."""
    size = row["detectable"]
    return size is None or (row["unit"].startswith("percent") and size >= 100.0)


def _kinds(rows: Sequence[Record]) -> list[str]:
    """Kinds of error that no pair can see, because nothing depends on them or because a floor hides them."""
    unseen, wholly, partly = list[str](), list[str](), list[str]()
    for group in _by_kind(rows):
        name, seen = group[0]["label"], list(filter(_depends, group))
        hidden = sum(map(_in_effect_hidden, seen))
        if not seen:
            unseen.append(name)
        elif hidden == len(seen):
            wholly.append(name)
        elif hidden:
            partly.append(f"{name} ({hidden} of {len(seen)} pairs)")
    told = {
        "No cell depends on them, so that these data cannot show them": unseen,
        "In effect hidden by a free floor wherever cells depend on them": wholly,
        "In effect hidden in some pairs": partly,
    }
    return [f"{title}: {'; '.join(names)}." for title, names in told.items() if names]


_ERROR = Field("error of T_gpu", lambda row: (row["label"], f"in {row['unit']}"), "unit of its size")


def _overview(rows: Sequence[Record]) -> tuple[Block, ...]:
    """A row for each kind of error: the span over all pairs of a model and a GPU."""

    def span(key: str, words: Callable[[Record], str], *, depending: bool = True) -> Callable[[Record], str]:
        def of(kind: Record) -> str:
            group = [r for r in kind["rows"] if not depending or _depends(r)]
            ordered = [words(r) for r in sorted(group, key=lambda r: float("inf") if r[key] is None else r[key])]
            ends = dict.fromkeys((ordered[0], ordered[-1])) if ordered else (MISSING,)
            return " to ".join(ends)

        return of

    with_it = span("detectable_with_it", _size("detectable_with_it"), depending=False)
    fields = (
        _ERROR,
        Field("pairs", lambda k: f"{sum(map(_depends, k['rows']))} of {len(k['rows'])}", _PAIRS, numeric=True),
        Field("share hidden", span("share_hidden", _share), _SQUARED, numeric=True),
        Field("shows from", span("detectable", _size("detectable")), "floor free", numeric=True),
        Field("shows from", span(_KNOWN, _size(_KNOWN)), "floor known", numeric=True),
        Field("with one more cell", with_it, "floor free; the best one that fits", numeric=True),
    )
    kinds = [{**group[0], "rows": group} for group in _by_kind(rows)]
    return table("Errors of T_gpu that a free floor hides, over all models and GPUs", kinds, fields, fold=False)


def _of_pair(pair: str, rows: Sequence[Record]) -> tuple[Block, ...]:
    def best(row: Record) -> str:
        return f"B = {row['best_batch']:g}, L = {row['best_context']:g}" if row["best_batch"] else "none"

    fields = (
        _ERROR,
        Field("share hidden", _share, _SQUARED, numeric=True),
        Field("the floor moves by", _moved, "ms per unit", numeric=True),
        Field("shows from", _size("detectable"), "floor free", numeric=True),
        Field("shows from", _size(_KNOWN), "floor known", numeric=True),
        Field("best further cell", best, "batch, context", numeric=True),
        Field("with that cell", _size("detectable_with_it"), "shows from, floor free", numeric=True),
    )
    return table(f"Errors of T_gpu that a free floor hides: {pair}", rows, fields, fold=False)


_PAIRS, _SQUARED, _KNOWN = "with cells that depend on it", "of the squared effect", "detectable_known_floor"


def _of_gpu(gpu: str, rows: Sequence[Record]) -> Fold:
    """A table for each model on one GPU."""
    by_model = groupby(rows, key=lambda row: row["model"])
    tables = tuple(block for model, own in by_model for block in _of_pair(f"{model} on {gpu}", list(own)))
    return Fold(f"{gpu}: each model, and the further cell that would show most", tables)


def _depends(row: Record) -> bool:
    return row["share_hidden"] is not None


def _share(row: Record) -> str:
    """The share hidden in percent, that claims neither all nor nothing where it is not."""
    if not _depends(row):
        return NO_EFFECT
    percent = 100.0 * row["share_hidden"]
    if percent > 99.9:
        return "> 99.9 %"
    return "< 0.1 %" if percent < 0.1 else f"{percent:.3g} %"


def _moved(row: Record) -> str:
    return MISSING if row["floor_shift"] is None else f"{row['floor_shift']:.2g}"


def _size(key: str) -> Callable[[Record], str]:
    return lambda row: NEVER if row[key] is None else size_number(row[key], row["unit"])
