"""The section "What a floor absorbs, and what it hides" of a report, made from the rows of hypotheses/absorption.py."""

from collections.abc import Callable, Sequence
from itertools import groupby

from rooffloor.validate.hypotheses.absorption import implausible, share_words
from rooffloor.validate.presentation.blocks import (
    Block,
    Cell,
    Column,
    Fold,
    Image,
    Section,
    Table,
    Text,
    common_estimand,
    estimate_cell,
    items,
    long_table,
    text_cell,
)
from rooffloor.validate.presentation.numbers import MISSING, Record, size_number

TITLE = "What a floor absorbs, and what it hides"
NO_EFFECT, NEVER = "no effect", "never"


def section(absorbed: Sequence[Record], hidden: Sequence[Record], image: Callable[[str], tuple[Image, ...]]) -> Section:
    """The section on absorption; it stands before any residual MAPE.

    Parameters
    ----------
    absorbed, hidden : lists of mappings
        `absorption` and `hidden_errors` of report.json.
    image : callable(str) -> tuple of Image
        The figure of a key, where there is one.
    """
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
    if not rows:
        return image
    return (
        Text(f"{_verdict(rows)} {_WHY}"),
        *image,
        *_absorbed_table(rows),
        Fold(f"In words ({len(rows)})", items(row["sentence"] for row in rows)),
    )


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
    more = sum(_exceeds(row) for row in told)
    open_ = sum(not _exceeds(row) and not _within(row) for row in told)
    text = (
        "The best scalar of each (model, GPU) removes more of the squared relative error than pure noise gives in "
        f"{more} of {len(told)} pairs (90 % intervals apart)"
    )
    if open_:
        text += f"; in {open_} that depends on the constants, which these data leave open"
    return f"{text}."


def _bounds(row: Record) -> tuple[float, float, float]:
    """The 90 % interval of the squared share, and the upper end of that of pure noise."""
    nan = float("nan")
    low, high = (nan if end is None else end for end in row["squared"]["intervals"].get("90", (nan, nan)))
    limit = row["noise_squared"]["intervals"].get("90", (nan, nan))[1]
    return low, high, nan if limit is None else limit


def _exceeds(row: Record) -> bool:
    low, _, limit = _bounds(row)
    return low > limit


def _within(row: Record) -> bool:
    _, high, limit = _bounds(row)
    return high <= limit


def _absorbed_table(rows: Sequence[Record]) -> tuple[Block, ...]:
    shares = {
        "squared": "squared error removed, %",
        "noise_squared": "of pure noise, %",
        "absolute": "absolute error removed, %",
        "noise_absolute": "of pure noise, %",
    }
    columns = (
        Column("model"),
        Column("GPU"),
        Column("cells", numeric=True),
        *(Column(title, common_estimand(row[key] for row in rows), True) for key, title in shares.items()),
        Column("MAPE left, %", common_estimand(row["left"] for row in rows), True),
    )
    cells = [
        (
            *(text_cell(row[key]) for key in ("model", "gpu", "cells")),
            *(estimate_cell(in_percent(row[key])) for key in shares),
            estimate_cell(row["left"]),
        )
        for row in rows
    ]
    return long_table("What the best scalar removes of the relative error of T_gpu", columns, cells, heads=2)


def in_percent(share: Record) -> Record:
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
        _overview(rows),
        *(_of_gpu(gpu, [r for r in rows if r["gpu"] == gpu]) for gpu in dict.fromkeys(r["gpu"] for r in rows)),
    )


def _by_kind(rows: Sequence[Record]) -> list[list[Record]]:
    return [[r for r in rows if r["error"] == name] for name in dict.fromkeys(r["error"] for r in rows)]


def _in_effect_hidden(row: Record) -> bool:
    """Whether no size that the error can have would show, though cells depend on it."""
    size = row["detectable"]
    return row["share_hidden"] is not None and (size is None or implausible(size, row["unit"]))


def _kinds(rows: Sequence[Record]) -> list[str]:
    """Kinds of error that no pair can see, because nothing depends on them or because a floor hides them."""
    unseen = [g[0]["label"] for g in _by_kind(rows) if all(r["share_hidden"] is None for r in g)]
    seen = [[r for r in g if r["share_hidden"] is not None] for g in _by_kind(rows)]
    wholly = [g[0]["label"] for g in seen if g and all(map(_in_effect_hidden, g))]
    partly = [
        f"{g[0]['label']} ({sum(map(_in_effect_hidden, g))} of {len(g)} pairs)"
        for g in seen
        if any(map(_in_effect_hidden, g)) and not all(map(_in_effect_hidden, g))
    ]
    return [
        f"{title}: {'; '.join(names)}."
        for title, names in (
            ("No cell depends on them, so that these data cannot show them", unseen),
            ("In effect hidden by a free floor wherever cells depend on them", wholly),
            ("In effect hidden in some pairs", partly),
        )
        if names
    ]


def _overview(rows: Sequence[Record]) -> Table:
    columns = (
        _ERROR,
        Column("pairs", "with cells that depend on it", True),
        Column("share hidden", "of the squared effect", True),
        *_SIZES,
        Column("with one more cell", "floor free; the best one that fits", True),
    )
    cells = tuple(
        (
            _kind(group[0]),
            Cell((f"{sum(map(_depends, group))} of {len(group)}",)),
            Cell((_span([_share(r) for r in sorted(filter(_depends, group), key=_order("share_hidden"))]),)),
            *(
                Cell((_span([_size(r, key) for r in sorted(filter(_depends, group), key=_order(key))]),))
                for key in ("detectable", "detectable_known_floor")
            ),
            Cell((_span([_size(r, "detectable_with_it") for r in sorted(group, key=_order("detectable_with_it"))]),)),
        )
        for group in _by_kind(rows)
    )
    return Table("Errors of T_gpu that a free floor hides, over all models and GPUs", columns, cells)


_ERROR = Column("error of T_gpu", "unit of its size")
_SIZES = (Column("shows from", "floor free", True), Column("shows from", "floor known", True))


def _kind(row: Record) -> Cell:
    return Cell((row["label"], f"in {row['unit']}"))


def _depends(row: Record) -> bool:
    return row["share_hidden"] is not None


def _order(key: str) -> Callable[[Record], float]:
    return lambda row: float("inf") if row[key] is None else row[key]


def _span(words: Sequence[str]) -> str:
    """The first and the last of some ordered words; one where they are the same."""
    if not words:
        return MISSING
    return words[0] if words[0] == words[-1] else f"{words[0]} to {words[-1]}"


def _of_gpu(gpu: str, rows: Sequence[Record]) -> Fold:
    """The rows of each model on one GPU as a table and, folded, as sentences."""
    blocks: list[Block] = []
    for model, group in groupby(rows, key=lambda row: row["model"]):
        own = list(group)
        blocks += [_of_pair(f"{model} on {gpu}", own), Fold("In words", items(row["sentence"] for row in own))]
    return Fold(f"{gpu}: each model, and the further cell that would show most", tuple(blocks))


def _of_pair(pair: str, rows: Sequence[Record]) -> Table:
    columns = (
        _ERROR,
        Column("share hidden", "of the squared effect", True),
        *_SIZES,
        Column("best further cell", "batch, context", True),
        Column("with that cell", "shows from, floor free", True),
    )
    cells = tuple(
        (
            _kind(row),
            Cell((_share(row),)),
            *(Cell((_size(row, key),)) for key in ("detectable", "detectable_known_floor")),
            Cell((f"B = {row['best_batch']:g}, L = {row['best_context']:g}" if row["best_batch"] else "none",)),
            Cell((_size(row, "detectable_with_it"),)),
        )
        for row in rows
    )
    return Table(f"Errors of T_gpu that a free floor hides: {pair}", columns, cells)


def _share(row: Record) -> str:
    if not _depends(row):
        return NO_EFFECT
    return share_words(row["share_hidden"]).replace("more than", ">").replace("less than", "<")


def _size(row: Record, key: str) -> str:
    return NEVER if row[key] is None else size_number(row[key], row["unit"])
