"""The published study's figures as data: one number a row, each with the interval that rounds to it."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.common.resources import path as resource

type Interval = tuple[float, float]

SMALL, ANCHOR, SIBLING, MOE = "Llama-3.2-1B", "Llama-3.1-8B", "Qwen2.5-7B", "Qwen1.5-MoE-A2.7B"
A100, H100, H200 = "A100-40GB", "H100", "H200"
DENSE = (ANCHOR, SIBLING, SMALL)
SKUS = (H100, H200, A100)
BATCHES, CONTEXTS = (1, 2, 4, 8, 16), (512, 2048, 8192)
"""Axes of a (model, SKU) grid: the study says five by three and names one cell, (16, 8192); the rest is assumed."""
CELLS = len(BATCHES) * len(CONTEXTS)
PER_GPU = FloorStructure("gpu", "added")
"""What the study's transfer claim assumes: added, signed, one floor per SKU for all models."""
COLUMNS = ("kind", "model", "gpu", "batch", "context", "quantity", "value", "unit", "rounding", "where")
UNITS = ("percent", "ms")


@dataclass(frozen=True)
class Figure:
    """One published number: value +- rounding, in `unit` (percent or ms); `where` the study prints it."""

    kind: str
    model: str
    gpu: str
    batch: float | None
    context: float | None
    quantity: str
    value: float
    unit: str
    rounding: float
    where: str

    @property
    def interval(self) -> Interval:
        """All values that round to the printed one."""
        return self.value - self.rounding, self.value + self.rounding

    @property
    def printed(self) -> str:
        """The number with the decimals that the study prints, those of its rounding."""
        shown = f"{self.value:g}".partition(".")[2]
        places = max(0, round(-np.log10(2.0 * self.rounding))) if self.rounding > 0 else 0
        return f"{self.value:.{max(len(shown), places)}f}"

    @property
    def label(self) -> str:
        """The figure and where it belongs, for people."""
        return f"{self.model}/{self.gpu} {self.quantity} {self.value:g} {self.unit}"


@dataclass(frozen=True)
class PublishedFigures:
    """The figures that the study prints, one `Figure` a row.

    Rounding is a uniform interval around the printed value, never a normal error.
    """

    rows: tuple[Figure, ...]

    @classmethod
    def load(cls, file: str | Path | None = None) -> "PublishedFigures":
        """Read the figures.

        Parameters
        ----------
        file : path, optional
            CSV with the columns of `COLUMNS`; by default the embedded study.

        Raises
        ------
        InputError
            The file is missing or empty, lacks a column, or a row holds no number, an unknown unit, a
            negative rounding or a figure that an earlier row holds: one line with file, row and column.
        """
        file = resource("transfer-study") / "published_figures.csv" if file is None else Path(file)
        try:
            with file.open(encoding="utf-8-sig", newline="") as lines:
                reader = csv.DictReader(lines)
                missing = [c for c in COLUMNS if c not in (reader.fieldnames or ())]
                if missing:
                    raise InputError(f"{file}: column {missing[0]!r} is missing, expected {', '.join(COLUMNS)}")
                rows = tuple(_figure(row, f"{file}, row {number}") for number, row in enumerate(reader, 2))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{file}: cannot be read as a CSV file ({error})") from None
        if not rows:
            raise InputError(f"{file}: holds no figures")
        seen: dict[tuple[Any, ...], int] = {}
        for number, row in enumerate(rows, 2):
            first = seen.setdefault((row.model, row.gpu, row.batch, row.context, row.quantity), number)
            if first != number:
                raise InputError(f"{file}, row {number}: {row.label} repeats row {first}, expected one row a figure")
        return cls(rows)

    def __iter__(self) -> Iterator[Figure]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"PublishedFigures({len(self.rows)} figures)"

    def get(self, model: str, gpu: str, quantity: str) -> Figure:
        """The figure; InputError where the study prints none."""
        for row in self.rows:
            if (row.model, row.gpu, row.quantity) == (model, gpu, quantity):
                return row
        printed = sorted({r.quantity for r in self.rows if (r.model, r.gpu) == (model, gpu)})
        raise InputError(f"the study prints no {quantity!r} for {model}/{gpu}, only: {', '.join(printed) or 'nothing'}")

    def has(self, model: str, gpu: str, quantity: str) -> bool:
        """Whether the study prints it."""
        return any((r.model, r.gpu, r.quantity) == (model, gpu, quantity) for r in self.rows)

    def value(self, model: str, gpu: str, quantity: str) -> float:
        """The number as printed."""
        return self.get(model, gpu, quantity).value

    def interval(self, model: str, gpu: str, quantity: str) -> Interval:
        """(low, high) = value -+ rounding, in the figure's unit."""
        return self.get(model, gpu, quantity).interval

    def mape(self, model: str, gpu: str, quantity: str) -> Interval:
        """A MAPE's interval as a fraction."""
        low, high = self.interval(model, gpu, quantity)
        return low / 100, high / 100


def _figure(row: Mapping[str, str | None], where: str) -> Figure:
    def number(column: str) -> float:
        text = (row[column] or "").strip()
        try:
            value = float(text)
        except ValueError:
            value = np.nan
        if not np.isfinite(value):
            raise InputError(f"{where}, column {column}: expected a number, got {text!r}")
        return value

    text = {c: (row[c] or "").strip() for c in ("kind", "model", "gpu", "quantity", "unit", "where")}
    for column in ("model", "gpu", "quantity"):
        if not text[column]:
            raise InputError(f"{where}, column {column}: expected a name, got nothing")
    if text["unit"] not in UNITS:
        raise InputError(f"{where}, column unit: expected {' or '.join(UNITS)}, got {text['unit']!r}")
    value, rounding = number("value"), number("rounding")
    if rounding < 0:
        raise InputError(f"{where}, column rounding: expected 0 or more, got {rounding:g}")
    if text["unit"] == "percent" and value < 0:
        raise InputError(f"{where}, column value: expected a mean absolute error of 0 or more, got {value:g}")
    axes = {column: number(column) if (row[column] or "").strip() else None for column in ("batch", "context")}
    values: dict[str, Any] = text | axes | {"value": value, "rounding": rounding}
    return Figure(**values)
