"""A study (study.toml): which data are judged, against which anchor, by which margins."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooffloor import __version__
from rooffloor.models.floor.structures import PER_MODEL, PER_SEQUENCE, FloorStructure
from rooffloor.models.roof.kernels import Experts
from rooffloor.models.specs import classes
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.hf.config import read_config
from rooffloor.models.specs.inputs import called, read_toml
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.common import resources
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.common.files import json_dumps, readable_file
from rooffloor.validate.measurements.given_specs import configured
from rooffloor.validate.measurements.importers import STUDY_FORMATS
from rooffloor.validate.measurements.names import Names
from rooffloor.validate.study.margins import FIXED, Margins, one_of

if TYPE_CHECKING:
    import pandas as pd

    from rooffloor.validate.measurements.load import Measurements

FORMATS = (*STUDY_FORMATS, "published")
PRESETS = ("study", "query heads", "per gpu")
TREATMENTS = ("study", "cut", "joint")
PRIORS = ("kernels", "wide")
EXPERTS = ("active", "distinct", "balanced")
DEFAULT_ANCHOR = "Llama-3.1-8B"
FRAME = "data frame"
"""How a DataFrame is called in place of a file."""
NOT_FITTED = {
    "latency": "a latency per kernel cannot be told from a floor per (GPU, model), since a model's launches never vary",
    "die": "which GPUs have one die is the catalog's to say",
    "aliases": "a GPU of a study has one name",
    "name": "a GPU of a study is called as its table",
    "grid": "cells are those of the data, and of a published study those of its imputed grids, whose axes are unknown",
}
"""What a study could once ask for, and why it cannot be had."""
SHARED_BY, COMBINE = ("gpu, model", "gpu, class"), ("added", "added, H >= 0")
"""Floors that the hypotheses can be tested under."""


@dataclass(frozen=True)
class Data:
    """What is judged: a file, its format, and which stack and mode of it; or data at hand, whose `path` is a name.

    Attributes
    ----------
    path : Path
    format : str
        "schema", "argonne", "llama-bench", "optimum-benchmark" or "published".
    stack, mode : str or None
        Which serving stack and launch mode where a file mixes them.
    content : Measurements or DataFrame, optional
        Data that are no file.
    """

    path: Path
    format: str = "schema"
    stack: str | None = None
    mode: str | None = None
    content: "Measurements | pd.DataFrame | None" = field(default=None, compare=False, repr=False)
    digest: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        if self.content is None:
            one_of("format", self.format, FORMATS)
        else:  # of the rows at hand, and of the specifications that they bring
            frame: Any = getattr(self.content, "frame", self.content)
            specs = json_dumps([getattr(self.content, name, {}) for name in ("shapes", "gpus")])
            object.__setattr__(self, "digest", hashlib.sha256((frame.to_csv() + specs).encode()).hexdigest())
        for name in ("stack", "mode"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise ValueError(f"{name} must be a name, got {value!r}")

    @classmethod
    def of(cls, given: "Data | Measurements | pd.DataFrame | str | Path") -> "Data":
        """Data as `Study` takes them; InputError where a file cannot be read."""
        if isinstance(given, Data):
            return given
        if isinstance(given, str | Path):
            return cls(readable_file(given))
        said = getattr(given, "provenance", {})
        stack, mode = (None if said.get(kind) == "unknown" else said.get(kind) for kind in ("stack", "mode"))
        return cls(Path(said.get("file", FRAME)), said.get("format", "schema"), stack, mode, given)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the data."""
        if self.content is not None:
            return ()
        if self.format != "argonne":
            return (self.path,)
        from rooffloor.validate.measurements.importers import argonne

        return tuple(filter(None, (self.path, argonne.ttft_file(self.path.parent))))

    @property
    def sha256(self) -> list[str]:
        """Of each file, or of the data at hand."""
        return [_sha256(file) for file in self.files] if self.content is None else [self.digest]


@dataclass(frozen=True)
class Roof:
    """The roof's structure, which cells its constants come from, and which experts are streamed.

    Attributes
    ----------
    preset : "study", "query heads" or "per gpu"
        Three constants for all GPUs; attention also bound by the bytes of its query heads; constants for each GPU.
    treatment : "study", "cut" or "joint"
        Constants from the anchor's cells alone (cut) or from all cells. Published: the study's own; measured: cut.
    experts : "active", "distinct" or "balanced"
    priors : "kernels" or "wide"
        Of the constants and of host time, for measured cells: from measured kernels and hosts (docs/kernels.md), or the
        same for all GPUs.
    """

    preset: str = "study"
    treatment: str = "study"
    experts: Experts = "active"
    priors: str = "kernels"

    def __post_init__(self) -> None:
        if self.preset == "latency":
            raise ValueError(f"preset 'latency' is not fitted: {NOT_FITTED['latency']}")
        one_of("preset", self.preset, PRESETS)
        one_of("treatment", self.treatment, TREATMENTS)
        one_of("experts", self.experts, EXPERTS)
        one_of("priors", self.priors, PRIORS)


@dataclass(frozen=True, init=False)
class Study:
    """Data, and what they are judged by.

    Parameters
    ----------
    data : Measurements, DataFrame in the columns of a CSV file, path of one, or Data (its format and choices)
    anchor : str
        Catalog name of the model on which constants are calibrated.
    margins : Margins
    name : str, optional
        Also the name of its folder of reports; default: the file's, or "data".
    classes : mapping, optional
        Class of a model where it is not the default one, by catalog name.
    efficiency : Roof
        What is fitted.
    floor : FloorStructure, optional
        What is fitted; default: `PER_SEQUENCE`, of a published study `PER_MODEL`.
    models, gpus : mapping, optional
        Specifications that the catalog lacks, by name.
    seed : int

    Raises
    ------
    ValueError
        A name is unknown, a value makes no sense, or (InputError) a file cannot be read.

    Examples
    --------
    >>> study = Study.load("transfer-study")
    >>> study.anchor, study.margins.label
    ('Llama-3.1-8B', 'post hoc')
    """

    name: str
    data: Data
    anchor: str
    classes: Mapping[str, str]
    margins: Margins
    efficiency: Roof
    floor: FloorStructure
    models: Mapping[str, ModelShapes]
    gpus: Mapping[str, GpuSpec]
    seed: int

    def __init__(
        self,
        data: "Data | Measurements | pd.DataFrame | str | Path",
        *,
        anchor: str = DEFAULT_ANCHOR,
        margins: Margins = Margins(),  # noqa: B008
        name: str | None = None,
        classes: Mapping[str, str] | None = None,
        efficiency: Roof = Roof(),
        floor: FloorStructure | None = None,
        models: Mapping[str, ModelShapes] | None = None,
        gpus: Mapping[str, GpuSpec] | None = None,
        seed: int = 1,
    ):
        data = Data.of(data)
        floor = floor or (PER_MODEL if data.format == "published" else PER_SEQUENCE)
        given = {"data": data, "margins": margins, "efficiency": efficiency, "floor": floor, "seed": seed}
        given |= {"name": _name_of(data) if name is None else name, "models": models or {}, "gpus": gpus or {}}
        for key, value in given.items():
            object.__setattr__(self, key, value)
        if not isinstance(self.name, str) or not re.fullmatch(r"\w[\w .+-]*", self.name):
            raise ValueError(f"name must be letters, digits, space, '.', '+', '-' or '_', got {self.name!r}")
        if type(seed) is not int or seed < 0:
            raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")
        object.__setattr__(self, "anchor", self.names.shapes(anchor).name)
        for model, label in (classes or {}).items():
            if not isinstance(label, str) or not label.strip():
                raise ValueError(f"class of {model!r} must be a name, got {label!r}")
        own = {self.names.shapes(model).name: label for model, label in (classes or {}).items()}
        object.__setattr__(self, "classes", own)
        self._refuse_what_is_not_fitted()

    @classmethod
    def load(cls, study: str | Path) -> "Study":
        """Read a study.

        Parameters
        ----------
        study : name of an embedded study ("transfer-study"), a study.toml, or a folder that holds one

        Raises
        ------
        InputError
            There is none, or a key is unknown or has a value that makes no sense: one line with file and key.
        """
        file = _find(study)
        try:
            table = read_toml(file)
        except ValueError as error:
            raise InputError(str(error)) from error
        try:
            return _from_table(cls, table, file.parent)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"{file}: {' '.join(str(error).split())}") from error

    @classmethod
    def from_data(
        cls,
        path: str | Path,
        format: str = "schema",
        stack: str | None = None,
        mode: str | None = None,
        anchor: str | None = None,
        configs: str | Path | None = None,
        priors: str = "kernels",
    ) -> "Study":
        """A study of one file with default margins, which were not fixed beforehand and say so.

        Parameters
        ----------
        configs : path of a folder, optional
            Hugging Face config.json files of models that the catalog lacks; see `config_files`.

        Raises
        ------
        InputError
            The file or a config cannot be read, or the format or anchor is unknown.
        """
        file = readable_file(path)
        try:
            models = {} if configs is None else configured(Path(configs))
            data, roof = Data(file, format, stack, mode), Roof(priors=priors)
            return cls(data, anchor=anchor or DEFAULT_ANCHOR, models=models, efficiency=roof)
        except ValueError as error:
            raise InputError(str(error)) from error

    def _refuse_what_is_not_fitted(self) -> None:
        """ValueError for a setting that the fit of these data has no place for."""
        floor, roof = self.floor, self.efficiency
        if self.data.format == "published":
            made = "the imputed grids of a published study were made with"
            refused = [
                (floor != PER_MODEL, f"[floor] {floor}", f"{made} a {PER_MODEL}"),
                (roof.preset != "study", f"[efficiency] preset {roof.preset!r}", f"{made} constants of their own"),
                (
                    roof.treatment != "study",
                    f"[efficiency] treatment {roof.treatment!r}",
                    f"{made} the study's constants",
                ),
                (roof.priors != "kernels", f"[efficiency] priors {roof.priors!r}", f"{made} constants of their own"),
                (bool(self.gpus), "[gpus]", f"{made} the catalog's"),
                (bool(self.models), "[models]", f"{made} the catalog's"),
            ]
        else:
            alone = "it leaves no floor of a model to compare with the anchor's"
            added = "the hypotheses are about floors that are added to T_gpu"
            refused = [
                (floor.shared_by not in SHARED_BY, f"[floor] shared_by {floor.shared_by!r}", alone),
                (floor.combine not in COMBINE or bool(floor.combine_of), f"[floor] {floor}", added),
            ]
        for _, what, why in (entry for entry in refused if entry[0]):
            raise ValueError(f"{what} is not fitted: {why}")

    @property
    def names(self) -> Names:
        """What resolves names of models and GPUs in this study."""
        brought = self.data.content
        models, gpus = (dict(getattr(brought, kind, {})) for kind in ("shapes", "gpus"))
        return Names(models | dict(self.models), gpus | dict(self.gpus))

    def class_of(self, model: str) -> str:
        """The class of a model, which shares floors: the study's, or the default one."""
        shapes = self.names.shapes(model)
        return self.classes.get(shapes.name) or classes.default_class(shapes)

    def measurements(self) -> "Measurements":
        """The study's measurements, read once; InputError where they cannot be used (see `load_measurements`)."""
        return self._measurements

    @cached_property
    def _measurements(self) -> "Measurements":
        from rooffloor.validate.measurements.load import Measurements, load_measurements

        d = self.data
        if isinstance(d.content, Measurements):
            return d.content
        given = d.path if d.content is None else d.content
        return load_measurements(given, format=d.format, stack=d.stack, mode=d.mode, names=self.names)

    @property
    def hash(self) -> str:
        """sha256 over what the study says, its data, the catalogs, and the code's version.

        Where the files lie does not count.
        """
        content = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("data", "floor")}
        d = self.data
        content["data"] = {"path": None, "format": d.format, "stack": d.stack, "mode": d.mode}
        content["floor"] = [self.floor.shared_by, self.floor.combine, *self.floor.combine_of, *self.floor.terms]
        catalog = Path(classes.__file__).parent / "catalog"
        content["files"] = [*d.sha256, *(_sha256(file) for file in sorted(catalog.glob("*.toml")))]
        content["version"] = __version__
        return hashlib.sha256(json_dumps(content).encode()).hexdigest()


def _name_of(data: Data) -> str:
    """The name of a study of these data."""
    parts = filter(None, (data.path.stem, data.stack, data.mode)) if data.content is None else (data.path.stem,)
    if data.path.name == FRAME:
        return "data"
    return re.sub(r"[^\w.+-]+", "-", "-".join(parts)).strip("-.+") or "data"


def _sha256(file: Path) -> str:
    return hashlib.sha256(readable_file(file).read_bytes()).hexdigest()


def _find(study: str | Path) -> Path:
    """The study.toml of a name, file or folder."""
    folder = resources.embedded(study)
    if folder is not None and (folder / "study.toml").is_file():
        return folder / "study.toml"
    path = Path(study)
    if not os.path.exists(path):  # unlike Path.exists never an error
        raise InputError(f"{called(path)}: no study of that name and no such file; expected a study.toml")
    return readable_file(path / "study.toml" if path.is_dir() else path)


def _from_table(cls: type[Study], table: Mapping[str, Any], folder: Path) -> Study:
    """A study from the content of study.toml; relative paths start at `folder`."""
    sections = ("data", "anchor", "classes", "margins", "efficiency", "floor", "gpus", "models")
    if "grid" in table:
        raise ValueError(f"[grid] is not read: {NOT_FITTED['grid']}")
    _keys("the study", table, ("name", "seed", *sections))
    for section in sections:
        if not isinstance(table.get(section, {}), Mapping):
            raise ValueError(f"[{section}] must be a table, got {table[section]!r}")
    for key in ("name", "data"):
        if key not in table:
            raise ValueError(f"{key} is missing")
    data = dict(table["data"])
    if not isinstance(data.get("path"), str):
        raise ValueError(f"[data] path must name a file, got {data.get('path')!r}")
    _keys("[anchor]", table.get("anchor", {}), ("model",))
    gpus = {name: _gpu(name, entry) for name, entry in table.get("gpus", {}).items()}
    models = {name: _model(name, entry, folder) for name, entry in table.get("models", {}).items()}
    stated = table.get("margins", {})
    return cls(
        _section(Data, "data", data | {"path": readable_file(folder / data["path"])}),
        name=table["name"],
        anchor=str(table.get("anchor", {}).get("model", DEFAULT_ANCHOR)),
        classes=table.get("classes"),
        # Margins that a study states are fixed beforehand unless it says otherwise; the others are defaults.
        margins=_section(Margins, "margins", ({"label": FIXED} if set(stated) - {"label"} else {}) | dict(stated)),
        efficiency=_section(Roof, "efficiency", table.get("efficiency", {})),
        floor=_floor(table.get("floor", {}), data.get("format")),
        models=models,
        gpus=gpus,
        seed=table.get("seed", 1),
    )


def _floor(table: Any, data_format: Any) -> FloorStructure:
    """[floor]: what it leaves out is as in `PER_SEQUENCE`, or `PER_MODEL` of a published study."""
    usual = PER_MODEL if data_format == "published" else PER_SEQUENCE
    found = {"shared_by": usual.shared_by, "terms": list(usual.terms)} | dict(table)
    if not isinstance(found["terms"], list) or not all(isinstance(name, str) for name in found["terms"]):
        raise ValueError(f"[floor] terms must be a list of names, got {found['terms']!r}")
    return _section(FloorStructure, "floor", found | {"terms": tuple(found["terms"])})


def _section[T](cls: type[T], name: str, table: Mapping[str, Any]) -> T:
    """One section as its dataclass."""
    _keys(f"[{name}]", table, tuple(f.name for f in fields(cls) if f.name not in ("content", "digest")))  # type: ignore[arg-type]
    try:
        return cls(**table)
    except (TypeError, ValueError) as error:
        raise ValueError(f"[{name}] {error}") from error


def _gpu(name: str, table: Any) -> GpuSpec:
    if not isinstance(table, Mapping):
        raise ValueError(f"[gpus.{name}] must be a table, got {table!r}")
    for key in ("die", "aliases", "name"):
        if key in table:
            raise ValueError(f"[gpus.{name}] {key} is not read: {NOT_FITTED[key]}")
    return GpuSpec.from_table(name, table)


def _model(name: str, table: Any, folder: Path) -> ModelShapes:
    if not isinstance(table, Mapping) or set(table) != {"config"} or not isinstance(table["config"], str):
        raise ValueError(f"[models.{name}] needs config alone, the path of a config.json or TOML file")
    file = readable_file(folder / table["config"])
    if file.suffix == ".toml":
        return ModelShapes.from_table(name, read_toml(file))
    return read_config(file, name)


def _keys(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = [key for key in table if key not in known]
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} in {where}; expected {', '.join(known)}")
