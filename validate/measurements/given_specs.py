"""A model and a GPU as a user names them: a catalog's name, a config.json, a folder, a TOML file."""

import os
from dataclasses import replace
from pathlib import Path

from rooffloor.models.specs import gpus, shapes
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.inputs import called, shown
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.common.errors import InputError, listed

FILES = (".json", ".toml")
"""How the names of files end that hold a model or a GPU."""


def read_shapes(given: str | Path | ModelShapes) -> ModelShapes:
    """Shapes of an object, a catalog's name (which goes first), a config.json, its folder or a TOML file.

    Raises
    ------
    InputError
        None of these: one line.
    """
    if isinstance(given, ModelShapes):
        return given
    try:
        if isinstance(given, str) and (_listed(given) or not os.path.exists(given)):
            return _of_catalog(given)
        path = Path(given)
        if path.suffix == ".toml":
            return ModelShapes.from_toml(path)
        if path.is_dir() and not (path / "config.json").is_file():
            raise InputError(_several(path))
        return ModelShapes.from_hf_config(path)
    except (ValueError, OSError) as error:
        raise InputError(" ".join(str(error).split())) from error


def renamed(spec: ModelShapes, name: str) -> ModelShapes:
    """The same shapes under a name that a user or a file of his gives; InputError where it is none."""
    try:
        return replace(spec, name=name)
    except ValueError as error:
        raise InputError(str(error)) from error


def _of_catalog(name: str) -> ModelShapes:
    try:
        return shapes.load(name)
    except ValueError as error:
        if not name.endswith(FILES) and os.sep not in name:
            raise
        raise InputError(f"{called(name)}: no such file, and no model of that name in the catalog") from error


def _several(folder: Path) -> str:
    """Why a folder without a config.json is no model."""
    from rooffloor.validate.study.study import config_files

    files = dict.fromkeys(config_files(folder).values())
    first = next(iter(files))
    return (
        f"{called(folder)}: holds {len(files)} configs, expected one model; name its file, such as {called(first)} "
        f"(it has {listed(file.relative_to(folder) for file in files)})"
    )


def _listed(name: str) -> bool:
    return name.strip().casefold() in {known.casefold() for known in shapes.names()}


def read_gpu(given: str | Path | GpuSpec) -> GpuSpec:
    """Data sheet of an object, a catalog's name or a TOML file.

    Raises
    ------
    InputError
        None of these, or a name of several parts: one line.
    """
    try:
        if isinstance(given, GpuSpec):
            spec = given
        elif isinstance(given, Path) or given.endswith(".toml") or os.path.isfile(given):
            spec = GpuSpec.from_toml(given)
        else:
            spec = gpus.load(given)
    except (ValueError, OSError) as error:
        raise InputError(" ".join(str(error).split())) from error
    if not spec.name.isprintable() or not 0 < len(spec.name) <= 200:
        raise InputError(f"GPU's name: expected one line of printable text, got {shown(spec.name)}")
    return spec
