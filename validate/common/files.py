"""Files: what is read, and writing them whole or not at all, the same bytes for the same content."""

import dataclasses
import errno
import fcntl
import json
import math
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from rooffloor.models.specs import inputs
from rooffloor.validate.common import ending
from rooffloor.validate.common.errors import InputError

SIGNIFICANT_DIGITS = 10
LARGEST_INPUT = 256 * inputs.MEGABYTE
"""Bytes of a file that is read whole."""
UNFINISHED, FINISHED = ".rooffloor-", ".rooffloor-finished-"
"""How temporary folders are called while they are filled, and while their files move to their places."""
STALE_S = 60.0
"""Age from which a temporary folder that no process holds is taken for one that was left behind."""
STALE_FILE_S = 3600.0
"""The same of temporary files, which nothing holds: none takes so long to write."""


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
    temporary = path.with_name(f"{UNFINISHED}{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ending.temporary(temporary):
            temporary.write_bytes(content)
            _to_disk(temporary)
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

    Until then `target` is untouched, and after an exception nothing is left. A `target` that is not there appears as a
    whole. In one that is, files of the same name are replaced, all others stay: it may be a folder that the user has
    other things in. A process that is killed while files move leaves the rest to the next run into `target`, which also
    removes what killed ones left.

    Raises
    ------
    InputError
        `target` is a file, or cannot be written, or the disk is full: said on entry where it can be known. In
        `target` a folder stands where a file should be, or a file or a link where a folder should be.
    """
    target = Path(target).absolute()
    try:
        home = next(place for place in (target, *target.parents) if place.exists())
        _settle(home)
        temporary = home / f"{UNFINISHED}{os.getpid()}-{secrets.token_hex(4)}"
        temporary.mkdir()
    except OSError as error:
        raise _unwritable(target, error) from error
    with ending.temporary(temporary), _locked(temporary):
        try:
            yield temporary
            names = [file.relative_to(temporary) for file in sorted(temporary.rglob("*")) if file.is_file()]
            _check_places(target, names)
            with ending.held():
                _publish(temporary, target, names)
        except InputError as error:  # by the name that the file would have had
            raise InputError(str(error).replace(str(temporary), str(target))) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _unwritable(target, error) from error
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary: Path, target: Path, names: list[Path]) -> None:
    """Files of these names to their places in `target`: on disk first, then at once where it is not there yet."""
    if not names:
        return
    for place in (*(temporary / name for name in names), *{(temporary / name).parent for name in names}):
        _to_disk(place)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            temporary.rename(target)
            _to_disk(target.parent)
            return
        finished = target / f"{FINISHED}{temporary.name.removeprefix(UNFINISHED)}"
        temporary.rename(finished)
        _to_disk(target)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        _move(finished, target, names)
    except KeyboardInterrupt:  # where nothing holds it back (a notebook)
        _move(finished, target, [name for name in names if (finished / name).exists()])
        raise
    finally:
        shutil.rmtree(finished, ignore_errors=True)


def _move(source: Path, target: Path, names: Iterable[Path]) -> None:
    for name in names:
        try:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).replace(target / name)
        except OSError as error:
            raise _unwritable(target / name, error) from error
    _to_disk(target)


def _settle(home: Path) -> None:
    """Finish what a killed process had begun to move into the folder `home`, and remove what others left there."""
    for left in home.glob(f"{UNFINISHED}*"):
        with suppress(OSError, InputError), _locked(left):
            about = left.lstat()
            if about.st_uid != os.getuid() or stat.S_ISLNK(about.st_mode):
                continue
            if stat.S_ISREG(about.st_mode) and left.suffix == ".tmp" and time.time() - about.st_mtime > STALE_FILE_S:
                left.unlink()
            if not stat.S_ISDIR(about.st_mode):
                continue
            if left.name.startswith(FINISHED):
                names = [file.relative_to(left) for file in sorted(left.rglob("*")) if file.is_file()]
                with suppress(InputError):
                    _check_places(home, names)
                    _move(left, home, names)
            elif time.time() - about.st_mtime < STALE_S:
                continue
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder as one in use; OSError where another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _to_disk(path: Path) -> None:
    """Have the system write a file or folder to the disk now, where its file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(descriptor)


def check_writable(target: str | Path, names: Iterable[str | Path] = ()) -> None:
    """Say before a long computation that the folder `target`, or a file of `names` in it, cannot be written.

    InputError as in `folder`.
    """
    with folder(target):
        _check_places(Path(target).absolute(), names)


def check_writable_file(path: str | Path) -> None:
    """The same of a single file (`write_bytes`)."""
    path = Path(path)
    if not path.name:
        raise InputError(f"{path}: cannot be written (is a directory)")
    check_writable(path.parent, [path.name])


def _check_places(target: Path, names: Iterable[str | Path]) -> None:
    """InputError where a file of `names` could not be put into the folder `target`, or would land outside of it."""
    for name in names:
        final = target / name
        try:
            if final.is_dir() and not final.is_symlink():
                raise InputError(f"{final}: cannot be written (is a directory)")
            for above in (target / parent for parent in Path(name).parents if parent.name):
                if above.is_symlink() or (above.exists() and not above.is_dir()):
                    what = "is a link: it may lead elsewhere" if above.is_symlink() else "is no directory"
                    raise InputError(f"{above}: cannot be written ({what})")
        except OSError as error:  # a name that is too long
            raise _unwritable(final, error) from error


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
