"""Hugging Face config.json -> ModelShapes: the file, its general contradictions, its number format."""

import contextlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rooffloor.models.specs import inputs
from rooffloor.models.specs.hf import quantization
from rooffloor.models.specs.hf.architectures import ARCHITECTURES, SUPPORTED
from rooffloor.models.specs.hf.keys import Config
from rooffloor.models.specs.hf.refused import FOREIGN_KEYS, check_unread, fault
from rooffloor.models.specs.inputs import shown
from rooffloor.models.specs.shapes import ModelShapes

_LARGEST_FILE = 8 * inputs.MEGABYTE  # published configs have a few thousand


def read_config(config: str | Path | Mapping[str, Any], name: str | None = None) -> ModelShapes:
    """Shapes from a Hugging Face config.json.

    Parameters
    ----------
    config : path or mapping
        The file, a folder that holds a config.json, or the parsed content.
    name : str, optional
        Name of the model; default: `_name_or_path`, else the file's or folder's name.

    Raises
    ------
    ValueError
        Not a config.json, an architecture that is not modelled, a key that is missing, has no sense or
        contradicts another. One line that names the file and the key.

    Notes
    -----
    See `hf.architectures` for those that are read.
    """
    if isinstance(config, Mapping):
        where, default_name, table, side = "config", "config.json", config, None
    else:
        path = Path(config)
        with contextlib.suppress(OSError, ValueError):  # no possible name of a file; reading it says so
            path = path / "config.json" if path.is_dir() else path
        where = inputs.called(path)
        table = inputs.parsed(path, _LARGEST_FILE, partial(json.loads, object_pairs_hook=_object), "config.json")
        if not isinstance(table, dict):
            raise ValueError(f"{where}: expected a JSON object, got {type(table).__name__}")
        side = _beside(path.with_name(quantization.SIDE_FILE))
        default_name = path.parent.name if path.stem == "config" else path.stem.removesuffix("_config")
    stated = table.get("_name_or_path")
    if not isinstance(stated, str | None):
        raise ValueError(f"{where}: _name_or_path must be text, got {shown(stated)}")
    read = _checked(where, table)
    fields = ARCHITECTURES[read.kind].read(read)
    check_unread(read, fields)
    try:
        shapes = ModelShapes(name=name or stated or default_name, source=where, **fields)
        return quantization.stored(shapes, quantization.of(read, side))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _checked(where: str, table: Mapping[str, Any]) -> Config:
    """The config of an architecture that is read, its general contradictions refused."""
    kind = table.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        why = fault(table, kind)
        what = f": it has {why}" if why else f"; read are {', '.join(SUPPORTED)}"
        raise ValueError(f"{where}: model_type {shown(kind)} is not modelled{what}")
    known = ARCHITECTURES[kind]
    inner = table.get("text_config") if known.nested else table
    if not isinstance(inner, Mapping):
        raise ValueError(f"{where}: model_type {kind!r} needs a text_config, got {shown(inner)}")
    if known.nested and inner.get("model_type", known.nested) != known.nested:
        raise ValueError(
            f"{where}: text_config.model_type {shown(inner['model_type'])} contradicts model_type {kind!r}"
        )
    config = Config(where, kind, inner, table, known.defaults)
    stated = table.get("architectures")
    if stated and not (isinstance(stated, list) and len(stated) == 1 and stated[0] in known.classes):
        raise config.error(f"architectures {shown(stated)} contradict model_type {kind!r} ({known.classes[0]})")
    for key, what in FOREIGN_KEYS.items():
        if inner.get(key) or (key == "is_encoder_decoder" and table.get(key)):
            raise config.error(f"{key}: {what} are not modelled")
    return config


def _beside(path: Path) -> Any:
    """The content of a file beside config.json; None where there is none."""
    return inputs.parsed(path, _LARGEST_FILE, json.loads, path.name) if path.is_file() else None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a key that is stated twice is an error."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {shown(key)} is stated twice")
        found[key] = value
    return found
