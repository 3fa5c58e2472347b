"""What goes to a terminal: results to stdout, all else to stderr as lines that do nothing to it."""

import io
import os
import sys
from contextlib import suppress

from rooffloor.validate.common.errors import InputError

LONGEST_LINE = 500
"""Characters of an error; its middle is left out where it is longer."""


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
