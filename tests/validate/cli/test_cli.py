"""The shell: arguments, exit codes, one-line errors. What the commands compute is tested elsewhere."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

import rooffloor as rf
from rooffloor.validate.cli import main, streams
from rooffloor.validate.common import runner as runner_module
from rooffloor.validate.common.errors import GateError, InputError, TaskError
from rooffloor.validate.fitting import reconstruct
from rooffloor.validate.reporting import run as reporting
from rooffloor.validate.simulation import hypotheses

HEAVY = ("numpy", "pandas", "scipy", "xarray", "arviz", "pymc", "pytensor", "pandera", "matplotlib", "numba")


MAIN = """
from rooffloor.validate.cli import main
sys.exit(main.main())
"""


@dataclass(frozen=True)
class MeasuredFit:
    """What the command looks at of a fit to measured cells."""

    measurements: str = "cells"
    warnings: tuple[str, ...] = ("of the data",)


@dataclass
class Spy:
    """Stands for one function that a command calls: remembers its arguments, returns or raises."""

    answer: object
    calls: list[tuple[tuple, dict]] = field(default_factory=list)

    def __call__(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def answer(verdict="supported"):
    said = {"text": "all is well", "summary": "all is well", "data": {"status": "ok", "mape": float("nan")}}
    return SimpleNamespace(**said, verdict=verdict)


@pytest.fixture
def spies(monkeypatch, tmp_path):
    """Fakes for the computing behind every command; works in an empty folder."""
    fakes = SimpleNamespace(
        load=Spy(SimpleNamespace(name="a-study", data=SimpleNamespace(format="published"))),
        fit=Spy(SimpleNamespace(measurements=None, instead="")),
        **{name: Spy(answer()) for name in ("compare_floors", "report", "table", "test", "impute")},
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rf.Study, "load", fakes.load)
    for name in ("fit", "compare_floors", "report", "test"):
        monkeypatch.setattr(rf, name, getattr(fakes, name))
    monkeypatch.setattr(reporting, "table", fakes.table)
    monkeypatch.setattr(reconstruct, "run", fakes.impute)
    return fakes


def shell(code: str, *arguments: str, stdout: int = subprocess.PIPE, **env: str):
    """One Python process of its own that runs `code` with these arguments."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )


TABLE = """
from types import SimpleNamespace
from rooffloor.validate.cli import main, streams
def table(options):
    streams.show({text})
    return 0
main.COMMANDS["table"] = SimpleNamespace(DOES="shows", SEED=1, add_options=lambda command: None, run=table)
sys.exit(main.main())
"""


def test_help_lists_the_commands_and_exit_codes_and_loads_nothing_heavy():
    code = f"""
import atexit
from rooffloor.validate.cli.main import main
atexit.register(lambda: print("LOADED", sorted(set(sys.modules) & set({HEAVY!r}))))
atexit.register(lambda: print(*(name for name in sys.modules if name.startswith("rooffloor."))))
main()
"""
    done = shell(code, "--help")
    assert done.returncode == 0
    *_, ours, heavy = done.stdout.splitlines()
    assert heavy == "LOADED []"
    beside = {name for name in ours.split() if "cli" not in name.split(".")}
    rooms = {"rooffloor.validate", "rooffloor.validate.common", "rooffloor.validate.measurements"}
    light = {f"rooffloor.validate.{name}" for name in ("common.ending", "common.errors", "measurements.importers")}
    assert beside - rooms == light
    for word in ("report", "table", "test", "reconstruct", "exit codes", "130 interrupted"):
        assert word in done.stdout


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"rooffloor {rf.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["frobnicate"],
        ["report", "--format", "excel"],
        ["report", "--seed", "-1"],
        ["report", "--seed", "1.5"],
        ["report", "--se", "1"],
        ["report", "--seed", "9" * 5000],
        ["report", ""],
        ["report", "--out", ""],
        ["report", "--data", " "],
        ["report", "--anchor", "\udcff"],
        ["report", "--jobs", "0"],
        ["report", "--jobs", "9" * 20],
        ["report", "--dask"],
        ["table", "--full"],
        ["reconstruct", "--jobs", "0"],
        ["reconstruct", "--per-index", "many"],
        ["test"],
        ["test", "H4"],
    ],
)
def test_wrong_arguments_exit_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main.main(arguments)
    assert stop.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"rooffloor {arguments[0]}: " if arguments and arguments[0] != "frobnicate" else "rooffloor: "
    )
    assert line.endswith("; see --help")


def test_report_runs_the_default_study_into_reports(spies, capsys):
    assert main.main(["report"]) == 0
    assert spies.load.calls == [(("transfer-study",), {})]
    given = {"seed": None, "refit": False, "jobs": None, "folder": None, "quiet": True}
    [(args, kwargs)] = spies.fit.calls
    assert kwargs.pop("tell") is not None
    assert (args, kwargs) == ((spies.load.answer,), given)
    assert spies.compare_floors.calls == []
    assert spies.report.calls == [((spies.fit.answer,), {"floors": None, "out": Path("reports/a-study")})]
    assert capsys.readouterr().out == "all is well\n"
    assert list(Path().iterdir()) == []  # looking whether it can be written leaves nothing behind


def test_report_hands_on_its_options(spies):
    assert main.main(["report", "my.toml", "--out", "here", "--seed", "7", "--refit", "--jobs", "3", "--quiet"]) == 0
    assert spies.load.calls == [(("my.toml",), {})]
    given = {"seed": 7, "refit": True, "jobs": 3, "folder": None, "quiet": True}
    assert {name: value for name, value in spies.fit.calls[0][1].items() if name != "tell"} == given
    assert spies.report.calls[0][1]["out"] == Path("here")


def measured(spies):
    """The fit is one to measured cells."""
    spies.fit.answer = MeasuredFit()
    return spies


def test_a_report_on_measured_cells_compares_floors(spies, monkeypatch):
    measured(spies)
    asked = []
    monkeypatch.setattr(runner_module, "check_scheduler", asked.append)
    runner = ["--dask", "tcp://10.0.0.1:8786", "--jobs", "3", "--keep", "kept"]
    assert main.main(["report"]) == main.main(["report", "--full", "--seed", "7", *runner]) == 0
    given = {"seed": None, "refits": False, "jobs": None, "dask": None, "folder": None, "quiet": True}
    full = {"seed": 7, "refits": True, "jobs": 3, "dask": "tcp://10.0.0.1:8786", "folder": Path("kept"), "quiet": True}
    assert spies.compare_floors.calls == [((spies.load.answer,), given), ((spies.load.answer,), full)]
    assert spies.report.calls[1][1]["floors"] is spies.compare_floors.answer
    assert spies.fit.calls[1][1]["folder"] == Path("kept")
    assert asked == ["tcp://10.0.0.1:8786"]


@pytest.mark.parametrize(
    ("options", "cores", "order"), [([], 2, "beside"), ([], 8, "after"), (["--jobs", "1"], 2, "after")]
)
def test_floors_are_compared_beside_the_fits_where_one_process_has_all_cores(
    spies, monkeypatch, capsys, options, cores, order
):
    spies.load.answer.data = SimpleNamespace(format="schema")
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    compared = threading.Event()

    def compare(*_, **__):
        compared.set()
        return spies.compare_floors.answer

    def fit(*_, tell, **__):
        assert not compared.is_set()  # nothing before the study is known to be usable
        tell("fitting one thing")
        assert compared.wait(10 if order == "beside" else 0) == (order == "beside")
        tell("fitting another")
        return MeasuredFit()

    monkeypatch.setattr(rf, "fit", fit)
    monkeypatch.setattr(rf, "compare_floors", compare)
    assert main.main(["report", "my.toml", *options]) == 0
    assert spies.report.calls[0][1]["floors"] is spies.compare_floors.answer


@pytest.mark.parametrize("error", [TaskError("fit of a structure: out of memory"), GateError("none passed")])
def test_a_comparison_that_failed_is_a_warning_in_the_report(spies, error):
    measured(spies).compare_floors.answer = error
    assert main.main(["report"]) == 0
    [((fit,), kwargs)] = spies.report.calls
    assert kwargs["floors"] is None
    said = f"The comparison of floor structures has no answer and is left out: {error}."
    assert fit.warnings == ("of the data", said)


def test_a_task_that_failed_is_one_line(spies, capsys):
    spies.load.answer.data = SimpleNamespace(format="schema")
    spies.compare_floors.answer = TaskError("fit of a structure: out of memory")
    assert main.main(["compare", "my.toml"]) == 3
    assert capsys.readouterr() == ("", "rooffloor: fit of a structure: out of memory\n")


def test_without_an_answer_the_report_says_what_can_be_said_and_exits_3(spies, capsys, monkeypatch):
    failure = GateError("plain roof, cut: R-hat 1.4 of eta_bw > 1.01", [{"name": "plain roof, cut", "passed": False}])
    spies.fit.answer = failure
    spies.load.answer.data = SimpleNamespace(format="schema")
    unanswered = Spy({"report.html": Path("there/report.html")})
    monkeypatch.setattr(reporting, "report_unanswered", unanswered)
    assert main.main(["report", "--out", "there", "--seed", "4"]) == 3
    assert unanswered.calls == [((spies.load.answer, failure), {"out": Path("there"), "seed": 4})]
    said = "plain roof, cut: R-hat 1.4 of eta_bw > 1.01; what can still be said: there/report.html"
    assert capsys.readouterr() == ("", f"rooffloor: {said}\n")
    assert spies.report.calls == spies.compare_floors.calls == []


def test_stages_are_lines_off_a_terminal_and_told_again(spies, capsys, monkeypatch):
    monkeypatch.setattr(streams, "EVERY_S", 0.05)

    def fit(study, *, tell, **_):
        tell("fitting the roof")
        time.sleep(0.3)
        return spies.fit.answer

    monkeypatch.setattr(rf, "fit", fit)
    assert main.main(["report"]) == 0
    first, second, *rest = capsys.readouterr().err.splitlines()
    assert first == "rooffloor: fitting the roof"
    assert second == "rooffloor: fitting the roof, for 0 s now"
    assert rest[-1] == "rooffloor: judging and drawing"
    assert main.main(["report", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", [["report"], ["compare", "my.toml"], ["calibrate"]], ids=lambda c: c[0])
def test_a_cluster_that_is_none_is_said_before_anything_runs(spies, capsys, command):
    pytest.importorskip("distributed", reason="needs distributed: pip install 'rooffloor[dask]'")
    spies.load.answer.data = SimpleNamespace(format="schema")
    assert main.main([*command, "--dask", "nonsense"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("rooffloor: nonsense: no Dask scheduler answers (missing port number")
    assert line.count("\n") == 1
    assert spies.fit.calls == spies.compare_floors.calls == []


@pytest.mark.parametrize(
    "command",
    [
        ["reconstruct", "--out", "file"],
        ["calibrate", "--out", "file/x.csv"],
        ["report", "--keep", "file"],
        ["compare", "my.toml", "--keep", "file"],
        ["calibrate", "--keep", "file"],
        ["predict", "--config", "Llama-3.1-8B", "--gpu", "H100", "--out", "file/x.csv"],
        ["predict", "--config", "Llama-3.1-8B", "--gpu", "H100", "--figure", "file/x.svg"],
        ["plan", "--config", "Llama-3.1-8B", "--gpu", "H100", "--out", "file/x.csv"],
    ],
    ids=" ".join,
)
def test_every_output_is_checked_before_the_computing(spies, capsys, monkeypatch, command):
    spies.load.answer.data = SimpleNamespace(format="schema")
    for name in ("predict", "plan"):
        monkeypatch.setattr(rf, name, Spy(AssertionError("must not run")))
    monkeypatch.setattr(hypotheses, "calibrate", Spy(AssertionError("must not run")))
    Path("file").write_text("mine")
    assert main.main(command) == 2
    line = capsys.readouterr().err
    assert "cannot be written (" in line
    assert line.count("\n") == 1
    assert spies.fit.calls == spies.compare_floors.calls == spies.impute.calls == []
    assert (os.listdir(), Path("file").read_text()) == (["file"], "mine")


def test_a_folder_that_is_gone_is_one_line(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    done = shell(f"import os, shutil; os.chdir({str(gone)!r}); shutil.rmtree({str(gone)!r})\n" + MAIN, "table")
    assert done.returncode == 2
    assert done.stderr.startswith("rooffloor: the folder that this command was started in is gone")
    assert done.stderr.count("\n") == 1


def test_other_libraries_keep_silent_and_notices_are_lines():
    code = """
import logging, warnings
from rooffloor.validate.cli import main
from rooffloor.validate.common.errors import Notice
def table(options):
    warnings.warn("constrained_layout not applied", UserWarning)
    logging.getLogger("matplotlib.font_manager").warning("no home")
    warnings.warn("the cluster has no worker yet", Notice)
    return 0
main.COMMANDS["table"].run = table
sys.exit(main.main())
"""
    done = shell(code, "table")
    assert (done.returncode, done.stderr) == (0, "rooffloor: the cluster has no worker yet\n")
    assert "constrained_layout" in shell(code, "table", PYTHONWARNINGS="default").stderr


def test_reconstruct_hands_on_what_is_given(spies):
    assert main.main(["reconstruct"]) == 0
    assert main.main(["reconstruct", "--out", "grids", "--seed", "0", "--per-index", "2", "--jobs", "1"]) == 0
    given = {"out": Path("grids"), "seed": 0, "per_index": 2, "jobs": 1}
    assert [kwargs for _, kwargs in spies.impute.calls] == [{"quiet": True}, {**given, "quiet": True}]


@pytest.mark.parametrize(
    "command", [["report"], ["table"], ["test", "h2"], ["reconstruct"]], ids=lambda command: command[0]
)
def test_json_is_all_that_stdout_holds(spies, capsys, command):
    assert main.main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"status": "ok", "mape": None}


def test_data_options_describe_measurements(spies, monkeypatch):
    from_data = Spy(SimpleNamespace(name="cells"))
    monkeypatch.setattr(rf.Study, "from_data", from_data)
    options = ["--data", "cells.csv", "--format", "argonne", "--stack", "vLLM", "--mode", "graph"]
    assert main.main(["table", *options, "--anchor", "Meta-Llama-3-8B", "--configs", "models"]) == 0
    expected = {"format": "argonne", "stack": "vLLM", "mode": "graph", "anchor": "Meta-Llama-3-8B"}
    expected |= {"configs": Path("models")}
    assert from_data.calls == [((Path("cells.csv"),), expected)]


def test_progress_shows_on_a_terminal_only_and_never_in_ci(spies, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.delenv("CI", raising=False)
    main.main(["report"])
    monkeypatch.setenv("CI", "true")
    main.main(["report"])
    assert [kwargs["quiet"] for _, kwargs in spies.fit.calls] == [False, True]


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        ("supported", 0),
        ("refuted", 1),
        ("undecided", 4),
        ("not identified", 4),
        ("untestable here", 4),
    ],
)
def test_the_exit_code_of_test_is_the_verdict(spies, verdict, code):
    spies.test.answer = answer(verdict)
    assert main.main(["test", "h1"]) == code
    assert spies.test.calls == [((spies.fit.answer, "H1"), {})]
    assert spies.compare_floors.calls == []


def test_a_treatment_that_stands_in_is_told(spies, capsys):
    spies.fit.answer.instead = "The primary treatment has no answer."
    assert main.main(["test", "h1"]) == 0
    assert capsys.readouterr().err == "rooffloor: The primary treatment has no answer.\n"


def test_report_never_exits_1(spies):
    spies.report.answer = answer("refuted")
    assert main.main(["report"]) == 0


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            InputError("cells.csv, row 3: step_ms\n is 40000"),
            2,
            "rooffloor: cells.csv, row 3: step_ms is 40000\n",
        ),
        (GateError("R-hat 1.3 > 1.01"), 3, "rooffloor: R-hat 1.3 > 1.01\n"),
        (KeyboardInterrupt(), 130, "rooffloor: interrupted\n"),
    ],
    ids=["input", "gate", "interrupt"],
)
def test_errors_become_one_line_and_a_code(spies, capsys, error, code, line):
    for spy in (spies.fit, spies.table, spies.impute):
        spy.answer = error
    for command in (["report"], ["table"], ["test", "H1"], ["reconstruct"]):
        assert main.main(command) == code
        out, err = capsys.readouterr()
        assert (out, err) == ("", line)


@pytest.mark.parametrize("error", [ValueError("bug"), KeyError("bug"), RuntimeError("bug"), FileNotFoundError("bug")])
def test_a_bug_keeps_its_traceback_and_is_no_verdict(spies, capsys, error):
    spies.fit.answer = error
    assert main.main(["report"]) == 70
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Traceback")
    assert err.splitlines()[-1].startswith(type(error).__name__)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("a\x1b[2Jb\n c", r"rooffloor: a\x1b[2Jb c"),
        ("\ud800\u202e", r"rooffloor: \ud800\u202e"),
    ],
)
def test_errors_do_nothing_to_a_terminal(spies, capsys, message, line):
    spies.fit.answer = InputError(message)
    assert main.main(["report"]) == 2
    assert capsys.readouterr().err == line + "\n"


def test_long_errors_lose_their_middle(spies, capsys):
    spies.fit.answer = InputError("start " + "x" * 10_000 + " end")
    assert main.main(["report"]) == 2
    err = capsys.readouterr().err
    assert len(err) <= streams.LONGEST_LINE + 1
    assert err.startswith("rooffloor: start")
    assert err.endswith(" end\n")


@pytest.mark.parametrize("command", [["report"], ["table"], ["test", "H1"]], ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "no.csv"], "no.csv: cannot be read (no such file or directory)"),
        (["--data", "folder"], "folder: cannot be read (is a directory)"),
        (["--stack", "vLLM"], "--stack: only with --data FILE"),
        (["--format", "schema", "--anchor", "x"], "--format, --anchor: only with --data FILE"),
        (
            ["study.toml", "--data", "cells.csv"],
            "study.toml: a study brings its own data; give either STUDY or --data FILE",
        ),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(spies, capsys, command, options, message):
    Path("folder").mkdir()
    assert main.main([*command, *options]) == 2
    assert capsys.readouterr() == ("", f"rooffloor: {message}\n")
    assert spies.fit.calls == spies.table.calls == []
    assert os.listdir() == ["folder"]


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_an_unwritable_out_is_said_before_the_computing(spies, capsys, out):
    Path("file").write_text("mine")
    assert main.main(["report", "--out", out]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"rooffloor: {Path(out).absolute()}: cannot be written (")
    assert err.count("\n") == 1
    assert spies.fit.calls == []
    assert Path("file").read_text() == "mine"


def test_a_reader_that_has_gone_is_no_error():
    read, write = os.pipe()
    os.close(read)
    try:
        done = shell(TABLE.format(text="'x' * 1_000_000"), "table", stdout=write)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("closed", ["1", "2", "1 2", "0 1 2"])
def test_closed_streams_are_no_error(closed):
    closing = f"import os\nfor fd in ({closed.replace(' ', ',')},): os.close(fd)\n"
    script = TABLE.format(text=repr("text"))
    run = f"{closing}os.execv(sys.executable, [sys.executable, '-c', {'import sys' + chr(10) + script!r}, 'table'])"
    assert shell(f"import sys\n{run}").returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_stdout_is_one_line():
    with open("/dev/full", "w") as full:
        done = shell(TABLE.format(text="'text'"), "table", stdout=full.fileno())
    assert done.returncode == 2
    assert done.stderr == "rooffloor: standard output: cannot be written (no space left on device)\n"


def test_sigterm_cleans_up_as_an_interrupt_does(tmp_path):
    code = f"""
import os, signal
from rooffloor.validate.cli import main
from rooffloor.validate.common import files
def table(options):
    with files.folder({str(tmp_path)!r} + "/out") as folder:
        files.write_text(folder / "half", "x")
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
main.COMMANDS["table"].run = table
sys.exit(main.main())
"""
    done = shell(code, "table")
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "rooffloor: terminated\n")
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_without_greek_letters_shows_them_escaped():
    done = shell(TABLE.format(text="'η_bw'"), "table", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u03b7_bw\n", "")
