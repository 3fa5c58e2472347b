"""The schema of measurement files: columns, what they may hold, and the names in them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pandera.pandas as pa
from numpy.typing import NDArray

from rooffloor.models.specs import formats
from rooffloor.models.specs.formats import SIXTEEN_BIT
from rooffloor.models.specs.inputs import shown
from rooffloor.validate.common.errors import InputError, listed
from rooffloor.validate.measurements import csvfile
from rooffloor.validate.measurements.csvfile import Table
from rooffloor.validate.measurements.names import Names

_FILE = Path(__file__).with_name("measurements.schema.json")
FIELDS: dict[str, dict[str, Any]] = {field["name"]: field for field in json.loads(_FILE.read_text("utf-8"))["fields"]}
"""The columns by name, as the published Table Schema has them; `expected` says of a number what an error should."""
LIMITS: dict[str, dict[str, Any]] = {name: field.get("constraints", {}) for name, field in FIELDS.items()}
KNOWN = tuple(FIELDS)
REQUIRED = tuple(name for name in KNOWN if LIMITS[name].get("required"))
WORDS = {name: tuple(LIMITS[name]["enum"]) for name in KNOWN if "enum" in LIMITS[name]}
UNSAID = ("", "auto")
"""What a column of number formats holds where it leaves the format to the model."""

SHORTEST_MS, LONGEST_MS = LIMITS["step_ms"]["minimum"], LIMITS["step_ms"]["maximum"]
"""No decode step of a language model on one GPU lies outside; what does has another unit."""
LARGEST_BATCH, LONGEST_CONTEXT = LIMITS["batch"]["maximum"], LIMITS["context"]["maximum"]


def number_column(
    expected: str, low: float, high: float = np.inf, whole: bool = False, required: bool = False
) -> pa.Column:
    """Column of finite numbers in [low, high]; `expected` is what an error says, `metadata` holds the limits."""
    if np.isfinite(high) and f"{high:g}" not in expected:
        expected += f", at most {high:g}"
    checks = [pa.Check(lambda s: np.isfinite(s) & (s >= low) & (s <= high))]
    if whole:
        checks.append(pa.Check(lambda s: s == np.floor(s)))
    limits = {"minimum": low, "maximum": high, "whole": whole}
    return pa.Column(float, checks, nullable=not required, required=required, description=expected, metadata=limits)


SCHEMA = pa.DataFrameSchema(
    {
        name: number_column(
            field["expected"],
            LIMITS[name]["minimum"],
            LIMITS[name]["maximum"],
            whole=field["type"] == "integer",
            required=name in REQUIRED,
        )
        for name, field in FIELDS.items()
        if "expected" in field
    }
)
"""The numeric columns; `description` says what is expected. Names and words have lists of their own."""
OTHERS = {
    **dict.fromkeys(("step_s", "latency_s", "tpot_s", "itl_s"), "step_ms is 1000 times {}, if that is one decode step"),
    **dict.fromkeys(("step_us", "tpot_us", "itl_us"), "step_ms is {} / 1000, if that is one decode step"),
    **dict.fromkeys(
        ("tokens_per_s", "tokens_per_second", "throughput", "tok_s", "tps"),
        "step_ms is 1000 * batch / {}, if that counts the tokens of the whole batch while it decodes",
    ),
    **dict.fromkeys(
        ("step", "latency", "latency_ms", "tpot", "tpot_ms", "itl", "itl_ms", "time", "time_ms"),
        "name {} step_ms if it is the time of one decode step in milliseconds",
    ),
}
"""What a column that is not of the schema may have to do with step_ms."""


@dataclass(frozen=True, eq=False)
class Selected:
    """Rows in the units and names of the schema, before they are judged against physics.

    `frame` has catalog names and numbers, indexed by row number, and `peak_context`, the tokens a sequence
    holds at most while it is measured; `excluded` has `reason` and `detail`.
    """

    frame: pd.DataFrame
    excluded: pd.DataFrame
    provenance: dict[str, Any]


def table_of(given: "str | Path | pd.DataFrame | Table") -> Table:
    """A file, frame or table in the schema; the columns of the schema may be spelled in upper case.

    Raises
    ------
    InputError
        The file cannot be read, or two columns have one name of the schema.
    """
    if isinstance(given, Table):
        table = given
    else:
        table = Table.of_frame(given) if isinstance(given, pd.DataFrame) else csvfile.read(given)
    spelled: dict[str, str] = {}
    for column in map(str, table.frame.columns):
        name = column.strip().casefold()
        name = name if name in KNOWN else column
        if name in spelled:
            both = f"{shown(spelled[name])} and {shown(column)}"
            raise InputError(f"{table.name}, row {table.header_row}: {both} are both the column {shown(name)}")
        spelled[name] = column
    if all(name == column for name, column in spelled.items()):
        return table
    return replace(table, frame=table.frame.set_axis(list(spelled), axis=1), header=tuple(spelled))


def _hint(table: Table) -> str:
    """How step_ms may follow from what the table has instead, empty where nothing is known."""
    found = ((column, OTHERS.get(str(column).strip().casefold())) for column in table.frame.columns)
    return next((how.format(shown(column).strip("'")) for column, how in found if how), "")


def numbers(table: Table, rows: pd.Index, columns: Mapping[str, pa.Column]) -> pd.DataFrame:
    """The columns of the table that `columns` describes, as checked floats, NaN where empty.

    Raises
    ------
    InputError
        At the first row of the file with a cell that is not what its column expects.
    """
    present = {name: column for name, column in columns.items() if name in table.frame.columns}
    frame = pd.DataFrame({name: table.number(name)[rows] for name in present})
    for name, column in present.items():
        text = frame.index[frame[name].isna() & (table.frame.loc[rows, name] != "")]
        if len(text):
            table.fail(text[0], name, column.description)
    try:
        return pa.DataFrameSchema(present).validate(frame, lazy=True)
    except pa.errors.SchemaErrors as error:
        first = error.failure_cases.dropna(subset="index").sort_values("index", kind="stable").iloc[0]
        table.fail(int(first["index"]), first["column"], present[first["column"]].description)


def choose(table: Table, rows: pd.Index, column: str, wanted: str | None, option: str) -> tuple[NDArray[np.bool_], str]:
    """Which of `rows` have the wanted value of `column`, and that value as the file spells it.

    `option` is what the command line calls the choice.

    Raises
    ------
    InputError
        None is wanted though the rows mix several, or what is wanted is not in the file.
    """
    if column not in table.frame.columns:
        if wanted:
            raise InputError(f"{table.name} has no column {column!r} to choose {option} {wanted!r} by")
        return np.ones(len(rows), dtype=bool), "unknown"
    values = table.frame.loc[rows, column].replace("", "unknown")
    folded = values.str.casefold()
    first = folded.drop_duplicates()
    spelled = dict(zip(first, values[first.index], strict=True))
    there = listed(sorted(spelled.values()))
    if wanted is None and len(spelled) > 1:
        row = first.index[1]
        raise InputError(
            f"{table.name}, row {row}, column {column}: the file mixes {there}; choose one with --{option}"
        )
    fold = next(iter(spelled)) if wanted is None else wanted.casefold()
    if fold not in spelled:
        raise InputError(f"{table.name}: {option} {shown(wanted)} is not in the file; expected one of {there}")
    return (folded == fold).to_numpy(), spelled[fold]


def select(table: Table, names: Names, stack: str | None, mode: str | None) -> Selected:
    """Read a table in the schema."""
    table.require(REQUIRED, _hint(table) if "step_ms" not in table.frame.columns else "")
    text = table.frame
    given = text["excluded"] != "" if "excluded" in text else pd.Series(False, index=text.index)
    by_author = _readable(table, given, "excluded in the file")
    rows = text.index[~given]

    kept = np.ones(len(rows), dtype=bool)
    chosen: dict[str, str] = {}
    not_selected: dict[str, int] = {}
    for column, wanted in (("stack", stack), ("mode", mode)):
        mask, chosen[column] = choose(table, rows, column, wanted, column)
        if not mask.all():
            not_selected[f"other {column} than {chosen[column]}"] = int((kept & ~mask).sum())
        kept &= mask
    rows = rows[kept]

    frame = numbers(table, rows, SCHEMA.columns)
    for column in ("model", "gpu"):
        frame[column] = _canonical(table, rows, column, names)
    for column, words in WORDS.items():
        if column in text:
            frame[column] = _words(table, rows, column, words)
    others = [c for c in text.columns if c not in frame and c != "excluded"]
    frame = frame.join(text.loc[rows, others])
    frame["peak_context"] = frame["context"]

    frame, not_modelled = only_modelled(frame, names)
    provenance = {
        **chosen,
        "not_selected": not_selected,
        "extra_columns": [c for c in text.columns if c not in KNOWN],
        "warnings": [],
    }
    return Selected(frame, pd.concat([by_author, not_modelled]), provenance)


def refuse_empty(name: str, frame: pd.DataFrame, excluded: pd.DataFrame) -> None:
    """InputError that says why each row is excluded where none is left."""
    if frame.empty:
        counts = "; ".join(f"{n} rows: {reason}" for reason, n in excluded["reason"].value_counts().items())
        raise InputError(f"{name}: no row can be used ({counts})")


def only_modelled(
    frame: pd.DataFrame, names: Names | None = None, *, config_first: bool = False
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows in the number formats that are wanted, on one GPU, as far as it is said, and the others with reasons.

    Parameters
    ----------
    frame : DataFrame
    names : Names, optional
        With the formats of the models, which rows have that do not say theirs; which are wanted says `names.stored`.
    config_first : bool
        A row that says 16-bit has the format of its model too: tools call so what they multiply in, whatever is
        stored.
    """
    excluded = [frame.iloc[:0].assign(reason="", detail="")]
    for column in ("dtype", "kv_dtype"):
        own = pd.Series(SIXTEEN_BIT.name, index=frame.index)
        if names is not None:
            own = frame["model"].map({name: _stored(names, name, column) for name in frame["model"].unique()})
        told = frame[column].astype(str) if column in frame else pd.Series("", index=frame.index)
        found = told.map({text: _family(text) for text in told.unique()})
        silent = told.str.casefold().isin(UNSAID) | (config_first & (found == SIXTEEN_BIT.name))
        wanted = own if names is not None and names.stored else pd.Series(SIXTEEN_BIT.name, index=frame.index)
        odd = found.where(~silent, own) != wanted
        detail = told.where(~silent, own + " by the model's config")
        excluded.append(frame[odd].assign(reason=f"{column} is not " + wanted[odd], detail=detail[odd]))
        frame = frame[~odd]
    if "tensor_parallel" in frame:
        odd = frame["tensor_parallel"] > 1
        excluded.append(frame[odd].assign(reason="more than one GPU", detail=frame["tensor_parallel"][odd]))
        frame = frame[~odd]
    return frame, pd.concat(excluded)


def _stored(names: Names, model: str, column: str) -> str:
    """The format of a model's weights or cache."""
    stored = names.shapes(model).formats
    return (stored.narrowest if column == "dtype" else stored.cache).family


def _family(text: str) -> str:
    """The format of this name, or the name itself where no format is known by it."""
    try:
        return formats.named(text).family
    except ValueError:
        return text


def _readable(table: Table, mask: pd.Series, reason: str) -> pd.DataFrame:
    """Rows that are excluded unchecked: numbers where there are any, the rest as the file has it."""
    frame = table.frame[mask].copy()
    for column in SCHEMA.columns:
        if column in frame:
            frame[column] = pd.to_numeric(frame[column], errors="coerce")
    return frame.assign(reason=reason, detail=frame.get("excluded", ""))


def _canonical(table: Table, rows: pd.Index, column: str, names: Names) -> pd.Series:
    """The catalog names of a column of names; InputError at the first row with one that is not known."""
    text = table.frame.loc[rows, column]
    load_name = names.shapes if column == "model" else names.gpu
    found: dict[str, str] = {}
    for row, name in text.drop_duplicates().items():
        try:
            found[name] = load_name(name).name
        except ValueError as error:
            raise InputError(f"{table.name}, row {row}, column {column}: {error}") from error
    return text.map(found)


def _words(table: Table, rows: pd.Index, column: str, words: tuple[str, ...]) -> pd.Series:
    """A column of words in lower case; empty cells stay empty."""
    text = table.frame.loc[rows, column].str.casefold()
    odd = ~text.isin([*words, ""])
    if odd.any():
        table.fail(text.index[odd][0], column, " or ".join(words))
    return text
