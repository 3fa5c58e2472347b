"""A model and a GPU as a user names them: a catalog's name, a config.json, a folder, a TOML file."""

from pathlib import Path

from models import gpus, shapes
from models.gpus import GpuSpec
from models.shapes import ModelShapes
from validate.errors import InputError


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
        if isinstance(given, str) and (_listed(given) or not Path(given).exists()):
            return shapes.load(given)
        path = Path(given)
        return ModelShapes.from_toml(path) if path.suffix == ".toml" else ModelShapes.from_hf_config(path)
    except (ValueError, OSError) as error:
        raise InputError(" ".join(str(error).split())) from error


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
        elif isinstance(given, Path) or given.endswith(".toml") or Path(given).is_file():
            spec = GpuSpec.from_toml(given)
        else:
            spec = gpus.load(given)
    except (ValueError, OSError) as error:
        raise InputError(" ".join(str(error).split())) from error
    if not spec.name.isprintable() or not 0 < len(spec.name) <= 200:
        raise InputError(f"GPU's name: expected one line of printable text, got {shapes.shown(spec.name)}")
    return spec
