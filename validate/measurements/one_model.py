"""Rows of one model in a file of measurements that may name neither model nor GPU, or in its own way."""

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from rooffloor.models.specs.formats import ALL_SIXTEEN_BIT
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes, load
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.measurements import csvfile, importers, schema
from rooffloor.validate.measurements.given_specs import renamed
from rooffloor.validate.measurements.importers.source import Given
from rooffloor.validate.measurements.load import Measurements, load_measurements
from rooffloor.validate.measurements.names import Names


@dataclass(frozen=True)
class OwnRows:
    """What is asked of a file, and how its rows are chosen by it.

    Attributes
    ----------
    shapes : ModelShapes
    gpu : GpuSpec or None
        Of rows without a column gpu; else only rows of this GPU count.
    model : str or None
        What the file calls the model, where it is not the name of `shapes`.
    anchor : str or None
        A model whose rows are wanted too.
    format, stack, mode
        As `load_measurements`.
    among : tuple of GpuSpec
        Without `gpu`: several whose rows count, and only theirs.
    """

    shapes: ModelShapes
    gpu: GpuSpec | None
    model: str | None
    anchor: str | None
    format: str
    stack: str | None
    mode: str | None
    among: tuple[GpuSpec, ...] = ()

    def read(self, measured: str | Path | pd.DataFrame | Measurements) -> tuple[Measurements, ModelShapes]:
        """The rows that can be used, and the shapes under the name that the file has for them."""
        if isinstance(measured, Measurements):
            name = str(measured.provenance.get("file"))
            shapes = renamed(self.shapes, self._own_name(csvfile.Table(name, measured.frame)))
            names = Names({**measured.shapes, shapes.name: shapes}, stored=True)
            frame, others = schema.only_modelled(measured.frame, names)
            gpus = {} if self.gpu is None else {self.gpu.name: self.gpu}
            excluded = pd.concat([measured.excluded, others])
            found = replace(measured, frame=frame, excluded=excluded, gpus={**measured.gpus, **gpus})
            schema.refuse_empty(name, frame, excluded)
        elif self.format == "schema":
            table = schema.table_of(measured)
            table, shapes = self._completed(table)
            found = load_measurements(table, names=self._names(shapes), stack=self.stack, mode=self.mode)
        else:
            shapes = self.shapes if self.model is None else renamed(self.shapes, self.model)
            found = load_measurements(
                measured,
                format=self.format,
                stack=self.stack,
                mode=self.mode,
                names=self._names(shapes),
                given=self._given(shapes),
            )
        frame = found.frame
        keep = frame["model"].isin([shapes.name, *([self.anchor] if self.anchor else [])])
        if self.anchor:
            keep |= frame["model"].str.casefold() == self.anchor.casefold()
        asked = [self.gpu.name] if self.gpu is not None else [spec.name for spec in self.among]
        if asked:
            keep &= frame["gpu"].isin(asked)
        if not (keep & (frame["model"] == shapes.name)).any():
            there = ", ".join(dict.fromkeys(frame["model"] + " on " + frame["gpu"]))
            where = f" on {' or '.join(asked)}" if asked else ""
            raise InputError(f"{found.provenance['file']}: no row of {shapes.name}{where}; the file has {there}")
        excluded = found.excluded
        if "model" in excluded:
            excluded = excluded[excluded["model"].astype(str).map(_short) == _short(shapes.name)]
        return replace(found, frame=frame[keep], excluded=excluded), shapes

    def _given(self, shapes: ModelShapes) -> Given:
        """What another tool's file may leave unsaid."""
        takes = importers.FORMATS[self.format].takes if self.format in importers.FORMATS else ()
        gpu = None if self.gpu is None or "gpu" not in takes else self.gpu.name
        return Given(model=shapes.name if "model" in takes else None, gpu=gpu)

    def _names(self, shapes: ModelShapes) -> Names:
        gpus = self.among if self.gpu is None else (self.gpu,)
        return Names({shapes.name: shapes}, {gpu.name: gpu for gpu in gpus}, stored=True)

    def _completed(self, table: csvfile.Table) -> tuple[csvfile.Table, ModelShapes]:
        """The table with columns model and gpu, without rows of models that are neither the family nor the anchor."""
        frame = table.frame
        if "model" not in frame:
            name = renamed(self.shapes, self.model or self.shapes.name).name
            frame = frame.assign(model=name)
        else:
            name = self._own_name(table)
        if "gpu" not in frame and self.gpu is not None:
            frame = frame.assign(gpu=self.gpu.name)
        if "gpu" not in frame:
            which = "name one GPU" if self.among else "name the GPU"
            raise InputError(f"{table.name}, row {table.header_row}: no column gpu; {which} with --gpu")
        wanted = {name.casefold(), *([self.anchor.casefold()] if self.anchor else [])}
        frame = frame[frame["model"].str.casefold().isin(wanted)]
        if self.anchor and not (frame["model"].str.casefold() == self.anchor.casefold()).any():
            raise InputError(f"{table.name}: no row of the anchor {self.anchor!r}")
        return replace(table, frame=frame), renamed(self.shapes, name)

    def _own_name(self, table: csvfile.Table) -> str:
        """What the file calls the family."""
        table.require(("model",))
        there = [name for name in dict.fromkeys(table.frame["model"]) if name]
        anchor = (self.anchor or "").casefold()
        others = [name for name in there if name.casefold() != anchor]
        asked = self.model or self.shapes.name
        same = [name for name in others if _short(name) == _short(asked)]
        if len(same) == 1:
            return same[0]
        if self.model is None and len(others) == 1 and not _another(others[0], self.shapes):
            return others[0]
        raise InputError(
            f"{table.name}, column model: no row of {asked!r}; the file has {', '.join(there)}: name one with --model"
        )


def _short(name: str) -> str:
    """A model's name without owner: hub ids and config files spell it in several ways."""
    return name.casefold().replace("--", "/").rsplit("/", 1)[-1].strip()


def _another(name: str, shapes: ModelShapes) -> bool:
    """Whether a name stands in the catalog for other shapes."""
    try:
        listed = load(name)
    except ValueError:
        return False
    one, other = (
        replace(given, name="", source="", max_context=1, number_format="", formats=ALL_SIXTEEN_BIT)
        for given in (listed, shapes)
    )
    return one != other


def named_in(found: Measurements, anchor: str) -> str:
    """The anchor as the measurements spell it."""
    names = [name for name in found.frame["model"].unique() if name.casefold() == anchor.casefold()]
    if not names:
        raise InputError(f"{found.provenance['file']}: no usable row of the anchor {anchor!r}")
    return str(names[0])
