"""A model and a GPU as a user names them: a catalog's name, a config.json, a folder, a TOML file."""

import os
from dataclasses import replace
from pathlib import Path

from rooffloor.models.specs import formats, gpus, shapes
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.hf import quantization
from rooffloor.models.specs.hf.config import read_config
from rooffloor.models.specs.inputs import called, shown
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.common.errors import InputError, listed

FILES = (".json", ".toml")
"""How the names of files end that hold a model or a GPU."""


def load_model(given: str | Path | ModelShapes) -> ModelShapes:
    """The shapes of a model.

    Parameters
    ----------
    given : catalog name (which goes first), config.json, its folder, TOML file, or shapes, which come back as they are

    Raises
    ------
    InputError
        None of these: one line.

    Examples
    --------
    >>> load_model("meta-llama/Llama-3.1-8B").layers
    32
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
        return read_config(path)
    except (ValueError, OSError) as error:
        raise InputError(" ".join(str(error).split())) from error


def load_models(given: str | Path | ModelShapes) -> tuple[list[ModelShapes], list[str]]:
    """One model as `load_model` takes it, or all those of a folder of config files.

    Returns
    -------
    models, left_out : lists
        `left_out` has the files that are no model of the roof, each "FILE: why".

    Raises
    ------
    InputError
        As `load_model`, or no file of the folder can be read.
    """
    if isinstance(given, ModelShapes):
        return [given], []
    path = Path(given)
    listed_name = isinstance(given, str) and shapes.known(given)
    if path.suffix in FILES or listed_name or not os.path.isdir(path) or (path / "config.json").is_file():
        return [load_model(path if path.suffix in FILES else given)], []
    found, left = list[ModelShapes](), list[str]()
    for file, name in {file: name for name, file in config_files(path).items()}.items():
        try:
            found.append(read_config(file, name))
        except ValueError as error:
            why = " ".join(str(error).split())
            left.append(why if why.startswith(str(file)) else f"{file}: {why}")
    if not found:
        others = len(left) - 1
        more = f"; nor of {others} other file{'s' if others > 1 else ''}" if others else ""
        raise InputError(f"{path}: no config of a model that can be predicted: {left[0]}{more}")
    return found, left


def in_format(model: ModelShapes, dtype: str | None = None, kv_dtype: str | None = None) -> ModelShapes:
    """A model with its weights, its cache, or both in other number formats than its checkpoint has.

    Parameters
    ----------
    model : ModelShapes
    dtype, kv_dtype : str, optional
        Names of formats (`formats.named`): of the weights of all matrix products but the LM head and routers, and of
        the cache. None: as the checkpoint has them.

    Raises
    ------
    InputError
        A name is unknown.

    Examples
    --------
    >>> in_format(load_model("Llama-3.1-8B"), "fp8").number_format
    'fp8, as given'
    """
    if dtype is None and kv_dtype is None:
        return model
    try:
        cache = model.formats.cache if kv_dtype is None else formats.named(kv_dtype)
        weights = None if dtype is None else formats.named(dtype)
    except ValueError as error:
        raise InputError(str(error)) from error
    given, text = replace(model, formats=replace(model.formats, cache=cache)), model.number_format
    if weights is not None:
        stated = f" (its config says {text})" if text else ""
        given, text = (
            quantization.stored(model, quantization.uniform(weights, cache)),
            f"{weights.name}, as given{stated}",
        )
    if kv_dtype is not None:
        text = f"{text or '16-bit'}; cache {cache.name}, as given"
    return replace(given, number_format=text)


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
    files = dict.fromkeys(config_files(folder).values())
    first = next(iter(files))
    return (
        f"{called(folder)}: holds {len(files)} configs, expected one model; name its file, such as {called(first)} "
        f"(it has {listed(file.relative_to(folder) for file in files)})"
    )


def _listed(name: str) -> bool:
    return name.strip().casefold() in {known.casefold() for known in shapes.names()}


def load_gpu(given: str | Path | GpuSpec) -> GpuSpec:
    """The data sheet of a GPU.

    Parameters
    ----------
    given : catalog name, TOML file, or a data sheet, which comes back as it is

    Raises
    ------
    InputError
        None of these, or a name of several parts: one line.

    Examples
    --------
    >>> load_gpu("H100 SXM").bandwidth  # bytes/s
    3350000000000.0
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
            shapes = read_config(file, name.rsplit("/", 1)[-1])
        except ValueError:
            continue
        models[name] = shapes
    return models
