"""Errors that the command line turns into one line and an exit code."""


class InputError(ValueError):
    """Input that cannot be used. The message is one line: file, row, column, what was expected."""


class GateError(RuntimeError):
    """A fit failed its convergence gate (R-hat, ESS, divergences, E-BFMI) after the stated escalation."""
