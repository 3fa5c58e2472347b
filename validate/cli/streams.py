"""What goes to a terminal: results to stdout, all else to stderr as lines that do nothing to it."""

import io
import logging
import os
import sys
import threading
import time
import warnings
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from rooffloor.validate.common.errors import InputError, Notice

LONGEST_LINE = 500
"""Characters of an error; its middle is left out where it is longer."""
EVERY_S = 30.0
"""Seconds between two lines of progress of one stage."""


def prepare() -> None:
    """Streams that were closed (>&-) lead nowhere; a terminal without Greek letters shows them escaped."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def show(result: object) -> None:
    """Print text as it is, everything else as JSON; InputError where stdout is full."""
    from rooffloor.validate.common.files import json_dumps

    try:
        sys.stdout.write(f"{result}\n" if isinstance(result, str) else json_dumps(result))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()
        raise InputError(f"standard output: cannot be written ({(error.strerror or str(error)).lower()})") from error


def hush_libraries() -> None:
    """Warnings of other libraries (a layout too narrow, no glyph for a letter, no home) are no concern of a user's.

    Those of rooffloor become a line; whoever asks Python for warnings (-W, PYTHONWARNINGS) gets all.
    """
    if sys.warnoptions:
        return

    def line(message: Warning | str, *_: Any, **__: Any) -> None:
        tell(one_line(f"rooffloor: {message}"))

    warnings.simplefilter("ignore")
    warnings.simplefilter("always", Notice)
    warnings.showwarning = line
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # worker processes


class Stages:
    """Lines of progress: each stage of a long command as it begins, and now and then that it goes on.

    Called with what is being done, in a few words.

    Parameters
    ----------
    shown : bool
        Whether anything is told at all.
    repeated : bool
        Whether a stage that goes on is told again: where no progress bar shows.
    """

    def __init__(self, *, shown: bool, repeated: bool):
        self._shown, self._repeated = shown, shown and repeated
        self._stage, self._began = "", 0.0
        self._over = threading.Event()

    def __call__(self, what: str) -> None:
        """A stage begins."""
        self._stage, self._began = what, time.monotonic()
        if self._shown:
            tell(one_line(f"rooffloor: {what}"))

    def __enter__(self) -> Self:
        if self._repeated:
            threading.Thread(target=self._repeat, name="rooffloor progress", daemon=True).start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._over.set()

    def _repeat(self) -> None:
        while not self._over.wait(EVERY_S):
            since = time.monotonic() - self._began
            if self._stage and since > EVERY_S / 2:
                tell(one_line(f"rooffloor: {self._stage}, for {since:.0f} s now"))


def tell(text: str) -> None:
    """Write to stderr, if anything can be written there."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def one_line(message: str) -> str:
    """A message as one line of bearable length that does nothing to a terminal."""
    text = " ".join(message.split())
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if len(text) <= LONGEST_LINE:
        return text
    end = LONGEST_LINE // 3
    return f"{text[: LONGEST_LINE - end - 5]} ... {text[-end:]}"


def discard_output() -> None:
    """Python flushes again at exit: let that go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
