"""A run that is told to end does so within seconds, whatever is on the stack, and leaves nothing half-written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
START = """
import ctypes, os, signal, sys, threading, time
from pathlib import Path
from rooffloor.validate.cli import main
from rooffloor.validate.common import ending, files, runner
ending.GRACE_S = {number: 0.5 for number in ending.GRACE_S}
here = Path(sys.argv.pop())
def ready():
    (here / "ready").touch()
def table(options):
    with files.folder(here / "out") as folder:
        files.write_text(folder / "half", "x")
        WORK
    return 0
def swallowed():
    callback = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: time.sleep(0.05) or 0)
    ready()
    while True:  # as a compiler that calls back: what its callback raises is printed and forgotten
        callback()
def caught():
    ready()
    while True:
        try:
            time.sleep(0.05)
        except BaseException:
            pass
def in_c():
    ready()
    ctypes.CDLL(None).sleep(60)
def other_threads():
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(2) as pool:
        pool.map(time.sleep, [60, 60])
        ready()
def workers():
    def told(n):
        (here / f"worker-{os.getpid()}").touch()
        if len(list(here.glob("worker-*"))) == 2:
            ready()
        ctypes.CDLL(None).sleep(60)
        return {"n": n}
    runner.run(told, [1, 2], keys=["1", "2"], jobs=2)
def at_once():
    ready()
    time.sleep(60)
main.COMMANDS["table"].run = table
sys.argv = ["rooffloor", "table"]
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main.main())
"""


def started(folder: Path, work: str) -> subprocess.Popen[str]:
    """The command, once it is at work."""
    code = START.replace("WORK", work)
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    run = [sys.executable, "-c", code, str(folder)]
    process = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    wait_for(lambda: (folder / "ready").exists() or process.poll() is not None)
    time.sleep(0.1)
    return process


def wait_for(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


ENDS = {signal.SIGTERM: (143, "rooffloor: terminated\n"), signal.SIGINT: (130, "rooffloor: interrupted\n")}


@pytest.mark.parametrize("number", ENDS, ids=lambda number: number.name)
@pytest.mark.parametrize("work", ["at_once()", "swallowed()", "caught()", "in_c()", "other_threads()", "workers()"])
def test_a_signal_ends_the_run_within_seconds_in_one_line(tmp_path, work, number):
    process = started(tmp_path, work)
    began = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - began < 5
    assert (process.returncode, out, err) == (ENDS[number][0], "", ENDS[number][1])
    pids = [int(file.name.removeprefix("worker-")) for file in tmp_path.glob("worker-*")]
    assert len(pids) == (2 if "workers" in work else 0)
    for pid in pids:  # workers do not outlive it by much
        wait_for(lambda pid=pid: not alive(pid), 5)
        (tmp_path / f"worker-{pid}").unlink()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ready"]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_end_with_a_run_that_is_killed(tmp_path):
    process = started(tmp_path, "workers()")
    wait_for(lambda: len(list(tmp_path.glob("worker-*"))) == 2)
    process.kill()
    process.communicate(timeout=20)
    for pid in [int(file.name.removeprefix("worker-")) for file in tmp_path.glob("worker-*")]:
        wait_for(lambda pid=pid: not alive(pid), 5)


def test_files_that_move_to_their_places_do_so_before_the_end(tmp_path):
    """The old and the new are never mixed."""
    (tmp_path / "out").mkdir()
    for n in range(20):
        (tmp_path / "out" / f"{n:02}").write_text("old")
    work = """
        replace = Path.replace
        def slowly(self, target):
            if str(target).startswith(str(here / "out")):
                (here / "ready").touch()
                time.sleep(0.05)
            return replace(self, target)
        for n in range(20): files.write_text(folder / f"{n:02}", "new")
        (folder / "half").unlink()
        Path.replace = slowly"""
    process = started(tmp_path, work)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (143, "", "rooffloor: terminated\n")
    assert {file.name: file.read_text() for file in (tmp_path / "out").iterdir()} == {
        f"{n:02}": "new" for n in range(20)
    }


def test_an_ignored_signal_stays_ignored(tmp_path):
    code = START.replace("WORK", "ready(); time.sleep(0.5)").replace(
        "signal.signal(signal.SIGINT, signal.default_int_handler)", "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.PIPE, text=True, env=env)
    wait_for((tmp_path / "ready").exists)
    process.send_signal(signal.SIGINT)
    assert (process.communicate(timeout=20)[1], process.returncode) == ("", 0)
    assert (tmp_path / "out" / "half").exists()
