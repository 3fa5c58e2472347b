"""The runner: same results wherever tasks run, kept on disk as they finish, none lost and none doubled."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from rooffloor.validate.common.errors import InputError, TaskError
from rooffloor.validate.common.runner import Result, beside, kept, run

if TYPE_CHECKING:
    import distributed

TASKS = list(range(5))
KEYS = [f"study {n}, seed 7" for n in TASKS]


def simulate(n: int) -> dict[str, object]:
    draws = np.random.default_rng([7, n]).normal(size=(40, 40))
    return {"mean": draws.mean(), "product": draws @ draws.T, "gate": n % 2 == 0, "name": f"study {n}", "steps": [n, 3]}


def count(task: tuple[Path, int]) -> dict[str, object]:
    """`simulate`, leaving one file per call."""
    folder, n = task
    (folder / f"{n}-{time.time_ns()}").touch()
    return simulate(n)


def fail_at_two(task: tuple[Path, int]) -> dict[str, object]:
    """`count`, but task 2 fails; later ones wait for that, so that a slow worker does not fall behind them."""
    folder, n = task
    marker = folder.with_name("failed")
    if n > 2:
        wait_for(marker.exists)
    result = count(task)
    if n == 2:
        marker.touch()
        raise FloatingPointError("R-hat is 1.3")
    time.sleep(0.05)
    return result


def give(result: object) -> object:
    return result


def die_once(task: tuple[Path, int]) -> dict[str, object]:
    """`count`, but the first call of task 1 takes its process with it."""
    folder, n = task
    marker = folder.with_name("died")
    if n == 1 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return count(task)


def die(task: object) -> dict[str, object]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def tell_and_wait(task: tuple[Path, int]) -> dict[str, object]:
    """`count`, saying first in which process, and giving time to kill it."""
    folder, n = task
    folder.with_name(f"pid-{n}-{os.getpid()}").touch()
    time.sleep(0.2)
    return count(task)


def threads(task: object) -> dict[str, object]:
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_info

    return {"threads": [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]}


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    folder = tmp_path / "calls"
    folder.mkdir()
    return folder


def called(calls: Path) -> list[int]:
    return sorted(int(file.name.split("-")[0]) for file in calls.iterdir())


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def same(found: list[Result], expected: list[Result]) -> bool:
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], strict=True)
            assert one[name].flags.writeable
    return True


@pytest.fixture(scope="module")
def expected() -> list[Result]:
    return run(simulate, TASKS, keys=KEYS, jobs=1)


def test_results_are_arrays_in_the_order_of_the_tasks(expected):
    assert [str(result["name"]) for result in expected] == [f"study {n}" for n in TASKS]
    kinds = {name: (array.dtype.kind, array.shape) for name, array in expected[3].items()}
    assert kinds == {
        "mean": ("f", ()),
        "product": ("f", (40, 40)),
        "gate": ("b", ()),
        "name": ("U", ()),
        "steps": ("i", (2,)),
    }


def test_results_do_not_depend_on_the_number_of_jobs_or_on_the_disk(expected, tmp_path, capsys):
    assert same(run(simulate, TASKS, keys=KEYS, jobs=2, folder=tmp_path, progress=True, desc="studies"), expected)
    assert "studies: 100%" in capsys.readouterr().err
    assert len(files(tmp_path)) == len(TASKS)
    assert same(run(simulate, TASKS, keys=KEYS, folder=tmp_path), expected)


def test_every_task_has_one_blas_thread():
    for jobs in (1, 2):
        for result in run(threads, [0, 1], keys=["a", "b"], jobs=jobs):
            assert set(result["threads"].tolist()) == {1}


def test_what_is_on_disk_is_not_run_again(expected, calls, tmp_path):
    tasks, kept = [(calls, n) for n in TASKS], tmp_path / "kept"
    run(count, tasks[:3], keys=KEYS[:3], folder=kept, jobs=1)
    assert same(run(count, tasks[::-1], keys=KEYS[::-1], folder=kept, jobs=1), expected[::-1])
    assert called(calls) == TASKS


@pytest.mark.parametrize("damage", ["cut short", "one bit", "empty", "another key's"])
def test_a_damaged_file_is_made_anew(expected, calls, tmp_path, damage):
    tasks, kept = [(calls, n) for n in TASKS[:2]], tmp_path / "kept"
    run(count, tasks, keys=KEYS[:2], folder=kept, jobs=1)
    first, second = files(kept)
    whole = first.read_bytes()
    middle = len(whole) // 2
    first.write_bytes(
        {
            "cut short": whole[:middle],
            "one bit": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "empty": b"",
            "another key's": second.read_bytes(),
        }[damage]
    )
    assert same(run(count, tasks, keys=KEYS[:2], folder=kept, jobs=1), expected[:2])
    assert len(called(calls)) == 3
    assert first.read_bytes() == whole


@pytest.mark.parametrize("keys", [["a", "a"], ["a"], ["a", "b", "c"]])
def test_keys_are_one_per_task_and_different(keys):
    with pytest.raises(ValueError, match="2 tasks need as many different keys"):
        run(simulate, [0, 1], keys=keys)


def test_no_tasks_no_results(tmp_path):
    assert run(simulate, [], keys=[], folder=tmp_path) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failure_names_its_key_and_what_ran_is_kept(expected, calls, tmp_path, jobs):
    tasks, kept = [(calls, n) for n in range(40)], tmp_path / "kept"
    keys = [f"task {n}" for n in range(40)]
    with pytest.raises(TaskError, match="R-hat") as caught:
        run(fail_at_two, tasks, keys=keys, folder=kept, jobs=jobs)
    assert str(caught.value) == "task 2: FloatingPointError: R-hat is 1.3"
    assert "in fail_at_two" in caught.value.__notes__[0]
    ran = called(calls)
    assert len(ran) < 30
    assert len(files(kept)) == len(ran) - 1
    assert same(run(count, tasks[:5], keys=keys[:5], folder=kept, jobs=1), expected)
    assert sorted(set(called(calls))) == sorted({*ran, *TASKS})
    assert len(called(calls)) == len({*ran, *TASKS}) + 1


def test_a_process_that_dies_on_this_machine_is_one_line_and_no_obstacle_to_the_next_run(expected):
    with pytest.raises(TaskError, match="a worker process died"):
        run(die, TASKS, keys=KEYS, jobs=2)
    assert same(run(simulate, TASKS, keys=KEYS, jobs=2), expected)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1.0], "mapping of names to arrays, not list"),
        ({"fit": None}, "'fit' is no array .*: object"),
        ({"two words": 1.0}, "identifier, not 'two words'"),
        ({"ragged": [[1], [1, 2]]}, "ValueError"),
    ],
)
def test_a_result_that_no_file_holds_is_refused(result, message):
    with pytest.raises(TaskError, match=f"^the key: .*{message}"):
        run(give, [result], keys=["the key"])


def test_a_name_may_be_a_word_of_numpy(tmp_path):
    result = {"file": 1, "allow_pickle": 2, "written": "mine"}
    for _ in range(2):
        (found,) = run(give, [result], keys=["one"], folder=tmp_path)
        assert {name: array.item() for name, array in found.items()} == result


def test_a_folder_that_cannot_be_written_is_said_before_anything_runs(calls, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        run(count, [(calls, 0)], keys=["a"], folder=tmp_path / "file")
    assert called(calls) == []


INTERRUPTED = """
import signal
from pathlib import Path
from test_runner import tell_and_wait
from rooffloor.validate.common.runner import run
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
tasks = [(Path("{calls}"), n) for n in range(80)]
run(tell_and_wait, tasks, keys=[str(n) for n in range(80)], folder=Path("{kept}"), jobs=2)
"""


def test_an_interrupted_run_resumes(calls, tmp_path):
    numbers, keys, kept = range(80), [str(n) for n in range(80)], tmp_path / "kept"
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[3])])
    driver = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED.format(calls=calls, kept=kept)],
        env=os.environ | {"PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: len(list(kept.glob("*.npz"))) >= 2)
    driver.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in driver.communicate(timeout=20)[1]
    before = {file: file.stat().st_mtime_ns for file in files(kept)}
    assert 2 <= len(before) < len(numbers)
    found = run(count, [(calls, n) for n in numbers], keys=keys, folder=kept, jobs=1)
    assert same(found, run(simulate, numbers, keys=keys, jobs=1))
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert len(files(kept)) == len(numbers)


def test_one_result_is_kept_under_its_key_and_read_again(tmp_path):
    made = []

    def make(n: int) -> dict[str, object]:
        made.append(n)
        return simulate(n)

    one = kept(tmp_path, "one", lambda: make(1))
    assert same([one], [kept(tmp_path, "one", lambda: make(2))])
    assert same([kept(tmp_path, "another", lambda: make(2))], [kept(None, "", lambda: simulate(2))])
    kept(None, "one", lambda: make(3))
    assert made == [1, 2, 3]
    [file, _] = sorted(tmp_path.glob("*.npz"))
    file.write_bytes(file.read_bytes()[:100])  # cut off
    for key in ("one", "another"):
        kept(tmp_path, key, lambda: make(4))
    assert made == [1, 2, 3, 4]
    with pytest.raises(InputError, match="cannot be written"):
        kept(file, "one", lambda: make(5))


# A Dask cluster ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_workers() -> Iterator["distributed.LocalCluster"]:
    distributed = pytest.importorskip("distributed", reason="needs distributed: pip install 'rooffloor[dask]'")
    from dask.config import set as settings

    with (
        settings({"distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
    ):
        yield cluster


@pytest.fixture
def cluster(two_workers) -> str:
    """Address of a cluster of two worker processes, both up again after what the last test did to them."""
    two_workers.wait_for_workers(2, timeout=30)
    return two_workers.scheduler_address


def test_a_cluster_gives_the_same_results(expected, calls, cluster, tmp_path):
    kept = tmp_path / "kept"
    assert same(run(count, [(calls, n) for n in TASKS], keys=KEYS, folder=kept, dask=cluster), expected)
    assert same(run(count, [(calls, n) for n in TASKS], keys=KEYS, folder=kept, jobs=1), expected)
    assert called(calls) == TASKS


def test_workers_of_a_cluster_have_one_blas_thread(cluster):
    (result,) = run(threads, [0], keys=["a"], dask=cluster)
    assert set(result["threads"].tolist()) == {1}


def test_nothing_is_lost_or_doubled_when_a_task_takes_its_worker_with_it(expected, calls, cluster, tmp_path):
    kept = tmp_path / "kept"
    assert same(run(die_once, [(calls, n) for n in TASKS], keys=KEYS, folder=kept, dask=cluster), expected)
    assert (tmp_path / "died").exists()
    assert len(files(kept)) == len(TASKS)


def test_nothing_is_lost_or_doubled_when_a_worker_is_killed(calls, cluster, tmp_path):
    from threading import Thread

    def kill_the_first_that_tells() -> None:
        wait_for(lambda: list(tmp_path.glob("pid-*")))
        os.kill(int(next(tmp_path.glob("pid-*")).name.split("-")[-1]), signal.SIGKILL)

    numbers = range(8)
    tasks, keys, kept = [(calls, n) for n in numbers], [f"task {n}" for n in numbers], tmp_path / "kept"
    killer = Thread(target=kill_the_first_that_tells)
    killer.start()
    found = run(tell_and_wait, tasks, keys=keys, folder=kept, dask=cluster)
    killer.join()
    assert same(found, run(simulate, numbers, keys=keys, jobs=1))
    assert len(files(kept)) == len(numbers)
    processes = [file.name.split("-")[-1] for file in tmp_path.glob("pid-*")]
    assert len(processes) > len(numbers)  # what the killed worker had begun was begun again


def test_a_failure_on_a_cluster_names_its_key_and_what_ran_is_kept(calls, cluster, tmp_path):
    tasks, kept = [(calls, n) for n in range(40)], tmp_path / "kept"
    with pytest.raises(TaskError, match="R-hat") as caught:
        run(fail_at_two, tasks, keys=[f"task {n}" for n in range(40)], folder=kept, dask=cluster)
    assert str(caught.value) == "task 2: FloatingPointError: R-hat is 1.3"
    assert "in fail_at_two" in caught.value.__notes__[0]
    ran = called(calls)
    assert len(ran) < 30
    assert len(files(kept)) == len(ran) - 1


def test_a_task_that_kills_every_worker_is_named(cluster):
    with pytest.raises(TaskError, match=r"^bad: KilledWorker"):
        run(die, [0], keys=["bad"], dask=cluster)


def test_an_address_without_a_scheduler_is_one_line():
    pytest.importorskip("distributed", reason="needs distributed: pip install 'rooffloor[dask]'")
    from dask.config import set as settings

    with (
        settings({"distributed.comm.timeouts.connect": "0.2s"}),
        pytest.raises(InputError, match=r"^tcp://127\.0\.0\.1:9: no Dask scheduler answers"),
    ):
        run(simulate, [0], keys=["a"], dask="tcp://127.0.0.1:9")


def test_without_distributed_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install 'rooffloor\[dask\]'"):
        run(simulate, [0], keys=["a"], dask="tcp://127.0.0.1:9")


def wait_for(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


# ---- beside the rest -----------------------------------------------------------------------------------------------


def test_what_is_done_beside_is_waited_for_and_raises_what_it_raised() -> None:
    began, go = threading.Event(), threading.Event()

    def work() -> int:
        began.set()
        assert go.wait(10)
        return 7

    wait = beside(work)
    assert began.wait(10)  # without being asked for
    go.set()
    assert wait() == wait() == 7

    def fail() -> int:
        raise TaskError("out of memory")

    with pytest.raises(TaskError, match="out of memory"):
        beside(fail)()
