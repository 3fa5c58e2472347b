"""The command line: from arguments to a command, and from its errors to one line and an exit code."""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from rooffloor import __version__
from rooffloor.validate.cli import options as shared
from rooffloor.validate.cli import streams
from rooffloor.validate.cli.commands import (
    calibrate,
    check,
    compare,
    import_,
    kernels,
    plan,
    predict,
    reconstruct,
    report,
    table,
    test,
)
from rooffloor.validate.common import ending, errors

COMMANDS = {
    module.__name__.rpartition(".")[2].rstrip("_"): module
    for module in (report, table, test, compare, calibrate, reconstruct, check, import_, kernels, predict, plan)
}
EXIT_CODES = (
    "exit codes: 0 done, supported or transfers, 1 refuted or does not hold (never from report), 2 bad input, 3 a fit "
    "failed its convergence gate, 4 undecided, not identified or untestable, 70 a bug in rooffloor, 130 interrupted, "
    "143 terminated"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Bad input (`InputError`) and failed fits (`GateError`, `TaskError`) become one line on stderr. Anything else is a
    bug: it keeps its traceback and an exit code that is no verdict.
    """
    streams.prepare()
    options, unknown = _parser().parse_known_args(arguments)
    if unknown:
        options.parser.error(f"unknown arguments: {' '.join(unknown)}")
    options.silent = options.quiet
    options.quiet |= "CI" in os.environ or not sys.stderr.isatty()
    try:
        os.getcwd()
    except OSError:
        return _say("the folder that this command was started in is gone; change to another one", errors.BAD_INPUT)
    if arguments is None:
        streams.hush_libraries()
    try:
        with ending.on_signals(for_good=arguments is None):
            code: int = options.run(options)
    except errors.InputError as error:
        return _say(error, errors.BAD_INPUT)
    except (errors.GateError, errors.TaskError) as error:
        return _say(error, errors.GATE_FAILED)
    except KeyboardInterrupt as error:
        return _say(*next((said, code) for one, said, code in ending.ENDS.values() if isinstance(error, one)))
    except BrokenPipeError:  # the reader has gone (rooffloor table | head)
        streams.discard_output()
        return errors.PIPE_CLOSED
    except Exception:
        streams.tell(traceback.format_exc().rstrip("\n"))
        return errors.BUG
    return code


def _say(message: object, code: int) -> int:
    streams.tell(streams.one_line(f"rooffloor: {message}"))
    return code


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as everything else does."""

    def error(self, message: str) -> NoReturn:
        streams.tell(streams.one_line(f"{self.prog}: {message}; see --help"))
        sys.exit(errors.BAD_INPUT)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rooffloor",
        description="Does a decode-latency model transfer to another model family or GPU?",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rooffloor {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        does = command.DOES
        added = commands.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.", allow_abbrev=False)
        added.set_defaults(run=command.run, parser=added)
        shared.add_common(added, command.SEED)
        command.add_options(added)
    return parser
