"""Building blocks of a report: what a page can hold, whatever it is written in, and how records become tables.

Nothing is escaped here: that is the business of whoever writes HTML or Markdown.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

from rooffloor.validate.presentation.numbers import Record, decimal, is_estimate, label, lines, plain

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
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Items:
    """A list."""

    kind: ClassVar[str] = "items"
    items: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """A verdict and what was judged."""

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
    """A list, or nothing where there is nothing to list."""
    items = tuple(texts)
    return (Items(items),) if items else ()


def any_cell(value: object, *, signed: bool = False, unit: bool = True) -> Cell:
    """A value as a cell: an estimate with its intervals, a tuple of texts as lines, a `Cell` as it is."""
    if isinstance(value, Cell):
        return value
    if is_estimate(value):
        return Cell(lines(value, signed=signed, unit=unit))  # type: ignore[arg-type]
    return Cell(value if isinstance(value, tuple) else (plain(value),))


def common_estimand(estimates: Iterable[object]) -> str:
    """What the estimates among some values estimate, where all of them estimate the same."""
    names = {e["estimand"] for e in estimates if is_estimate(e)}  # type: ignore[index]
    return names.pop() if len(names) == 1 else ""


@dataclass(frozen=True)
class Field:
    """A column of a table of records: its title, and what of a record stands in it.

    Attributes
    ----------
    of
        Key of a value (see `any_cell`), keys of one within another, or function of a record.
    note
        Below the title; default: what the column estimates, where all rows estimate the same.
    numeric
        Default: whether all values are numbers or estimates.
    signed, unit
        How estimates are written.
    """

    title: str
    of: str | tuple[str, ...] | Callable[[Record], Any]
    note: str | None = None
    numeric: bool | None = None
    signed: bool = False
    unit: bool = False

    def value(self, row: Record) -> Any:
        """What the row has in this column."""
        if callable(self.of):
            return self.of(row)
        return row.get(self.of) if isinstance(self.of, str) else reduce(lambda found, key: found[key], self.of, row)

    def head(self, values: Sequence[object]) -> Column:
        """The column's head above these values."""
        note = common_estimand(values) if self.note is None else self.note
        return Column(self.title, note, _numeric(values) if self.numeric is None else self.numeric)


PAIR = (Field("model", "model"), Field("GPU", "gpu"))


def decimals(title: str, key: str, digits: int = 2, note: str = "", *, unit: str = "1", signed: bool = False) -> Field:
    """A column of plain numbers with so many decimals."""
    return Field(title, lambda row: decimal(row[key], digits, unit, signed=signed), note, numeric=True)


def table(
    caption: str, rows: Sequence[Record], fields: Sequence[Field], *, heads: int = 1, fold: bool = True
) -> tuple[Block, ...]:
    """Records as a table; nothing where there are none. With `fold`, rows beyond `OPEN_ROWS` are folded away."""
    if not rows:
        return ()
    columns = [(field, [field.value(row) for row in rows]) for field in fields]
    heading = tuple(field.head(values) for field, values in columns)
    written = [[any_cell(v, signed=field.signed, unit=field.unit) for v in values] for field, values in columns]
    cells = tuple(zip(*written, strict=True))
    most = OPEN_ROWS if fold else len(rows)
    shown, rest = Table(caption, heading, cells[:most], heads), cells[most:]
    if not rest:
        return (shown,)
    return shown, Fold(f"{len(rest)} more rows", (Table(f"{caption} (continued)", heading, rest, heads),))


def records(caption: str, rows: Sequence[Record], *, heads: int = 1) -> tuple[Block, ...]:
    """Records as they are: a column for each key."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return table(caption, rows, [Field(label(key), key, unit=True) for key in keys], heads=heads)


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
    rows = [{"what": name, "value": value} for name, value in flat(record).items()]
    fields = (Field("what", "what", ""), Field("value", "value", "", numeric=False, unit=True))
    lists = [(label(key), value) for key, value in record.items() if _is_records(value)]
    folds = (Fold(name.capitalize(), records(name, value)) for name, value in lists)
    return (*table(caption, rows, fields, fold=False), *folds)
