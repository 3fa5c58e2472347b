"""Files of strangers: read whole where they are files of a bearable size; their values in error messages."""

import os
import stat
from pathlib import Path

KILOBYTE, MEGABYTE = 1024, 1024**2


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
