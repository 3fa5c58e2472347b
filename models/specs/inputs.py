"""Files of strangers: read whole where they are files of a bearable size; their values in error messages."""

import os
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

KILOBYTE, MEGABYTE = 1024, 1024**2
LARGEST_TOML = 64 * KILOBYTE
_MOST_DOTS = 500
"""In one line of a TOML file: keys of very many parts take minutes to read."""


def check(path: str | Path, largest: int) -> None:
    """Look whether a file can be read whole, without waiting for one that has no end.

    Raises
    ------
    ValueError
        It is missing, no regular file (a folder, a pipe, a device), larger than `largest` bytes, or may not be opened.
        The message is the reason alone.
    """
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise ValueError("is a directory")
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("this is no file but a pipe or a device")
        if found.st_size > largest:
            raise ValueError(too_large(largest))
        with open(path, "rb"):
            return
    except OSError as error:
        raise ValueError((error.strerror or type(error).__name__).lower()) from error


def read(path: str | Path, largest: int) -> bytes:
    """The content of a file; ValueError as `check`."""
    check(path, largest)
    try:
        with open(path, "rb") as file:
            content = file.read(largest + 1)
    except OSError as error:
        raise ValueError((error.strerror or type(error).__name__).lower()) from error
    if len(content) > largest:  # the system does not tell the size of every file
        raise ValueError(too_large(largest))
    return content


def parsed(path: str | Path, largest: int, parse: Callable[[str], Any], expected: str) -> Any:
    """What `parse` makes of the UTF-8 text in a file.

    Raises
    ------
    ValueError
        The file cannot be read, is larger than `largest` bytes or no such text; the message names it.
    """

    def refused(why: str) -> ValueError:
        return ValueError(f"{called(path)}: expected a {expected} ({why})")

    try:
        return parse(read(path, largest).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise refused("it is not UTF-8 text") from error
    except RecursionError as error:
        raise refused("it is nested too deeply") from error
    except ValueError as error:
        raise refused(" ".join(str(error).split())[:120]) from error


def read_toml(path: str | Path) -> dict[str, Any]:
    """The table in a TOML file of at most `LARGEST_TOML` bytes; ValueError as `parsed`."""
    table: dict[str, Any] = parsed(path, LARGEST_TOML, _toml, "TOML file")
    return table


def _toml(text: str) -> dict[str, Any]:
    if any(line.count(".") > _MOST_DOTS for line in text.split("\n")):
        raise ValueError(f"a line has more than {_MOST_DOTS} dots")
    return tomllib.loads(text)


def toml_name(path: str | Path, table: dict[str, Any]) -> str:
    """The name that a TOML file gives to what it describes; else the file's."""
    name = table.get("name", Path(path).stem)
    if not isinstance(name, str):
        raise ValueError(f"{called(path)}: name must be text, got {shown(name)}")
    return name


def too_large(largest: int) -> str:
    """Why a file of more than `largest` bytes is refused."""
    size = f"{largest // MEGABYTE} MB" if largest >= MEGABYTE else f"{largest // KILOBYTE} KB"
    return f"it is larger than {size}"


def called(path: str | Path) -> str:
    """A path for a message or a page: one line of printable text, a question mark for what is none."""
    return "".join(c if c.isprintable() else "?" for c in str(path))


def shown(value: object, limit: int = 80) -> str:
    """A value for an error message: its repr on one line, cut to `limit` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of thousands of digits, a nest too deep
        return f"a {type(value).__name__} too large to show"
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
