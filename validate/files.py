"""Writing files: whole or not at all, and the same bytes for the same content."""

import dataclasses
import errno
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from validate.errors import InputError

SIGNIFICANT_DIGITS = 10


def json_ready(value: object) -> object:
    """`value` in terms of what JSON knows: dict, list, str, int, float, bool, None.

    Parameters
    ----------
    value
        Dataclasses and mappings become dicts, tuples and arrays (any shape) lists, NumPy scalars Python
        ones, paths their POSIX text. Floats keep `SIGNIFICANT_DIGITS` digits, so that summation order
        does not show in a file; NaN and infinities become None, minus zero becomes zero.

    Raises
    ------
    TypeError
        A value that has no place in JSON, or a set: its order is not stable.
    """
    match value:
        case None | bool() | str() | int():
            return value
        case float():
            return _rounded(value) if math.isfinite(value) else None
        case np.ndarray() | np.generic():
            return json_ready(value.tolist())
        case Mapping():
            return {_json_key(key): json_ready(item) for key, item in value.items()}
        case list() | tuple():
            return [json_ready(item) for item in value]
        case Path():
            return value.as_posix()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_ready(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no place in JSON: {value!r}")


def _rounded(value: float) -> float:
    rounded = float(f"{value:.{SIGNIFICANT_DIGITS}g}") + 0.0
    return rounded if math.isfinite(rounded) else float(value)


def _json_key(key: object) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return str(key)
    raise TypeError(f"a JSON key is a string, not {type(key).__name__}: {key!r}")


def json_dumps(value: object) -> str:
    """Canonical JSON text of `value` (see `json_ready`): two spaces, keys as given, a last newline."""
    return json.dumps(json_ready(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_bytes(path: str | Path, content: bytes) -> Path:
    """Write `content` to `path` whole or not at all; parent folders are made.

    Raises
    ------
    InputError
        `path` cannot be written: one line that names it and the reason.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return path


def write_text(path: str | Path, content: str) -> Path:
    """Write `content` to `path` as UTF-8 with the line ends it has; as `write_bytes` otherwise."""
    return write_bytes(path, content.encode())


def write_json(path: str | Path, value: object) -> Path:
    """Write `json_dumps(value)` to `path`; as `write_bytes` otherwise."""
    return write_text(path, json_dumps(value))


@contextmanager
def folder(target: str | Path) -> Iterator[Path]:
    """A temporary folder whose files move into the folder `target` when the block ends without an exception.

    Until then `target` is untouched, and after an exception nothing is left. Files of the same name in
    `target` are replaced, all others stay: it may be a folder that the user has other things in.

    Raises
    ------
    InputError
        `target` is a file, or cannot be written, or the disk is full: said on entry where it can be known.
    """
    target = Path(target).absolute()
    try:
        home = next(place for place in (target, *target.parents) if place.exists())
        temporary = Path(tempfile.mkdtemp(prefix=".rooffloor-", dir=home))
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        yield temporary
        files = sorted(file for file in temporary.rglob("*") if file.is_file())
        for file in files:
            final = target / file.relative_to(temporary)
            try:
                final.parent.mkdir(parents=True, exist_ok=True)
                file.replace(final)
            except OSError as error:
                raise _unwritable(final, error) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _unwritable(target, error) from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_writable(target: str | Path) -> None:
    """Say before a long computation that the folder `target` cannot be written: InputError as in `folder`."""
    with folder(target):
        pass


def readable_file(path: str | Path) -> Path:
    """`path` if it is a file that can be opened.

    Raises
    ------
    InputError
        It is missing, a folder, or cannot be read.
    """
    path = Path(path)
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({_reason(error)})") from error


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be written ({_reason(error)})")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
