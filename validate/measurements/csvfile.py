"""Reading CSV files of strangers: every cell as text with its line number, every fault as one clear line."""

import csv
import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.specs.inputs import called, shown
from rooffloor.validate.common.errors import InputError, listed
from rooffloor.validate.common.files import readable_file

if TYPE_CHECKING:
    import pandas as pd

MOST_COLUMNS = 1000
_HEAD = 1_000_000
"""Characters in which the first rows are looked for."""
_FORMULA = ("=", "+", "-", "@")
_GUARDED = r"^'(?=[=+\-@])"
"""The apostrophe that `table_text` puts before a text that a spreadsheet would take for a formula."""


@dataclass(frozen=True, eq=False)
class Table:
    """A CSV file as text.

    Attributes
    ----------
    name : str
        How errors call the file.
    frame : DataFrame of str
        One row per line that holds anything; cells stripped, empty where the line has none.
        Its index is the line number in the file, 1-based, as an editor shows it.
    sha256 : str
        Of the bytes of the file; empty where the table was no file.
    header_row : int
        Line of the column names.
    folder : Path or None
        Where the file lies.
    header : tuple of str
        The columns that the file has; `frame` may have got more. Empty: all of them.
    """

    name: str
    frame: "pd.DataFrame"
    sha256: str = ""
    header_row: int = 1
    folder: Path | None = None
    header: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Table({self.name}: {len(self.frame)} rows x {len(self.frame.columns)} columns)"

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return len(self.frame)

    @classmethod
    def of_frame(cls, frame: "pd.DataFrame", name: str = "data frame") -> "Table":
        """A DataFrame as a table; its rows are numbered from 1. InputError where a column name appears twice."""
        text = frame.astype(object).where(frame.notna(), "").astype(str).apply(lambda column: column.str.strip())
        text = text.set_axis([str(column).strip() for column in frame.columns], axis=1)
        return cls(name, _tidy(text.set_axis(np.arange(1, len(text) + 1)), name))

    def require(self, columns: Sequence[str], hint: str = "") -> None:
        """Raise InputError unless the table has these columns and at least one row; `hint` ends the message."""
        missing = [c for c in columns if c not in self.frame.columns]
        if missing:
            found = self.header or tuple(self.frame.columns)
            expected = [c for c in columns if c in found or c in missing]
            raise InputError(
                f"{self.name}, row {self.header_row}: column {missing[0]!r} is missing; "
                f"expected {', '.join(expected)} separated by commas, found {listed(found)}{hint and f'; {hint}'}"
            )
        if self.frame.empty:
            raise InputError(f"{self.name} has a header but no rows")

    def number(self, column: str) -> "pd.Series":
        """A column as float64, NaN where a cell is empty or no number."""
        import pandas as pd

        return pd.to_numeric(self.frame[column], errors="coerce").astype(np.float64)

    def fail(self, row: int, column: str, expected: str) -> NoReturn:
        """Raise InputError for the cell at line `row` of `column`."""
        found = self.frame.loc[row, column]
        what = f"found {shown(found)}" if found else "the cell is empty"
        raise InputError(f"{self.name}, row {row}, column {column}: {what}, expected {expected}")


def read(path: str | Path) -> Table:
    """Read a CSV file: UTF-8 with or without BOM, any line ends, blank lines skipped.

    Raises
    ------
    InputError
        The file is missing, empty or too large, is not UTF-8, is not CSV, or a column name appears twice.
    """
    import pandas as pd

    file = readable_file(path)
    content, name = file.read_bytes(), called(file.name)
    text = _decode(content, name)
    lead = len(text) - len(text.lstrip("\r\n \t"))
    if lead == len(text):
        raise InputError(f"{name} is empty; expected a header and rows of comma-separated values")
    blank_lines = text[:lead].replace("\r\n", "\n").replace("\r", "\n").count("\n")
    _check_header(text[lead : lead + _HEAD], f"{name}, row {blank_lines + 1}")
    try:
        raw = pd.read_csv(
            io.StringIO(text),
            header=None,
            dtype=str,
            keep_default_na=False,
            skip_blank_lines=False,
            skiprows=blank_lines,
        )
    except pd.errors.ParserError as error:
        raise InputError(_parser_fault(name, str(error))) from error
    raw = raw.fillna("").apply(lambda column: column.str.strip())
    if "'" in text:
        raw = raw.replace(_GUARDED, "", regex=True)
    raw.index = _line_numbers(raw, blank_lines + 1, quoted='"' in text)
    header_row = int(raw.index[0])
    frame = _tidy(raw.iloc[1:].set_axis(list(raw.iloc[0]), axis=1), f"{name}, row {header_row}")
    return Table(name, frame, hashlib.sha256(content).hexdigest(), header_row, file.parent, tuple(frame.columns))


def _tidy(frame: "pd.DataFrame", where: str) -> "pd.DataFrame":
    """Rows that hold anything, in columns that have a name; InputError where a name appears twice."""
    header = list(frame.columns)
    if twice := sorted({column for column in header if column and header.count(column) > 1}):
        raise InputError(f"{where}: column {shown(twice[0])} appears twice")
    frame = frame.loc[:, [column != "" for column in header]]
    return frame[(frame != "").any(axis=1)]


def table_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Rows as the text of a CSV file that a spreadsheet can open without running a cell; needs no pandas.

    Texts lose control characters (a space stands for each), and those that begin with = + - or @ get an
    apostrophe in front, which `read` takes off again. Numbers are written in full, whole ones without a point.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: object) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, float | int | np.number):
        return "" if value != value else str(value)
    text = "".join(c if c.isprintable() else " " for c in str(value or "")).strip()
    return f"'{text}" if text.startswith(_FORMULA) else text


def _decode(content: bytes, name: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = content[: error.start].count(b"\n") + 1
        raise InputError(
            f"{name}, row {row}: byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from error
    if "\0" in text:
        raise InputError(f"{name} holds NUL bytes: not a text file in UTF-8; save it as UTF-8")
    return text


def _check_header(head: str, where: str) -> None:
    """InputError where the first rows are no header and cells separated by commas: what spreadsheets write instead."""
    rows = csv.reader(io.StringIO(head, newline=None))
    try:
        first, second = next(rows), next(rows, [])
    except csv.Error:  # a cell too long for the first look
        return
    if len(first) > MOST_COLUMNS:
        raise InputError(f"{where}: found {len(first)} columns, expected at most {MOST_COLUMNS}")
    start = first[0].strip()
    if len(start) > 1 and start.startswith("#") and (len(first) == 1 or len(second) != len(first)):
        raise InputError(f"{where}: found the comment {shown(start, 40)}, expected a header with the names of columns")
    for mark, called_mark in ((";", "';'"), ("\t", "tabs")):
        if len(first) == 1 and mark in start:
            decimal = ", with commas in numbers," if re.search(r"\d,\d", head) else ""
            raise InputError(
                f"{where}: the cells seem to be separated by {called_mark}{decimal} "
                "but expected are commas between cells and points in numbers"
            )


def _parser_fault(name: str, message: str) -> str:
    """What pandas says of a table that is none, in our words and with the line of an editor."""
    if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", message):
        cells, row, saw = found.groups()
        return f"{name}, row {row}: found {saw} cells, expected {cells} as in the header"
    if found := re.search(r"EOF inside string starting at row (\d+)", message):
        return f"{name}, row {int(found[1]) + 1}: a quoted cell is never closed"
    return f"{name} is not a table of comma-separated values: {' '.join(message.split())}"


def _line_numbers(raw: "pd.DataFrame", first: int, quoted: bool) -> NDArray[np.int64]:
    lines = first + np.arange(len(raw), dtype=np.int64)
    if quoted:  # a quoted cell may hold line breaks: later rows lie further down
        breaks = raw.apply(lambda column: column.str.count("\n")).sum(axis=1).to_numpy(dtype=np.int64)
        lines[1:] += np.cumsum(breaks)[:-1]
    return lines
