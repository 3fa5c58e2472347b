"""The command line. Errors become one line and an exit code in one place; a command imports what it needs."""

import argparse
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from rooffloor import __version__
from rooffloor.validate.common.errors import GateError, InputError

if TYPE_CHECKING:
    from rooffloor.validate.study.study import Study

DONE, REFUTED, BAD_INPUT, GATE_FAILED, UNDECIDED = range(5)
BUG, INTERRUPTED, PIPE_CLOSED, TERMINATED = 70, 130, 141, 143
LONGEST_LINE = 500
"""Characters of an error; its middle is left out where it is longer."""
LARGEST_COUNT, LARGEST_SEED = 10**9, 2**63 - 1

DEFAULT_STUDY = "transfer-study"
DATA_OPTIONS = ("format", "stack", "mode", "anchor", "configs")  # what describes the file given by --data
MEASURED_OPTIONS = ("model", "format", "stack", "mode")  # likewise of the file given to plan by --measurements
STUDY_FORMATS = ("schema", "argonne", "llama-bench", "optimum-benchmark")  # those that say everything themselves
EXIT_CODES = (
    "exit codes: 0 done, supported or transfers, 1 refuted or does not hold (never from report), 2 bad input, 3 a fit "
    "failed its convergence gate, 4 undecided, not identified or untestable, 70 a bug in rooffloor, 130 interrupted, "
    "143 terminated"
)
CHECK_FILES = ("check.html", "check.json", "cells.csv", "figures/cells.png", "figures/verdict.png")
REPORT_FILES = ("report.html", "report.json", "report.md", "posterior.nc", "posterior.npz", "run.json", "figures/any")
"""What `check` and `report` write into their folder."""
INPUTS = ("study", "data", "config", "configs", "gpu", "measurements", "file", "shorter")
"""Options that may name a file or folder that is read."""
HOLDS = ("config.json", "study.toml", "posterior.npz")
"""What is read of a folder that such an option names."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which cleans up as Ctrl-C does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Bad input (`InputError`) and failed fits (`GateError`) become one line on stderr. Anything else is a bug: it keeps
    its traceback and an exit code that is no verdict.
    """
    _prepare_streams()
    options, unknown = _parser().parse_known_args(arguments)
    if unknown:
        options.parser.error(f"unknown arguments: {' '.join(unknown)}")
    try:
        with _terminable():
            code: int = options.run(options)
    except InputError as error:
        return _say(error, BAD_INPUT)
    except GateError as error:
        return _say(error, GATE_FAILED)
    except Terminated:
        return _say("terminated", TERMINATED)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader has gone (rooffloor table | head)
        _discard_output()
        return PIPE_CLOSED
    except Exception:
        _tell(traceback.format_exc().rstrip("\n"))
        return BUG
    return code


def _prepare_streams() -> None:
    """Streams that were closed (>&-) lead nowhere; a terminal without Greek letters shows them escaped."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM is raised as `Terminated`, so that temporary files go; not in processes that are forked meanwhile."""
    owner = os.getpid()

    def stop(number: int, _: FrameType | None) -> None:
        if os.getpid() == owner:
            raise Terminated
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _say(message: object, code: int) -> int:
    _tell(_line(f"rooffloor: {message}"))
    return code


def _tell(text: str) -> None:
    """Write to stderr, if anything can be written there."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _line(message: str) -> str:
    """A message as one line of bearable length that does nothing to a terminal."""
    text = " ".join(message.split())
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if len(text) <= LONGEST_LINE:
        return text
    end = LONGEST_LINE // 3
    return f"{text[: LONGEST_LINE - end - 5]} ... {text[-end:]}"


def _write(text: str) -> None:
    """Write to stdout; InputError where that is full."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_output()
        raise InputError(f"standard output: cannot be written ({(error.strerror or str(error)).lower()})") from error


def _discard_output() -> None:
    """Python flushes again at exit: let that go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse_overwriting(options: argparse.Namespace, *outputs: Path | None, beside: Sequence[Path] = ()) -> None:
    """InputError where an output is a file that the command reads; `beside` are such files that no option names."""
    from rooffloor.validate.common.files import refuse_overwriting

    read = list(beside)
    for name in INPUTS:
        value = getattr(options, name, None)
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                read += [Path(one), *(Path(one) / held for held in HOLDS)]
    refuse_overwriting([path for path in outputs if path is not None], read)


# The commands ------------------------------------------------------------------------------------------


def _report(options: argparse.Namespace) -> int:
    study = _study(options)
    folder = options.out or Path("reports") / study.name
    from rooffloor.validate.common import files

    _refuse_overwriting(options, *(folder / name for name in REPORT_FILES))
    files.check_writable(folder, REPORT_FILES)
    from rooffloor.validate.common import runner
    from rooffloor.validate.reporting import run as report

    try:
        result = report.run(
            study,
            out=folder,
            seed=options.seed,
            refit=options.refit,
            full=options.full,
            jobs=options.jobs,
            dask=options.dask,
            keep=options.keep,
            quiet=_quiet(options),
        )
    except runner.TaskError as error:
        return _say(error, GATE_FAILED)
    _print(result.data if options.json else result.summary)
    return DONE


def _table(options: argparse.Namespace) -> int:
    study = _study(options)
    from rooffloor.validate.reporting import run as report

    table = report.table(study)
    _print(table.data if options.json else table.summary)
    return DONE


def _test(options: argparse.Namespace) -> int:
    study = _study(options)
    from rooffloor.validate.hypotheses import hypotheses

    result = hypotheses.evaluate(study, options.hypothesis, seed=options.seed, quiet=_quiet(options))
    _print(result.data if options.json else result.summary)
    return {"supported": DONE, "refuted": REFUTED}.get(result.verdict, UNDECIDED)


def _compare(options: argparse.Namespace) -> int:
    study = _study(options)
    if study.data.format == "published":
        raise InputError(f"{study.name} publishes aggregates, no cells: compare needs --data FILE")
    from rooffloor.validate.common import runner
    from rooffloor.validate.comparison import comparison

    try:
        result = comparison.compare(
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
    from rooffloor.validate.common import runner
    from rooffloor.validate.simulation import check
    from rooffloor.validate.simulation import hypotheses as power

    calibrate = check.calibrate if options.check else power.calibrate
    try:
        result = calibrate(
            studies=options.studies,
            seed=options.seed,
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
    from rooffloor.validate.published.imputation import reconstruction

    given = {name: getattr(options, name) for name in ("out", "seed", "per_index", "jobs", "accept")}
    given = {name: value for name, value in given.items() if value is not None}  # the rest are run's defaults
    result = reconstruction.run(**given, quiet=_quiet(options))
    _print(result.data if options.json else result.summary)
    return DONE


def _check(options: argparse.Namespace) -> int:
    from rooffloor.validate.common import files

    if options.out is not None:
        _refuse_overwriting(options, *(options.out / name for name in CHECK_FILES))
        files.check_writable(options.out, CHECK_FILES)
    from rooffloor.validate.transfer import check

    result = check.check(
        options.config,
        options.measurements,
        gpu=options.gpu,
        study=options.study or DEFAULT_STUDY,
        anchor=options.anchor,
        model=options.model,
        klass=options.klass,
        format=options.format,
        stack=options.stack,
        mode=options.mode,
        seed=options.seed,
        quiet=_quiet(options),
    )
    page = None if options.out is None else result.save(options.out)
    _print(result.data if options.json else result.summary)
    if page is not None and not options.json:
        _print(f"Page: {page}")
    return {check.TRANSFERS: DONE, check.UNDECIDED: UNDECIDED}.get(result.verdict, REFUTED)


def _import(options: argparse.Namespace) -> int:
    from rooffloor.validate.common.files import write_text
    from rooffloor.validate.measurements import convert
    from rooffloor.validate.measurements.importers import argonne
    from rooffloor.validate.measurements.importers.source import Given
    from rooffloor.validate.study.study import config_files

    beside = [] if options.configs is None else list(config_files(options.configs).values())
    beside += filter(None, [argonne.ttft_file(options.file.parent)])
    _refuse_overwriting(options, options.out, beside=beside)
    given = Given(**{name: getattr(options, name) for name in Given.__dataclass_fields__})
    result = convert.run(
        options.file, options.format, *convert.known(options.format, given, options.config, options.configs)
    )
    if options.out is not None:
        write_text(options.out, result.csv)
    if options.json:
        _print(result.data)
    elif options.out is not None:
        _print(result.summary)
    else:
        _write(result.csv)
        _tell(result.summary)
    return DONE


def _predict(options: argparse.Namespace) -> int:
    from rooffloor.validate.common.files import write_bytes, write_text
    from rooffloor.validate.transfer.prediction import predict

    if options.out is not None and options.out.suffix != ".csv":
        raise InputError(f"--out {options.out}: expected the name of a .csv file")
    if options.figure is not None and options.figure.suffix not in (".png", ".svg"):
        raise InputError(f"--figure {options.figure}: expected the name of a .png or .svg file")
    _refuse_overwriting(options, options.out, options.figure)
    result = predict.predict(
        options.config,
        options.gpu,
        predict.parse_axis(options.batch, "batch", 1),
        predict.parse_axis(options.context, "context", 0),
        posterior=options.study or DEFAULT_STUDY,
        klass=options.klass,
        seed=options.seed,
        stack=options.stack or "",
        mode=options.mode or "",
    )
    step = predict.MEAN if options.mean else predict.MEASURED
    if options.out is not None:
        write_text(options.out, result.csv())
    if options.figure is not None:
        from rooffloor.validate.presentation.writers import image

        write_bytes(options.figure, image(result.figure(step), options.figure.suffix[1:]))
    _print(result.data if options.json else result.text(step))
    return DONE


def _plan(options: argparse.Namespace) -> int:
    from rooffloor.validate.common.files import write_text
    from rooffloor.validate.fitting import saved
    from rooffloor.validate.measurements import given_specs
    from rooffloor.validate.transfer.plan import plan
    from rooffloor.validate.transfer.prediction import predict

    if options.out is not None and options.out.suffix != ".csv":
        raise InputError(f"--out {options.out}: expected the name of a .csv file")
    _refuse_overwriting(options, options.out)
    shapes, gpus = given_specs.read_shapes(options.config), [given_specs.read_gpu(gpu) for gpu in options.gpu]
    axes = {
        name: predict.parse_axis(getattr(options, name), name, 1).astype(int).tolist()
        for name in ("batches", "contexts")
        if getattr(options, name) is not None
    }
    measured = options.measurements
    about = {name: given for name in MEASURED_OPTIONS if (given := getattr(options, name)) is not None}
    if about and measured is None:
        raise InputError(f"{', '.join(f'--{name}' for name in about)}: only with --measurements FILE")
    result = plan.plan(
        shapes,
        gpus,
        options.budget,
        calibration=saved.load(options.study or DEFAULT_STUDY),
        goal=options.goal,
        width=options.width,
        measured=() if measured is None else plan.read_measured(measured, shapes, gpus, **about),
        noise=options.noise,
        repeats=options.repeats,
        seed=options.seed,
        **axes,
    )
    if options.out is not None:
        write_text(options.out, result.to_csv())
    _print(result.data if options.json else result.summary)
    return DONE


def _study(options: argparse.Namespace) -> "Study":
    from rooffloor.validate.study.study import Study

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
    from rooffloor.validate.common.files import json_dumps

    _write(f"{result}\n" if isinstance(result, str) else json_dumps(result))


# The arguments ------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as everything else does."""

    def error(self, message: str) -> NoReturn:
        _tell(_line(f"{self.prog}: {message}; see --help"))
        sys.exit(BAD_INPUT)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rooffloor",
        description="Does a decode-latency model transfer to another model family or GPU?",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rooffloor {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: object, does: str, seed: int | str = 1) -> argparse.ArgumentParser:
        """A command; `seed` is the default, or says in words whose it is where that is decided later."""
        added = commands.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.", allow_abbrev=False)
        added.set_defaults(run=run, parser=added)
        added.add_argument("--json", action="store_true", help="print JSON instead of text")
        added.add_argument(
            "--seed",
            type=_seed,
            metavar="N",
            default=None if isinstance(seed, str) else seed,
            help=f"seed of every random draw (default: {seed})",
        )
        added.add_argument("--quiet", action="store_true", help="no progress bars (they show on a terminal only)")
        return added

    own = "the study's"
    report = command("report", _report, "run the main job on a study and write its report", own)
    _add_study(report)
    report.add_argument("--out", type=_path, metavar="DIR", help="where the report goes (default: reports/STUDY)")
    report.add_argument("--refit", action="store_true", help="recompute every fit, use no cached posterior")
    report.add_argument(
        "--full", action="store_true", help="measured cells: also the refits without each model, GPU, pair (long)"
    )
    _add_runner(report)

    _add_study(command("table", _table, "print the two-number table: MAPE without and with the anchor's floor", own))

    test = command("test", _test, "test one hypothesis; the exit code is the verdict", own)
    test.add_argument("hypothesis", type=str.upper, choices=["H1", "H2", "H3"], metavar="H1|H2|H3", help="which")
    _add_study(test)

    compare = command("compare", _compare, "which floor structure do measured cells support?", own)
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
        help="simulated, at the margin of H1, half elsewhere (default: 1000); with --check of each truth and design",
    )
    calibrate.add_argument("--check", action="store_true", help="error rates of check instead of those of the tests")
    calibrate.add_argument("--out", type=_path, metavar="FILE", help="write the table there, as CSV")
    _add_runner(calibrate)

    reconstruct = command(
        "reconstruct",
        _reconstruct,
        "impute whole grids from the study's published aggregates",
        "that of the committed grids",
    )
    reconstruct.add_argument(
        "--out", type=_path, metavar="DIR", help="where the grids go (default: reports/reconstruction)"
    )
    reconstruct.add_argument("--per-index", type=_positive, metavar="N", help="grids per index of an imputation")
    reconstruct.add_argument(
        "--accept", type=_positive, metavar="N", help="also reconstruct N simulated studies and report coverage"
    )
    reconstruct.add_argument("--jobs", type=_positive, metavar="N", help="processes (default: one per core)")

    _add_check(command("check", _check, "does the calibration hold for a model family? The exit code is the verdict"))
    _add_import(command("import", _import, "turn another tool's results into measurements that the others read"))

    _add_predict(command("predict", _predict, "predict step time and throughput of a model on a GPU, with intervals"))
    _add_plan(command("plan", _plan, "say which cells of a new model to measure next"))
    return parser


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config",
        type=_given,
        required=True,
        metavar="MODEL",
        help="name in the catalog, a config.json, its folder or a TOML file",
    )


def _add_gpus(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--gpu",
        type=_given,
        action="append",
        required=True,
        metavar="GPU",
        help="name, or a TOML file; may be repeated",
    )


def _add_class(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--class",
        dest="klass",
        type=_text,
        metavar="NAME",
        help="class whose floors the model shares (default: by its size)",
    )


def _add_draws(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--study",
        type=_given,
        metavar="STUDY",
        help=f"whose saved draws: a name, a posterior.npz, or a report's folder (default: {DEFAULT_STUDY})",
    )


def _add_check(command: argparse.ArgumentParser) -> None:
    from rooffloor.validate.measurements.importers import FORMATS

    _add_config(command)
    command.add_argument(
        "--measurements",
        required=True,
        type=_path,
        metavar="FILE",
        help="measured cells: batch, context, step_ms; model and gpu where --config and --gpu do not say them",
    )
    command.add_argument(
        "--gpu", type=_given, metavar="GPU", help="name or TOML file: the GPU of FILE, or which of its rows to use"
    )
    command.add_argument("--model", type=_text, metavar="NAME", help="what FILE calls the model (default: as --config)")
    _add_class(command)
    calibration = command.add_mutually_exclusive_group()
    calibration.add_argument(
        "--study",
        type=_given,
        metavar="STUDY",
        help=f"calibration: a study, a posterior.npz, or a report's folder (default: {DEFAULT_STUDY})",
    )
    calibration.add_argument(
        "--anchor", type=_text, metavar="MODEL", help="calibrate on this model's rows of FILE instead"
    )
    command.add_argument("--format", choices=["schema", *FORMATS], default="schema", help="of FILE (default: schema)")
    command.add_argument("--stack", type=_text, help="use the rows of this serving stack")
    command.add_argument("--mode", type=_text, help="use the rows of this mode: eager, graph")
    command.add_argument("--out", type=_path, metavar="DIR", help="write check.html, check.json and cells.csv there")


def _add_plan(command: argparse.ArgumentParser) -> None:
    from rooffloor.validate.measurements.importers import FORMATS

    _add_config(command)
    _add_gpus(command)
    command.add_argument(
        "--budget",
        type=_positive,
        metavar="N",
        help="cells to measure, 60 at most (shape: 30, overlap: 12; default: what --width needs)",
    )
    command.add_argument(
        "--goal",
        type=_text,
        default="floor",
        metavar="floor|shape|overlap",
        help="narrow the floor (default), tell it from an error of T_gpu's shape, or tell added from overlapped floors",
    )
    command.add_argument(
        "--width",
        type=float,
        metavar="X",
        help="also say how many cells a 90 %% interval of +-X needs: ms (floor) or a relative error (shape)",
    )
    command.add_argument("--batches", metavar="N[,N...]", help="of the cells to choose from (default: 1,2,4,8,16)")
    command.add_argument("--contexts", metavar="N[,N...]", help="likewise (default: 512,1024,2048,4096,8192)")
    command.add_argument(
        "--measurements", type=_path, metavar="FILE", help="cells of the model that are in hand, as for check"
    )
    command.add_argument("--model", type=_text, metavar="NAME", help="what FILE calls the model (default: as --config)")
    command.add_argument("--format", choices=["schema", *FORMATS], help="of FILE (default: schema)")
    command.add_argument("--stack", type=_text, help="use the rows of this serving stack")
    command.add_argument("--mode", type=_text, help="use the rows of this mode: eager, graph")
    _add_draws(command)
    command.add_argument("--noise", type=float, metavar="X", help="relative sd of a step (default: the calibration's)")
    command.add_argument("--repeats", action="store_true", help="a cell may be measured more than once")
    command.add_argument("--out", type=_path, metavar="FILE.csv", help="write the cells there")


def _add_predict(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config",
        type=_given,
        action="append",
        required=True,
        metavar="MODEL",
        help="name in the catalog, a config.json, a folder of them, or a TOML file; may be repeated",
    )
    _add_gpus(command)
    axes = "numbers, lists (1,4,16) and ranges, START:STOP:STEP (512:8192:512) or START:STOP:FACTORx (1:64:2x)"
    command.add_argument(
        "--batch", default="1,4,16", metavar="N[,N...]", help=f"sequences in the step: {axes}; default: 1,4,16"
    )
    command.add_argument(
        "--context",
        default="512,2048,8192",
        metavar="N[,N...]",
        help="tokens in the cache of each, written alike; default: 512,2048,8192",
    )
    _add_draws(command)
    _add_class(command)
    command.add_argument(
        "--stack", type=_text, help="what will serve the model, to be told where the calibration is another's"
    )
    command.add_argument("--mode", choices=["eager", "graph"], help="how it will launch kernels, likewise")
    command.add_argument(
        "--mean", action="store_true", help="show the mean step instead of the step that a measurement would show"
    )
    command.add_argument("--out", type=_path, metavar="FILE.csv", help="write every number there")
    command.add_argument("--figure", type=_path, metavar="FILE", help="draw curves with bands there: .png or .svg")


def _add_import(command: argparse.ArgumentParser) -> None:
    from rooffloor.validate.measurements.importers import FORMATS

    said = command.add_argument_group("what the file does not say")
    command.add_argument(
        "format", choices=list(FORMATS), metavar="FORMAT", help="; ".join(f"{k}: {v.what}" for k, v in FORMATS.items())
    )
    command.add_argument("file", type=_path, metavar="FILE", help="the tool's result file")
    command.add_argument("--out", type=_path, metavar="FILE", help="write the CSV there (default: print it)")
    command.add_argument("--configs", type=_path, metavar="DIR", help="folder of config.json files of models in FILE")
    said.add_argument(
        "--config", type=_given, metavar="MODEL", help="the model, by its config.json (--model then names it)"
    )
    said.add_argument("--model", type=_text, metavar="NAME", help="the model, by a name of the catalog or of --configs")
    said.add_argument("--gpu", type=_given, metavar="NAME", help="the GPU, by a name of the catalog")
    said.add_argument("--batch", type=_positive, metavar="N", help="sequences in the batch")
    said.add_argument("--input-len", type=_positive, metavar="N", help="tokens of each prompt")
    said.add_argument("--output-len", type=_positive, metavar="N", help="tokens generated for each")
    said.add_argument("--stack", type=_text, help="the serving stack; of a file that mixes several, the one to use")
    said.add_argument("--stack-version", type=_text, metavar="VERSION", help="its version")
    said.add_argument("--mode", choices=["eager", "graph", "unknown"], help="how kernels were launched")
    said.add_argument("--dtype", type=_text, help="type of the weights")
    said.add_argument("--shorter", type=_path, metavar="FILE", help="vllm-latency: the same cell, fewer output tokens")
    said.add_argument("--shorter-output-len", type=_positive, metavar="N", help="tokens generated for each there")


def _add_study(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "study", nargs="?", type=_given, metavar="STUDY", help=f"name or study.toml (default: {DEFAULT_STUDY})"
    )
    data = command.add_argument_group("measurements instead of a study")
    data.add_argument("--data", type=_path, metavar="FILE", help="measured cells; margins are then defaults")
    data.add_argument("--format", choices=STUDY_FORMATS, help="of FILE (default: schema)")
    data.add_argument("--stack", type=_text, help="use the rows of this serving stack")
    data.add_argument("--mode", type=_text, help="use the rows of this mode: eager, graph")
    data.add_argument("--anchor", type=_text, metavar="MODEL", help="the model on which constants are calibrated")
    data.add_argument(
        "--configs", type=_path, metavar="DIR", help="folder of Hugging Face config.json files of models in FILE"
    )


def _add_runner(command: argparse.ArgumentParser) -> None:
    command.add_argument("--jobs", type=_positive, metavar="N", help="processes (default: one per core)")
    command.add_argument(
        "--dask", type=_text, metavar="ADDRESS", help="use the Dask cluster with this scheduler instead"
    )
    command.add_argument(
        "--keep", type=_path, metavar="DIR", help="keep finished work there: an interrupted run resumes"
    )


def _path(text: str) -> Path:
    return Path(_given(text))


def _given(text: str) -> str:
    """A name of a file, folder or thing."""
    if not text.strip():
        raise argparse.ArgumentTypeError("expected a name, found nothing")
    return text


def _text(text: str) -> str:
    """A name that is told on: no bytes that are no text."""
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        raise argparse.ArgumentTypeError(f"expected text in UTF-8, found {text!r}")
    return _given(text)


def _seed(text: str) -> int:
    return _integer(text, 0, LARGEST_SEED)


def _positive(text: str) -> int:
    return _integer(text, 1, LARGEST_COUNT)


def _integer(text: str, least: int, most: int) -> int:
    if not text.isdecimal() or len(text) > len(str(most)) or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, found {text[:40]!r}")
    return int(text)
