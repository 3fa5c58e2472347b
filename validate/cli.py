"""The command line. Errors become one line and an exit code in one place; a command imports what it needs."""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from validate import __version__
from validate.errors import GateError, InputError

if TYPE_CHECKING:
    from validate.study import Study

DONE, REFUTED, BAD_INPUT, GATE_FAILED, UNDECIDED, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 3, 4, 130, 141

DEFAULT_STUDY = "transfer-study"
DATA_OPTIONS = ("format", "stack", "mode", "anchor", "configs")  # what describes the file given by --data
EXIT_CODES = (
    "exit codes: 0 done or supported, 1 refuted (never from report), 2 bad input, 3 a fit failed its "
    "convergence gate, 4 undecided, not identified or untestable, 130 interrupted"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Bad input (`InputError`) and failed fits (`GateError`) become one line on stderr. Anything else is a bug
    and keeps its traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without Greek letters shows them escaped
            stream.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except InputError as error:
        return _say(error, BAD_INPUT)
    except GateError as error:
        return _say(error, GATE_FAILED)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone (rooffloor table | head). Python flushes again at exit: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return code


def _say(message: object, code: int) -> int:
    print("rooffloor:", " ".join(str(message).split()), file=sys.stderr)
    return code


# The commands ------------------------------------------------------------------------------------------


def _report(options: argparse.Namespace) -> int:
    study = _study(options)
    folder = options.out or Path("reports") / study.name
    from validate import files

    files.check_writable(folder)
    from validate import report, runner

    try:
        result = report.run(
            study,
            out=folder,
            seed=options.seed,
            refit=options.refit,
            full=options.full,
            jobs=options.jobs,
            dask=options.dask,
            quiet=_quiet(options),
        )
    except runner.TaskError as error:
        return _say(error, GATE_FAILED)
    _print(result.data if options.json else result.summary)
    return DONE


def _table(options: argparse.Namespace) -> int:
    study = _study(options)
    from validate import report

    table = report.table(study)
    _print(table.data if options.json else table.summary)
    return DONE


def _test(options: argparse.Namespace) -> int:
    study = _study(options)
    from validate import hypotheses

    result = hypotheses.evaluate(study, options.hypothesis, seed=options.seed, quiet=_quiet(options))
    _print(result.data if options.json else result.summary)
    return {"supported": DONE, "refuted": REFUTED}.get(result.verdict, UNDECIDED)


def _compare(options: argparse.Namespace) -> int:
    study = _study(options)
    if study.data.format == "published":
        raise InputError(f"{study.name} publishes aggregates, no cells: compare needs --data FILE")
    from validate import compare, runner

    try:
        result = compare.compare(
            study,
            seed=options.seed,
            refits=not options.no_refits,
            jobs=options.jobs,
            dask=options.dask,
            folder=options.keep,
            quiet=_quiet(options),
        )
    except runner.TaskError as error:
        return _say(error, GATE_FAILED)
    _print(result.data if options.json else result.summary)
    return DONE


def _calibrate(options: argparse.Namespace) -> int:
    from validate import power, runner

    try:
        result = power.calibrate(
            studies=options.studies,
            seed=1 if options.seed is None else options.seed,
            jobs=options.jobs,
            dask=options.dask,
            folder=options.keep,
            progress=not _quiet(options),
        )
    except runner.TaskError as error:
        return _say(error, GATE_FAILED)
    if options.out is not None:
        result.save(options.out)
    _print(result.data if options.json else result.summary)
    return DONE


def _reconstruct(options: argparse.Namespace) -> int:
    from validate import reconstruction

    given = {name: getattr(options, name) for name in ("out", "seed", "per_index", "jobs", "accept")}
    given = {name: value for name, value in given.items() if value is not None}  # the rest are run's defaults
    result = reconstruction.run(**given, quiet=_quiet(options))
    _print(result.data if options.json else result.summary)
    return DONE


def _study(options: argparse.Namespace) -> "Study":
    from validate.study import Study

    if options.data is None:
        given = [f"--{name}" for name in DATA_OPTIONS if getattr(options, name) is not None]
        if given:
            raise InputError(f"{', '.join(given)}: only with --data FILE")
        return Study.load(options.study or DEFAULT_STUDY)
    if options.study is not None:
        raise InputError(f"{options.study}: a study brings its own data; give either STUDY or --data FILE")
    return Study.from_data(
        options.data,
        format=options.format or "schema",
        stack=options.stack,
        mode=options.mode,
        anchor=options.anchor,
        configs=options.configs,
    )


def _quiet(options: argparse.Namespace) -> bool:
    return options.quiet or "CI" in os.environ or not sys.stderr.isatty()


def _print(result: object) -> None:
    """Text as it is, everything else as JSON."""
    if isinstance(result, str):
        print(result)
        return
    from validate.files import json_dumps

    sys.stdout.write(json_dumps(result))


# The arguments ------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rooffloor",
        description="Does a decode-latency model transfer to another model family or GPU?",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rooffloor {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: object, does: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.", allow_abbrev=False)
        added.set_defaults(run=run, parser=added)
        added.add_argument("--json", action="store_true", help="print JSON instead of text")
        added.add_argument(
            "--seed", type=_natural, metavar="N", help="seed of every random draw (default: the study's)"
        )
        added.add_argument("--quiet", action="store_true", help="no progress bars (they show on a terminal only)")
        return added

    report = command("report", _report, "run the main job on a study and write its report")
    _add_study(report)
    report.add_argument("--out", type=Path, metavar="DIR", help="where the report goes (default: reports/STUDY)")
    report.add_argument("--refit", action="store_true", help="recompute every fit, use no cached posterior")
    report.add_argument(
        "--full", action="store_true", help="measured cells: also the refits without each model, GPU, pair (long)"
    )
    report.add_argument("--jobs", type=_positive, metavar="N", help="fits at a time")
    report.add_argument("--dask", metavar="ADDRESS", help="compare structures on the Dask cluster with this scheduler")

    _add_study(command("table", _table, "print the two-number table: MAPE without and with the anchor's floor"))

    test = command("test", _test, "test one hypothesis; the exit code is the verdict")
    test.add_argument("hypothesis", type=str.upper, choices=["H1", "H2", "H3"], metavar="H1|H2|H3", help="which")
    _add_study(test)

    compare = command("compare", _compare, "which floor structure do measured cells support?")
    _add_study(compare)
    compare.add_argument(
        "--no-refits", action="store_true", help="skip Student-t noise and the refits without each model, GPU, pair"
    )
    _add_runner(compare)

    calibrate = command("calibrate", _calibrate, "how often is each test wrong? size, power and coverage by simulation")
    calibrate.add_argument(
        "--studies",
        type=_positive,
        default=1000,
        metavar="N",
        help="at the margin of H1, half elsewhere (default: 1000)",
    )
    calibrate.add_argument("--out", type=Path, metavar="FILE", help="write the table there, as CSV")
    _add_runner(calibrate)

    reconstruct = command("reconstruct", _reconstruct, "impute whole grids from the study's published aggregates")
    reconstruct.add_argument(
        "--out", type=Path, metavar="DIR", help="where the grids go (default: reports/reconstruction)"
    )
    reconstruct.add_argument("--per-index", type=_positive, metavar="N", help="grids per index of an imputation")
    reconstruct.add_argument(
        "--accept", type=_positive, metavar="N", help="also reconstruct N simulated studies and report coverage"
    )
    reconstruct.add_argument("--jobs", type=_positive, metavar="N", help="processes (default: one per core)")
    return parser


def _add_study(command: argparse.ArgumentParser) -> None:
    command.add_argument("study", nargs="?", metavar="STUDY", help=f"name or study.toml (default: {DEFAULT_STUDY})")
    data = command.add_argument_group("measurements instead of a study")
    data.add_argument("--data", type=Path, metavar="FILE", help="measured cells; margins are then defaults")
    data.add_argument("--format", choices=["schema", "argonne"], help="of FILE (default: schema)")
    data.add_argument("--stack", help="use the rows of this serving stack")
    data.add_argument("--mode", help="use the rows of this mode: eager, graph")
    data.add_argument("--anchor", metavar="MODEL", help="the model on which constants are calibrated")
    data.add_argument(
        "--configs", type=Path, metavar="DIR", help="folder of Hugging Face config.json files of models in FILE"
    )


def _add_runner(command: argparse.ArgumentParser) -> None:
    command.add_argument("--jobs", type=_positive, metavar="N", help="processes (default: one per core)")
    command.add_argument("--dask", metavar="ADDRESS", help="use the Dask cluster with this scheduler instead")
    command.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep finished work there: an interrupted run resumes"
    )


def _natural(text: str) -> int:
    return _integer(text, 0)


def _positive(text: str) -> int:
    return _integer(text, 1)


def _integer(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, found {text!r}")
    return int(text)


if __name__ == "__main__":  # In the checkout only: elsewhere a folder models/ or validate/ would come first.
    sys.exit(main())
