"""Building blocks of a report: what a page can hold, whatever it is written in, and how records become tables.

Nothing is escaped here: that is the business of whoever writes HTML or Markdown.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rooffloor.validate.presentation.numbers import Record, is_estimate, label, lines, plain

OPEN_ROWS = 24
"""Rows of a long table that are shown; the others are folded away."""


@dataclass(frozen=True)
class Cell:
    """One cell of a table: lines of text, the first one a verdict or not."""

    lines: tuple[str, ...]
    verdict: bool = False


@dataclass(frozen=True)
class Column:
    """Head of a column: title, what it estimates, and whether it holds numbers."""

    title: str
    note: str = ""
    numeric: bool = False


@dataclass(frozen=True)
class Text:
    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Items:
    kind: ClassVar[str] = "items"
    items: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    kind: ClassVar[str] = "verdict"
    verdict: str
    text: str


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first `heads` columns name the row."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    heads: int = 1


@dataclass(frozen=True)
class Image:
    """A figure by its key, with what a person who cannot see it is told."""

    kind: ClassVar[str] = "image"
    key: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Fold:
    """Blocks behind a line that opens them."""

    kind: ClassVar[str] = "fold"
    title: str
    blocks: "tuple[Block, ...]"


type Block = Text | Items | Verdict | Table | Image | Fold


@dataclass(frozen=True)
class Section:
    """A heading, what stands under it, and the sections below it."""

    title: str
    blocks: tuple[Block, ...] = ()
    sections: "tuple[Section, ...]" = ()

    def __bool__(self) -> bool:
        return bool(self.blocks or self.sections)


# ---- pieces -----------------------------------------------------------------------------------------------------


def items(texts: Iterable[str]) -> tuple[Items, ...]:
    items = tuple(texts)
    return (Items(items),) if items else ()


def text_cell(value: object) -> Cell:
    return Cell((plain(value),))


def estimate_cell(estimate: Record | None, *, signed: bool = False, unit: bool = False) -> Cell:
    return Cell(lines(estimate, signed=signed, unit=unit))


def any_cell(value: object) -> Cell:
    return Cell(lines(value, unit=True)) if is_estimate(value) else text_cell(value)  # type: ignore[arg-type]


def common_estimand(estimates: Iterable[Record | None]) -> str:
    """What a column estimates, where all of it estimates the same."""
    names = {e["estimand"] for e in estimates if e}
    return names.pop() if len(names) == 1 else ""


def long_table(
    caption: str, columns: Sequence[Column], rows: Sequence[tuple[Cell, ...]], heads: int = 1
) -> tuple[Block, ...]:
    """A table whose rows beyond `OPEN_ROWS` are folded away; nothing where there are no rows."""
    if not rows:
        return ()
    first, rest = tuple(rows[:OPEN_ROWS]), tuple(rows[OPEN_ROWS:])
    shown = Table(caption, tuple(columns), first, heads)
    if not rest:
        return (shown,)
    return shown, Fold(f"{len(rest)} more rows", (Table(f"{caption} (continued)", tuple(columns), rest, heads),))


def records(caption: str, rows: Sequence[Record], *, heads: int = 1) -> tuple[Block, ...]:
    """Records as they are: a column for each key."""
    values = {key: [row.get(key) for row in rows] for row in rows for key in row}
    columns = [
        Column(label(key), common_estimand(v for v in column if is_estimate(v)), _numeric(column))
        for key, column in values.items()
    ]
    cells = [tuple(any_cell(row.get(key)) for key in values) for row in rows]
    return long_table(caption, columns, cells, heads)


def _numeric(values: Iterable[object]) -> bool:
    return all(v is None or is_estimate(v) or (isinstance(v, int | float) and not isinstance(v, bool)) for v in values)


def flat(record: Record, prefix: str = "") -> dict[str, Any]:
    """Nested mappings of a record as one level, keys joined in words; lists of records are left out."""
    out: dict[str, Any] = {}
    for key, value in record.items():
        name = f"{prefix}{label(key)}"
        if isinstance(value, Mapping) and not is_estimate(value):
            out |= flat(value, f"{name}: ")
        elif not _is_records(value):
            out[name] = value
    return out


def _is_records(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def key_values(record: Record, caption: str) -> tuple[Block, ...]:
    """A record as a table of two columns, its lists of records folded below."""
    rows = tuple((Cell((name,)), any_cell(value)) for name, value in flat(record).items())
    table = (Table(caption, (Column("what"), Column("value")), rows),) if rows else ()
    lists = [(label(k), v) for k, v in record.items() if _is_records(v)]
    return (*table, *(Fold(name.capitalize(), records(name, v)) for name, v in lists))
