"""Errors that the command line turns into one line and an exit code."""

from collections.abc import Iterable, Mapping
from typing import Any

DONE, REFUTED, BAD_INPUT, GATE_FAILED, UNDECIDED = range(5)
BUG, INTERRUPTED, PIPE_CLOSED, TERMINATED = 70, 130, 141, 143
"""Exit codes: shells give 128 + the number of the signal that ended a command."""


class InputError(ValueError):
    """Input that cannot be used. The message is one line: file, row, column, what was expected."""


class GateError(RuntimeError):
    """A fit failed its convergence gate (R-hat, ESS, divergences, E-BFMI) after the stated escalation.

    Attributes
    ----------
    fits : tuple of mapping
        A row of diagnostics for each fit that was tried, where they are known.
    """

    def __init__(self, message: str, fits: Iterable[Mapping[str, Any]] = ()):
        super().__init__(message)
        self.fits = tuple(fits)


class TaskError(RuntimeError):
    """A task of `runner.run` failed. The message is one line with its key; the traceback of its worker is a note.

    The key is missing where a process on this machine died: it is not known then with which task.
    """


class Notice(UserWarning):
    """What a user should know besides; the command line tells it as a line of its own."""


def listed(names: Iterable[object], most: int = 10, longest: int = 60) -> str:
    """Names for a message: the first `most`, each cut to `longest` characters, and how many more there are."""
    texts = [str(name) for name in names]
    shown = [text if len(text) <= longest else f"{text[: longest - 3]}..." for text in texts[:most]]
    return ", ".join(shown) + (f" and {len(texts) - most} more" if len(texts) > most else "")
