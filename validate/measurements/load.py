"""Measured decode steps: the schema, its units, and what of a file can be used.

A measurement is a row (model, GPU, batch, context) with a step time in ms (docs/measurements.md). Every row of a
file ends in one of three places: accepted, excluded with a reason, or not selected (another stack or mode).
A flag marks an accepted row that looks odd; it never excludes. What cannot be understood is an error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rooffloor.models.roof import capacity, roofline
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.measurements import csvfile, importers, sanity, schema
from rooffloor.validate.measurements.importers.source import Given, Sieve, Source
from rooffloor.validate.measurements.names import Names
from rooffloor.validate.measurements.schema import (
    LARGEST_BATCH,
    LONGEST_CONTEXT,
    LONGEST_MS,
    SHORTEST_MS,
    Selected,
    refuse_empty,
)

FORMATS = ("schema", *importers.FORMATS)
KEY = ("model", "gpu", "batch", "context", "block", "imputation", "repeat")
"""What tells two measurements apart."""


@dataclass(frozen=True, eq=False, repr=False)
class Measurements:
    """What one file says of decode steps.

    Attributes
    ----------
    frame : DataFrame
        One row per accepted measurement, repeats included. `model` and `gpu` are catalog names, `batch` and
        `context` (mean tokens in the cache) floats, `step_ms` and `step_sd_ms` (0 where unknown) in ms,
        `repeat` an integer; further columns as the file has them. The index is the row number in the file.
    excluded : DataFrame
        The rows left out, as far as they could be read, with `reason` and `detail`.
    flagged : DataFrame
        Accepted rows that look odd, with `reason` and `neighbour` (what they were compared with); a row may
        stand here twice.
    shapes, gpus : dict
        The specifications behind the names in `frame`.
    label : str
        Where the numbers come from: "measured", "derived", "imputed", "simulated", or several of them.
    provenance : dict
        File name, sha256, format, stack, mode, counts, extra columns, warnings, what an importer assumed.
    """

    frame: pd.DataFrame
    excluded: pd.DataFrame
    flagged: pd.DataFrame
    shapes: Mapping[str, ModelShapes]
    gpus: Mapping[str, GpuSpec]
    label: str
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"Measurements({self.provenance.get('file', '?')}, {self.label}: {len(self.frame)} rows, "
            f"{self.frame['model'].nunique()} models x {self.frame['gpu'].nunique()} GPUs, "
            f"{len(self.excluded)} excluded, {len(self.flagged_grids)} grids flagged)"
        )

    def cells(self) -> Cells:
        """The accepted rows as `Cells`, repeats as cells of their own, in the order of the file."""
        f = self.frame
        return Cells.from_columns(
            list(f["model"]), list(f["gpu"]), f["batch"], f["context"], f["step_ms"], f["step_sd_ms"]
        )

    def averaged(self, model: str) -> tuple[Cells, list[int]]:
        """One cell per (GPU, batch, context) of a model, and how many rows it is the mean of.

        What the roof leaves over is common to repeats of a cell: they say more of measurement noise, not of the roof.
        """
        frame = self.frame[self.frame["model"] == model]
        groups = frame.groupby(["gpu", "batch", "context"], sort=False)
        mean = groups.agg(ms=("step_ms", "mean"), sd=("step_sd_ms", "mean"), n=("step_ms", "size")).reset_index()
        names = [model] * len(mean)
        cells = Cells.from_columns(names, mean["gpu"].tolist(), mean["batch"], mean["context"], mean["ms"], mean["sd"])
        return cells, mean["n"].tolist()

    @property
    def flagged_grids(self) -> tuple[tuple[str, str], ...]:
        """The (model, gpu) pairs with at least one flagged row, sorted."""
        pairs = self.flagged[["model", "gpu"]].drop_duplicates()
        return tuple(sorted(pairs.itertuples(index=False, name=None)))

    def without_flagged(self) -> "Measurements":
        """The same without every (model, GPU) grid that holds a flagged row.

        Raises
        ------
        InputError
            No grid would be left.
        """
        grids = set(self.flagged_grids)
        odd = np.array([pair in grids for pair in zip(self.frame["model"], self.frame["gpu"], strict=True)])
        if odd.all():
            raise InputError(f"{self.provenance.get('file')}: every (model, GPU) grid is flagged")
        left_out = self.frame[odd].assign(reason="grid is flagged", detail="")
        return replace(
            self,
            frame=self.frame[~odd],
            excluded=pd.concat([self.excluded, left_out]).sort_index(),
            flagged=self.flagged.iloc[:0],
        )

    def repeat_spread(self) -> float:
        """Relative standard deviation of one measurement, pooled over the cells that have repeats.

        NaN where no cell has any. The only estimate of noise that holds no model.
        """
        keys = [c for c in KEY if c in self.frame and c != "repeat"]
        logs = np.log(self.frame["step_ms"])
        groups = logs.groupby([self.frame[k] for k in keys], dropna=False)
        freedom = len(logs) - groups.ngroups
        return float(np.sqrt(((logs - groups.transform("mean")) ** 2).sum() / freedom)) if freedom else np.nan

    @property
    def text(self) -> str:
        """Text for a person: what is in, what is out and why, what looks odd."""
        p, f = self.provenance, self.frame
        lines = [
            f"{p.get('file')}: {len(f)} {self.label} decode steps, stack {p.get('stack') or 'unknown'}, "
            f"mode {p.get('mode')}",
            *(f"  {pair}: {n} rows" for pair, n in (f["model"] + " on " + f["gpu"]).value_counts().items()),
        ]
        if not np.isnan(spread := self.repeat_spread()):
            lines.append(f"repeats differ by {100 * spread:.1f} % (relative standard deviation)")
        for title, counts in (
            ("excluded", self.excluded["reason"].value_counts()),
            ("not selected", p.get("not_selected", {})),
            ("flagged", self.flagged["reason"].value_counts()),
        ):
            lines += [f"{title}: {reason}: {n} rows" for reason, n in counts.items()]
        lines += [f"flagged grid: {model} on {gpu}" for model, gpu in self.flagged_grids]
        lines += [f"warning: {text}" for text in p.get("warnings", ())]
        return "\n".join(lines)


def load_measurements(
    data: str | Path | pd.DataFrame | csvfile.Table,
    *,
    format: str = "schema",
    stack: str | None = None,
    mode: str | None = None,
    names: Names | None = None,
    given: Given | None = None,
) -> Measurements:
    """Read measured decode steps and judge which of them can be used.

    Parameters
    ----------
    data : path of a file, or a DataFrame with the columns of a CSV file (rows are then numbered from 1), or a Table
    format : "schema" (docs/measurements.md) or another tool's (`importers.FORMATS`)
    stack, mode : str, optional
        Which serving stack and launch mode to use where a file mixes them; exact, case-insensitive.
    names : Names, optional
        Models and GPUs beyond the catalog.
    given : Given, optional
        What another tool's file does not say: model, GPU, batch, lengths (`importers.source`).

    Returns
    -------
    Measurements

    Raises
    ------
    InputError
        One line that names file, row, column, what was found and what was expected.

    Examples
    --------
    >>> columns = ["model", "gpu", "batch", "context", "step_ms"]
    >>> cells = [("Llama-3.1-8B", "H100", 1, 512, 7.9), ("Llama-3.1-8B", "H100", 16, 512, 8.8)]
    >>> load_measurements(pd.DataFrame(cells, columns=columns))
    Measurements(data frame, measured: 2 rows, 1 models x 1 GPUs, 0 excluded, 0 grids flagged)
    """
    if format not in FORMATS:
        raise InputError(f"format {format!r} is unknown: expected one of {', '.join(FORMATS)}")
    names = names or Names()
    if format == "schema":
        table = schema.table_of(data)
        return _judge(schema.select(table, names, stack, mode), table, names, format)
    kind = importers.FORMATS[format]
    if isinstance(data, csvfile.Table) or (isinstance(data, pd.DataFrame) and not kind.tabular):
        raise InputError(f"format {format!r} reads a file, not a data frame: {kind.what}")
    given = replace(given or Given(), stack=stack, mode=mode)
    if odd := [name for name, value in vars(given).items() if value is not None and name not in kind.takes]:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in odd)
        raise InputError(f"{options}: not with format {format}, which takes {', '.join(kind.takes)}".replace("_", "-"))
    reader = importers.reader(format)
    source = csvfile.Table.of_frame(data) if isinstance(data, pd.DataFrame) else reader.read(Path(data))
    selected = reader.select(source, names, given)
    frame, others = schema.only_modelled(selected.frame, names, config_first=given.dtype is None)
    selected = replace(selected, frame=frame, excluded=pd.concat([selected.excluded, others]))
    refuse_empty(source.name, frame, selected.excluded)
    return _judge(selected, source, names, format)


def _judge(selected: Selected, source: Source, names: Names, format: str) -> Measurements:
    """Exclude what physics forbids, refuse wrong units and ambiguous keys, flag what looks odd."""
    frame = selected.frame
    floor_ms = sanity.per_pair(frame, names, roofline.bytes_floor_ms, "context")
    fits = sanity.per_pair(frame, names, capacity.fits, "peak_context").astype(bool)

    below = frame["step_ms"] < floor_ms
    usual = frame["step_ms"].between(SHORTEST_MS, LONGEST_MS)
    beyond = (frame["batch"] > LARGEST_BATCH) | (frame["context"] > LONGEST_CONTEXT)
    if "step_sd_ms" in frame:
        beyond |= frame["step_sd_ms"] > LONGEST_MS
    if isinstance(source, csvfile.Table) and format == "schema":
        sanity.refuse_other_units(frame, floor_ms, source)
    sieve = Sieve(frame)
    less = frame["step_ms"].map("{:.3g} ms < ".format) + floor_ms.map("{:.3g} ms".format)
    sieve.leave_out(below, "step below the physical minimum", less)
    sieve.leave_out(~fits, "does not fit the GPU's memory")
    sieve.leave_out(~usual, f"step outside {SHORTEST_MS:g} to {LONGEST_MS:g} ms")
    sieve.leave_out(beyond, "batch, context or step_sd_ms beyond what the schema allows")
    frame, excluded = sieve.frame, pd.concat([selected.excluded, *sieve.left_out])
    refuse_empty(source.name, frame, excluded)
    _refuse_double_keys(frame, source)

    frame = frame.assign(
        repeat=frame["repeat"].fillna(0).astype(int) if "repeat" in frame else 0,
        step_sd_ms=frame["step_sd_ms"].fillna(0.0) if "step_sd_ms" in frame else 0.0,
    ).drop(columns="peak_context")
    first = ["model", "gpu", "batch", "context", "step_ms", "step_sd_ms", "repeat"]
    frame = frame[[*first, *(c for c in frame.columns if c not in first)]]
    provenance = {
        "file": source.name,
        "sha256": source.sha256,
        "format": format,
        **selected.provenance,
        "rows": source.rows,
        "accepted": len(frame),
    }
    return Measurements(
        frame=frame,
        excluded=excluded.drop(columns="peak_context", errors="ignore").sort_index(),
        flagged=sanity.flags(frame),
        shapes={name: names.shapes(name) for name in frame["model"].unique()},
        gpus={name: names.gpu(name) for name in frame["gpu"].unique()},
        label=_label(frame),
        provenance=provenance,
    )


def _label(frame: pd.DataFrame) -> str:
    if "origin" not in frame:
        return "measured"
    found = set(frame["origin"].replace("", "measured"))
    return ", ".join(word for word in schema.WORDS["origin"] if word in found)


def _refuse_double_keys(frame: pd.DataFrame, source: Source) -> None:
    keys = [c for c in KEY if c in frame]
    double = frame.duplicated(keys)
    if not double.any():
        return
    row = frame.index[double][0]
    cell = frame.loc[row]
    same = ((frame[keys] == cell[keys]) | (frame[keys].isna() & cell[keys].isna())).all(axis=1)
    expected = "a different repeat for each" if "repeat" in frame else "a column repeat that tells them apart"
    raise InputError(
        f"{source.name}, row {row}, column repeat: "
        f"{cell['model']} on {cell['gpu']} at batch {cell['batch']:g}, "
        f"context {cell['context']:g} stands at row {frame.index[same][0]} already, expected {expected}"
    )
