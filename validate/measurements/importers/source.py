"""What importers share: checked JSON, what the caller says, leaving rows out, and the frame they hand on."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pandas as pd

from rooffloor.models.specs.inputs import called, shown
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.common.files import readable_file
from rooffloor.validate.measurements.csvfile import MOST_COLUMNS, Table
from rooffloor.validate.measurements.importers.steps import mean_context
from rooffloor.validate.measurements.schema import LONGEST_CONTEXT, Selected, choose, only_modelled, refuse_empty

MOST_BYTES = 64 * 2**20
"""JSON files above are refused: no result file of these tools is as large without raw samples."""
MOST_TOKENS = LONGEST_CONTEXT
LONGEST_S = 1e7
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class Given:
    """What the caller says of a file; None where nothing was said.

    `stack` and `mode` choose among the rows of a file that mixes them, and name them where the file does not.
    `shorter` is a second run of the same cell with `shorter_output_len` tokens (vllm-latency).
    """

    model: str | None = None
    gpu: str | None = None
    batch: int | None = None
    input_len: int | None = None
    output_len: int | None = None
    stack: str | None = None
    stack_version: str | None = None
    mode: str | None = None
    dtype: str | None = None
    shorter: Path | None = None
    shorter_output_len: int | None = None


class Kind(NamedTuple):
    """What a number should be: in words, and its limits."""

    what: str
    low: float
    high: float
    whole: bool = False


COUNT = Kind("a whole number, at least 1", 1, MOST_TOKENS, True)
SECONDS = Kind("seconds above 0", 1e-9, LONGEST_S)
MILLISECONDS = Kind("milliseconds above 0", 1e-6, 1e3 * LONGEST_S)


@dataclass(frozen=True)
class Document:
    """One JSON object of a file, and how to get checked values from it.

    Attributes
    ----------
    where : str
        How errors call it.
    content : mapping
    expected : str
        What the file should be.
    below : str
        What every path begins with: keys, each with a dot behind it.
    """

    where: str
    content: Mapping[str, Any]
    expected: str
    below: str = ""

    def at(self, path: str) -> "Document":
        """The part of the document below a path."""
        return replace(self, below=f"{self.below}{path}.")

    def get(self, path: str) -> Any:
        """The value at a path of keys joined by dots, None where one is missing."""
        value: Any = self.content
        for key in f"{self.below}{path}".split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def fail(self, path: str, what: str) -> NoReturn:
        """Raise InputError for the value at `path`, which should be `what`."""
        value, path = self.get(path), f"{self.below}{path}"
        if value is None:
            raise InputError(f"{self.where}: no key {path!r} ({what}): expected {self.expected}")
        found = json.dumps(value, default=str)
        found = found if len(found) <= 40 else f"{found[:37]}..."
        raise InputError(f"{self.where}: key {path!r} is {found}, expected {what}")

    def number(self, path: str, kind: Kind) -> float:
        """The number at `path`."""
        value = as_number(self.get(path))
        if not kind.low <= value <= kind.high or (kind.whole and value != math.floor(value)):
            self.fail(path, kind.what)
        return value

    def maybe(self, path: str, kind: Kind) -> float | None:
        """The same, None where the key is missing or null."""
        return None if self.get(path) is None else self.number(path, kind)

    def numbers(self, path: str, kind: Kind) -> list[float]:
        """The list of at least one number at `path`."""
        values = self.get(path)
        checked = [as_number(value) for value in values] if isinstance(values, list) else []
        if not checked or not all(kind.low <= value <= kind.high for value in checked):
            self.fail(path, kind.what)
        return checked

    def text(self, *paths: str) -> str:
        """The text at the first path that has one, else empty."""
        for path in paths:
            value = self.get(path)
            if value is not None and (not isinstance(value, str) or len(value) > 1000):
                self.fail(path, "a text")
            if value and value.strip():
                return str(value.strip())
        return ""

    def flag(self, path: str) -> bool | None:
        """The truth value at `path`, None where there is none."""
        value = self.get(path)
        if value is not None and not isinstance(value, bool):
            self.fail(path, "true or false")
        return value


def as_number(value: object) -> float:
    """A JSON number as a float; NaN for what is none or no finite one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


@dataclass(frozen=True)
class Documents:
    """The JSON objects of a file. `name`, `sha256` and `rows` as those of a `Table`."""

    name: str
    sha256: str
    documents: tuple[Document, ...]

    @property
    def rows(self) -> int:
        """Objects in the file."""
        return len(self.documents)


Source = Table | Documents


def read_json(path: Path, expected: str) -> Documents:
    """The objects in a file that holds one, a list of them, or one a line.

    Raises
    ------
    InputError
        The file cannot be read, is too large, is not UTF-8, not JSON, or holds anything else.
    """
    file = readable_file(path, MOST_BYTES)
    content, name = file.read_bytes(), called(file.name)
    try:
        objects, unit = _objects(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte 0x{content[error.start]:02x} is not UTF-8: expected {expected}") from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise InputError(f"{name} is not JSON ({reason[:120]}): expected {expected}") from error
    single = len(objects) == 1
    documents = []
    for place, item in objects.items():
        where = name if single else f"{name}, {unit} {place}"
        if not isinstance(item, dict):
            raise InputError(f"{where} is not a JSON object: expected {expected}")
        documents.append(Document(where, item, expected))
    if not documents:
        raise InputError(f"{name} holds no results: expected {expected}")
    return Documents(name, hashlib.sha256(content).hexdigest(), tuple(documents))


def _objects(text: str) -> tuple[dict[int, Any], str]:
    """Values of a JSON text by their number, and what is numbered."""
    try:
        value = _loads(text)
    except json.JSONDecodeError:
        lines = {number: line for number, line in enumerate(text.splitlines(), 1) if line.strip()}
        if len(lines) < 2 or not all(line.lstrip().startswith("{") for line in lines.values()):
            raise
        try:
            return {number: _loads(line) for number, line in lines.items()}, "line"
        except json.JSONDecodeError as error:
            raise ValueError(f"{error}; nor is every line an object") from error
    return dict(enumerate(value, 1)) if isinstance(value, list) else {1: value}, "element"


def _loads(text: str) -> Any:
    """The value of a JSON text, a question mark for each half of a surrogate pair: no other file could hold it."""
    value = json.loads(text)
    if not _SURROGATE.search(text):
        return value
    return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def as_table(source: Documents) -> Table:
    """Flat objects as a table: cells as text, as a CSV file has them; lists and objects as JSON."""
    keys = {key for document in source.documents for key in document.content}
    if len(keys) > MOST_COLUMNS:
        raise InputError(f"{source.name}: found {len(keys)} different keys, expected at most {MOST_COLUMNS}")
    frame = pd.DataFrame(
        [{key: _text(value) for key, value in document.content.items()} for document in source.documents],
        index=np.arange(1, source.rows + 1),
        dtype=object,
    )
    return Table(source.name, frame.fillna("").astype(str), source.sha256)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return value.strip() if isinstance(value, str) else "" if value is None else json.dumps(value)


# Leaving out -------------------------------------------------------------------------------------------


@dataclass
class Sieve:
    """Rows still in, and those left out so far with `reason` and `detail`."""

    frame: pd.DataFrame
    left_out: list[pd.DataFrame] = field(default_factory=list)

    def leave_out(self, odd: pd.Series, reason: str, detail: Any = "") -> None:
        """Take out the rows where `odd`; `detail` is a text or a Series of them. Both may have further rows."""
        odd = odd[self.frame.index].astype(bool)
        out = self.frame[odd]
        details = detail[out.index] if isinstance(detail, pd.Series) else detail
        self.left_out.append(out.assign(reason=reason, detail=details))
        self.frame = self.frame[~odd]

    def translate(self, column: str, found: pd.Series, reason: str) -> None:
        """Put what was found of each row into a column; rows of which nothing was leave."""
        self.leave_out(found.isna(), reason, self.frame[column])
        self.frame = self.frame.assign(**{column: found[self.frame.index]})

    @property
    def excluded(self) -> pd.DataFrame:
        """All rows left out."""
        return pd.concat([self.frame.iloc[:0].assign(reason="", detail=""), *self.left_out])


def finish(source: Source, sieve: Sieve, given: Given, assumptions: Sequence[str], **more: Any) -> Selected:
    """Rows with the columns of the schema, `stack` and `mode` among them, as an importer hands them on.

    Rows that are not modelled and those of another stack or mode leave; equal cells become repeats.
    """
    frame, excluded = sieve.frame, sieve.excluded
    if not frame.empty:
        frame, not_modelled = only_modelled(frame)
        excluded = pd.concat([excluded, not_modelled])
    refuse_empty(source.name, frame, excluded)
    chosen, not_selected = {}, {}
    for column, wanted in (("stack", given.stack), ("mode", given.mode)):
        kept, chosen[column] = choose(Table(source.name, frame[[column]]), frame.index, column, wanted, column)
        if not kept.all():
            not_selected[f"other {column} than {chosen[column]}"] = int((~kept).sum())
        frame = frame[kept]
    frame = frame.assign(repeat=frame.groupby(["model", "gpu", "batch", "context"]).cumcount())
    provenance = {
        **chosen,
        "not_selected": not_selected,
        "extra_columns": [],
        "warnings": [],
        "assumptions": list(dict.fromkeys(assumptions)),
        "given": {k: v.name if isinstance(v, Path) else v for k, v in asdict(given).items() if v is not None},
        **more,
    }
    return Selected(frame, excluded, provenance)


def of_documents(
    source: Documents, given: Given, step: Callable[[Document], tuple[dict[str, Any], Sequence[str]]], **more: Any
) -> Selected:
    """`finish` of the rows that `step` makes of each object; a row with a `reason` is left out."""
    made = [step(document) for document in source.documents]
    rows = pd.DataFrame([{"reason": "", "detail": ""} | row for row, _ in made], index=range(1, source.rows + 1))
    sieve = Sieve(rows.drop(columns=["reason", "detail"]))
    for reason in filter(None, rows["reason"].unique()):
        sieve.leave_out(rows["reason"] == reason, reason, rows["detail"])
    blank = {column: "" for column in ("dtype", "kv_dtype") if column in sieve.frame}
    sieve.frame = sieve.frame.fillna(blank)
    return finish(source, sieve, given, [text for _, texts in made for text in texts], **more)


def answers(prompt: float, output: float, first: float = 1.0, **columns: Any) -> dict[str, Any]:
    """Columns of the mean step that makes tokens first + 1 .. output of every answer to prompts of that length."""
    return {"context": mean_context(prompt, output, first), "peak_context": prompt + output, **columns}


# Names -------------------------------------------------------------------------------------------------


def known(load: Callable[[str], Any], name: str) -> str | None:
    """The catalog name of a model or GPU, None where `load` does not know it or it could mean several."""
    try:
        return str(load(name).name)
    except ValueError:
        return None


def named(where: str, kind: str, load: Callable[[str], Any], given: str | None, said: str) -> str:
    """The catalog name of a model or GPU (`kind`) that the caller gave or the file said.

    Raises
    ------
    InputError
        Neither, an unknown name, or two that contradict each other.
    """
    if given is None and not said:
        raise InputError(f"{where} does not name the {kind}: give --{kind} NAME")
    more = ", or its config.json with --config FILE or --configs DIR" if kind == "model" else ""
    in_file = known(load, said) if said else None
    if given is None:
        if in_file is None:
            raise InputError(f"{where}: the catalog has no {kind} {shown(said)}: give --{kind} NAME{more}")
        return in_file
    try:
        name = str(load(given).name)
    except ValueError as error:
        hint = f"; give{more.removeprefix(', or')}" if more else ""
        raise InputError(f"--{kind}: {error}{hint}") from error
    if in_file is not None and in_file != name:
        raise InputError(f"{where}: --{kind} {given} contradicts the file, which says {shown(said)}")
    return name


def settled(where: str, key: str, option: str, given: float | None, said: float | None) -> float:
    """A number that the caller gave or the file said at `key`; InputError for neither or a contradiction."""
    if given is None and said is None:
        raise InputError(f"{where} does not say {key}: give --{option} N")
    if given is not None and said is not None and given != said:
        raise InputError(f"{where}: --{option} {given:g} contradicts {key} of the file, {said:g}")
    return float(said if given is None else given)  # type: ignore[arg-type]
