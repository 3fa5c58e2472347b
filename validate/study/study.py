"""A study: which data are judged, against which anchor, by which margins (DESIGN section 7, study.toml)."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooffloor import __version__
from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.roof.kernels import Experts
from rooffloor.models.specs import classes
from rooffloor.models.specs.gpus import GpuSpec, read_toml
from rooffloor.models.specs.inputs import called
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.common import resources
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.common.files import json_dumps, readable_file
from rooffloor.validate.measurements.names import Names

if TYPE_CHECKING:
    from rooffloor.validate.measurements.load import Measurements

FORMATS = ("schema", "argonne", "llama-bench", "optimum-benchmark", "published")
PRESETS = ("study", "latency", "query heads", "per gpu")
TREATMENTS = ("study", "cut", "joint")
EXPERTS = ("active", "distinct", "balanced")
DEFAULT_ANCHOR = "Llama-3.1-8B"
FIXED, POST_HOC, DEFAULTS = "fixed beforehand", "post hoc", "defaults, not fixed beforehand"


@dataclass(frozen=True)
class Data:
    """What is judged: a file, its format, and which stack and mode of it."""

    path: Path
    format: str = "schema"
    stack: str | None = None
    mode: str | None = None

    def __post_init__(self) -> None:
        _one_of("format", self.format, FORMATS)
        for name in ("stack", "mode"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise ValueError(f"{name} must be a name, got {value!r}")


@dataclass(frozen=True)
class Margins:
    """By what the hypotheses are judged.

    Attributes
    ----------
    h1_points : float
        Residual MAPE of a transferred model may exceed the anchor's by so many points.
    h1_absolute : float
        Residual MAPE may be at most so many percent.
    slope_rope : float
        A slope within 1 +- this is as good as 1.
    dispatch_percent : float
        A term below so many percent of the step is negligible.
    probability : float
        Posterior probability that a verdict needs.
    label : str
        When the margins were chosen: "fixed beforehand", "post hoc" or "defaults, not fixed beforehand".
    """

    h1_points: float = 2.0
    h1_absolute: float = 10.0
    slope_rope: float = 0.12
    dispatch_percent: float = 1.0
    probability: float = 0.95
    label: str = DEFAULTS

    def __post_init__(self) -> None:
        for name in ("h1_points", "h1_absolute", "slope_rope", "dispatch_percent"):
            _number(name, getattr(self, name), 0.0, 100.0)
        _number("probability", self.probability, 0.5, 1.0)
        _one_of("label", self.label, (FIXED, POST_HOC, DEFAULTS))


@dataclass(frozen=True)
class Grid:
    """Batches and contexts at which steps are predicted where no measurement says them."""

    batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    contexts: tuple[int, ...] = (512, 2048, 8192)

    def __post_init__(self) -> None:
        for name in ("batches", "contexts"):
            values = getattr(self, name)
            if not isinstance(values, list | tuple) or not values:
                raise ValueError(f"{name} must be a list of whole numbers, got {values!r}")
            odd = [v for v in values if type(v) is not int or v < 1]
            if odd or list(values) != sorted(set(values)):
                raise ValueError(f"{name} must be rising whole numbers of at least 1, got {list(values)!r}")
            object.__setattr__(self, name, tuple(values))


@dataclass(frozen=True)
class Roof:
    """The roof's structure, which set of constants is used, and which experts are streamed."""

    preset: str = "study"
    treatment: str = "cut"
    experts: Experts = "active"

    def __post_init__(self) -> None:
        _one_of("preset", self.preset, PRESETS)
        _one_of("treatment", self.treatment, TREATMENTS)
        _one_of("experts", self.experts, EXPERTS)


@dataclass(frozen=True)
class Study:
    """One study.

    Attributes
    ----------
    name : str
        Also the name of its folder of reports.
    data : Data
    anchor : str
        Catalog name of the model on which constants are calibrated.
    classes : mapping
        Class of a model where it is not the default one, by catalog name.
    margins, grid, efficiency, floor : Margins, Grid, Roof, FloorStructure
    models, gpus : mapping
        Specifications that the catalog lacks, by name.
    seed : int
    """

    name: str
    data: Data
    anchor: str = DEFAULT_ANCHOR
    classes: Mapping[str, str] = field(default_factory=dict)
    margins: Margins = field(default_factory=Margins)
    grid: Grid = field(default_factory=Grid)
    efficiency: Roof = field(default_factory=Roof)
    floor: FloorStructure = field(default_factory=FloorStructure)
    models: Mapping[str, ModelShapes] = field(default_factory=dict)
    gpus: Mapping[str, GpuSpec] = field(default_factory=dict)
    seed: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"\w[\w .+-]*", self.name):
            raise ValueError(f"name must be letters, digits, space, '.', '+', '-' or '_', got {self.name!r}")
        if type(self.seed) is not int or self.seed < 0:
            raise ValueError(f"seed must be a whole number of at least 0, got {self.seed!r}")
        object.__setattr__(self, "anchor", self.names.shapes(self.anchor).name)
        for model, label in self.classes.items():
            if not isinstance(label, str) or not label.strip():
                raise ValueError(f"class of {model!r} must be a name, got {label!r}")
        classes = {self.names.shapes(model).name: label for model, label in self.classes.items()}
        object.__setattr__(self, "classes", classes)

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
        parts = filter(None, (file.stem, stack, mode))
        name = re.sub(r"[^\w.+-]+", "-", "-".join(parts)).strip("-.+") or "data"
        try:
            models = {} if configs is None else configured(Path(configs))
            return cls(name, Data(file, format, stack, mode), anchor=anchor or DEFAULT_ANCHOR, models=models)
        except ValueError as error:
            raise InputError(str(error)) from error

    @property
    def names(self) -> Names:
        """What resolves names of models and GPUs in this study."""
        return Names(self.models, self.gpus)

    def class_of(self, model: str) -> str:
        """The class of a model, which shares floors: the study's, or the default one."""
        shapes = self.names.shapes(model)
        return self.classes.get(shapes.name) or classes.default_class(shapes)

    def measurements(self) -> "Measurements":
        """The study's measurements; InputError where the file cannot be used (see `measurements.load`)."""
        from rooffloor.validate.measurements.load import load

        d = self.data
        return load(d.path, format=d.format, stack=d.stack, mode=d.mode, names=self.names)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the study's data."""
        if self.data.format != "argonne":
            return (self.data.path,)
        from rooffloor.validate.measurements.importers import argonne

        return tuple(filter(None, (self.data.path, argonne.ttft_file(self.data.path.parent))))

    @property
    def hash(self) -> str:
        """sha256 over what the study says, the bytes of its data and of the catalogs, and the code's version.

        Where the files lie does not count.
        """
        content = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("data", "floor")}
        content["data"] = asdict(self.data) | {"path": None}
        content["floor"] = [self.floor.shared_by, self.floor.combine, *self.floor.combine_of]
        catalog = Path(classes.__file__).parent / "catalog"
        content["files"] = [_sha256(file) for file in (*self.files, *sorted(catalog.glob("*.toml")))]
        content["version"] = __version__
        return hashlib.sha256(json_dumps(content).encode()).hexdigest()


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
    sections = ("data", "anchor", "classes", "margins", "grid", "efficiency", "floor", "gpus", "models")
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
    return cls(
        name=table["name"],
        data=_section(Data, "data", data | {"path": readable_file(folder / data["path"])}),
        anchor=str(table.get("anchor", {}).get("model", DEFAULT_ANCHOR)),
        classes=table.get("classes", {}),
        margins=_margins(table.get("margins", {})),
        grid=_section(Grid, "grid", table.get("grid", {})),
        efficiency=_section(Roof, "efficiency", table.get("efficiency", {})),
        floor=_section(FloorStructure, "floor", table.get("floor", {})),
        models=models,
        gpus=gpus,
        seed=table.get("seed", 1),
    )


def _section[T](cls: type[T], name: str, table: Mapping[str, Any]) -> T:
    """One section as its dataclass."""
    _keys(f"[{name}]", table, tuple(f.name for f in fields(cls)))  # type: ignore[arg-type]
    try:
        return cls(**table)
    except ValueError as error:
        raise ValueError(f"[{name}] {error}") from error


def _margins(table: Mapping[str, Any]) -> Margins:
    """Margins that a study states are fixed beforehand unless it says otherwise; the others are defaults."""
    stated = set(table) - {"label"}
    return _section(Margins, "margins", {"label": FIXED} | dict(table) if stated else table)


def _gpu(name: str, table: Any) -> GpuSpec:
    if not isinstance(table, Mapping):
        raise ValueError(f"[gpus.{name}] must be a table, got {table!r}")
    return GpuSpec.from_table(name, table)


def _model(name: str, table: Any, folder: Path) -> ModelShapes:
    if not isinstance(table, Mapping) or set(table) != {"config"} or not isinstance(table["config"], str):
        raise ValueError(f"[models.{name}] needs config alone, the path of a config.json or TOML file")
    file = readable_file(folder / table["config"])
    if file.suffix == ".toml":
        return ModelShapes.from_table(name, read_toml(file))
    return ModelShapes.from_hf_config(file, name)


def config_files(folder: Path) -> dict[str, Path]:
    """Config files of a folder by the name of their model.

    NAME/config.json, NAME.json or NAME_config.json; in NAME, `--` stands for the slash of a hub id, and both the hub
    id and its last part name the model.

    Raises
    ------
    InputError
        No such folder, no config in it, or two for one name.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; expected config.json files of the models")
    found: dict[str, Path] = {}
    for file in sorted([*folder.glob("*.json"), *folder.glob("*/config.json")]):
        stem = file.parent.name if file.name == "config.json" else file.stem.removesuffix("_config")
        hub_id = stem.replace("--", "/")
        for name in dict.fromkeys((hub_id, hub_id.rsplit("/", 1)[-1])):
            if name in found:
                raise InputError(f"{file}: a second config of {name!r} beside {found[name]}")
            found[name] = file
    if not found:
        raise InputError(f"{folder}: holds no config.json; expected NAME/config.json or NAME_config.json")
    return found


def configured(folder: Path) -> dict[str, ModelShapes]:
    """Models of `config_files`; a config that cannot be read is an error only once its model is needed."""
    models = {}
    for name, file in config_files(folder).items():
        try:
            shapes = ModelShapes.from_hf_config(file, name.rsplit("/", 1)[-1])
        except ValueError:
            continue
        models[name] = shapes
    return models


def _keys(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = [key for key in table if key not in known]
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} in {where}; expected {', '.join(known)}")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} {value!r} is unknown; expected one of {', '.join(known)}")


def _number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{name} must be a number from {low:g} to {high:g}, got {value!r}")
