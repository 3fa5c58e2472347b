"""Files: what is read, and writing them whole or not at all, the same bytes for the same content."""

import dataclasses
import errno
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from rooffloor.models.specs import inputs
from rooffloor.validate.common.errors import InputError

SIGNIFICANT_DIGITS = 10
LARGEST_INPUT = 256 * inputs.MEGABYTE
"""Bytes of a file that is read whole."""


def json_ready(value: object) -> object:
    """`value` in terms of what JSON knows: dict, list, str, int, float, bool, None.

    Parameters
    ----------
    value
        Dataclasses and mappings become dicts, tuples and arrays (any shape) lists, NumPy scalars Python
        ones, paths their POSIX text. Floats keep `SIGNIFICANT_DIGITS` digits, so that summation order
        does not show in a file; NaN and infinities become None, minus zero becomes zero. What of a text no encoding
        can write (lone surrogates, such as stand for the bytes of a file's name) is escaped.

    Raises
    ------
    TypeError
        A value that has no place in JSON, or a set: its order is not stable.
    """
    match value:
        case str():
            return _writable(value)
        case None | bool() | int():
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
            return _writable(value.as_posix())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_ready(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no place in JSON: {value!r}")


def _rounded(value: float) -> float:
    rounded = float(f"{value:.{SIGNIFICANT_DIGITS}g}") + 0.0
    return rounded if math.isfinite(rounded) else float(value)


def _writable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _json_key(key: object) -> str:
    if isinstance(key, str):
        return _writable(key)
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
    if not path.name:  # nothing, a point or the root
        raise InputError(f"{path}: cannot be written (is a directory)")
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
    return write_bytes(path, content.encode(errors="backslashreplace"))


def written(text: str, path: str | Path | None) -> str:
    """The text, and a file of it where a path is given."""
    if path is not None:
        write_text(path, text)
    return text


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
        `target` is a file, or cannot be written, or the disk is full: said on entry where it can be known. In
        `target` a folder stands where a file should be, or a file or a link where a folder should be.
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
        names = [file.relative_to(temporary) for file in files]
        _check_places(target, names)
        for file, name in zip(files, names, strict=True):
            final = target / name
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


def check_writable(target: str | Path, names: Iterable[str | Path] = ()) -> None:
    """Say before a long computation that the folder `target`, or a file of `names` in it, cannot be written.

    InputError as in `folder`.
    """
    with folder(target):
        _check_places(Path(target).absolute(), names)


def _check_places(target: Path, names: Iterable[str | Path]) -> None:
    """InputError where a file of `names` could not be put into the folder `target`, or would land outside of it."""
    for name in names:
        final = target / name
        if final.is_dir() and not final.is_symlink():
            raise InputError(f"{final}: cannot be written (is a directory)")
        for above in (target / parent for parent in Path(name).parents if parent.name):
            if above.is_symlink() or (above.exists() and not above.is_dir()):
                what = "is a link: it may lead elsewhere" if above.is_symlink() else "is no directory"
                raise InputError(f"{above}: cannot be written ({what})")


def refuse_overwriting(outputs: Iterable[str | Path], read: Iterable[str | Path]) -> None:
    """InputError where a file that will be written is one that is read, by whatever name."""
    originals = [Path(path) for path in read if os.path.exists(path)]
    for path in outputs:
        for original in originals:
            if os.path.exists(path) and os.path.samefile(path, original):
                raise InputError(f"{path}: would overwrite {original}, which is read; write elsewhere")


def readable_file(path: str | Path, largest: int = LARGEST_INPUT) -> Path:
    """`path` if it is a regular file that can be opened and has at most `largest` bytes.

    Raises
    ------
    InputError
        It is missing, a folder, a device or a pipe, too large, or cannot be read.
    """
    try:
        inputs.check(path, largest)
    except ValueError as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    return Path(path)


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be written ({_reason(error)})")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
