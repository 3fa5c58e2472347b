"""Many independent tasks on the cores of this machine or on a Dask cluster; what has finished stays on disk."""

import importlib
import io
import os
import socket
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import islice, takewhile
from pathlib import Path
from traceback import format_exc
from typing import TYPE_CHECKING, Any, cast
from warnings import warn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooffloor.validate.common import ending
from rooffloor.validate.common.errors import InputError, Notice, TaskError
from rooffloor.validate.common.files import check_writable, write_bytes

if TYPE_CHECKING:
    from distributed import Client

type Result = dict[str, NDArray[Any]]
"""What a task computes, by name; numbers, truth values and strings are arrays without axes."""

_KINDS = "biufcmMSU"
"""Kinds of NumPy dtypes that a file holds without pickle."""


@dataclass(frozen=True)
class _Failure:
    reason: str
    traceback: str = ""


type _Outcomes = Generator[tuple[int, Result | _Failure]]
"""Task number and outcome as tasks finish. After a failure no task is handed out; those that were are waited for."""


def run[Task](
    function: Callable[[Task], Mapping[str, ArrayLike]],
    tasks: Sequence[Task],
    *,
    keys: Sequence[str],
    folder: Path | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    progress: bool = False,
    desc: str = "",
) -> list[Result]:
    """`function` of every task, each in one process on one BLAS thread, in the order of `tasks`.

    Parameters
    ----------
    function : callable
        Of one task. Picklable, and the same result whenever it is called with the same task. It returns a
        mapping of names (identifiers) to what NumPy makes an array of numbers, truth values, strings or dates.
    keys : sequence of str
        One per task, all different. `folder` keeps a result under its key alone, so that a key has to name all
        that the result depends on: data, settings, seed, and the function itself.
    folder : Path, optional
        Where results are kept, one .npz each, written here and not by the workers. Tasks whose result lies
        there are not run again; a file that is damaged is made anew.
    jobs : int, optional
        Processes on this machine; default: one per core. One process is this one.
    dask : str, optional
        Address of the scheduler of a running Dask cluster, which is used instead. Tasks of a worker that dies
        are given to another one. Scheduler and workers need this package; start workers with one thread each.
    progress : bool, optional
        Whether to show a progress bar, with `desc` before it.

    Raises
    ------
    TaskError
        A task failed or its result is none of the above. Tasks handed out by then were waited for and kept.
    InputError
        `folder` cannot be written, no scheduler answers, or the package distributed is missing.
    """
    from tqdm import tqdm

    if len(keys) != len(tasks) or len(set(keys)) != len(keys):
        raise ValueError(f"{len(tasks)} tasks need as many different keys, not {len(set(keys))} in {len(keys)}")
    results = {} if folder is None else _kept(folder, keys)
    todo = {n: partial(function, task) for n, task in enumerate(tasks) if n not in results}
    failures = {}
    bar = tqdm(total=len(tasks), initial=len(results), desc=desc, unit="task", disable=not progress)
    with bar, closing(_on_cluster(todo, dask) if dask and todo else _on_cores(todo, jobs)) as outcomes:
        for n, outcome in outcomes:
            if isinstance(outcome, _Failure):
                failures[n] = outcome
                continue
            if folder is not None:
                _keep(folder, keys[n], outcome)
            results[n] = outcome
            bar.update()
    if failures:
        raise _task_error({keys[n]: failures[n] for n in sorted(failures)})
    return [results[n] for n in range(len(tasks))]


def kept(folder: Path | None, key: str, make: Callable[[], Mapping[str, ArrayLike]]) -> Result:
    """What `make` makes, kept in `folder` under `key`, or read from there where that lies whole; made here and now.

    `folder`, `key` and what is made as in `run`; nothing is kept if `folder` is None.

    Raises
    ------
    InputError
        `folder` cannot be written.
    """
    if folder is None:
        return _arrays(make())
    check_writable(folder)
    found = _read(_path(folder, key), key)
    if found is None:
        found = _arrays(make())
        _keep(folder, key, found)
    return found


def _task_error(failures: Mapping[str, _Failure]) -> TaskError:
    key, failure = next(iter(failures.items()))
    others = f" ({len(failures) - 1} more failed)" if len(failures) > 1 else ""
    error = TaskError(f"{key}: {failure.reason}{others}")
    if failure.traceback:
        error.add_note(f"In the worker:\n{failure.traceback}")
    return error


# Files ---------------------------------------------------------------------------------------------


def _path(folder: Path, key: str) -> Path:
    return folder / f"{sha256(key.encode()).hexdigest()[:20]}.npz"


def _keep(folder: Path, key: str, result: Result) -> None:
    buffer = io.BytesIO()
    stored: dict[str, Any] = {f"result/{name}": array for name, array in result.items()}
    np.savez(buffer, written=np.array([key, *result]), allow_pickle=False, **stored)
    write_bytes(_path(folder, key), buffer.getvalue())


def _kept(folder: Path, keys: Sequence[str]) -> dict[int, Result]:
    """By task number, what lies whole in `folder`."""
    check_writable(folder)
    found = {n: _read(_path(folder, key), key) for n, key in enumerate(keys)}
    return {n: result for n, result in found.items() if result is not None}


def _read(path: Path, key: str) -> Result | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            content = dict(stored)
    except Exception:  # not there, or damaged: zip files and arrays break in a dozen ways, each with its own error
        return None
    written = content.pop("written", np.array([])).tolist()
    result = {name.removeprefix("result/"): array for name, array in content.items()}
    return result if written == [key, *result] else None


# Beside the rest -----------------------------------------------------------------------------------


def beside[Found](function: Callable[[], Found]) -> Callable[[], Found]:
    """Call a function in a thread of its own, and return what waits for it: it returns or raises what that did.

    For work that leaves Python's lock alone for most of its time, as samplers do. The thread ends with the process.
    """
    outcome = list[tuple[Found | None, BaseException | None]]()

    def call() -> None:
        try:
            outcome.append((function(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=call, name="rooffloor beside", daemon=True)
    thread.start()

    def wait() -> Found:
        thread.join()
        [(found, error)] = outcome
        if error is not None:
            raise error
        return cast(Found, found)

    return wait


# One task ------------------------------------------------------------------------------------------


def _attempt(call: Callable[[], object]) -> Result | _Failure:
    """Failures are told, not raised: not every exception survives the way out of a worker."""
    try:
        return _arrays(call())
    except Exception as error:
        return _Failure(_reason(error), format_exc())


def _reason(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _arrays(result: object) -> Result:
    if not isinstance(result, Mapping):
        raise TypeError(f"a task returns a mapping of names to arrays, not {type(result).__name__}")
    arrays = {name: np.asarray(value) for name, value in result.items()}
    for name, array in arrays.items():
        if not (isinstance(name, str) and name.isidentifier()):
            raise TypeError(f"a result's name is an identifier, not {name!r}")
        if array.dtype.kind not in _KINDS:
            raise TypeError(f"result {name!r} is no array of numbers, truth values, strings or dates: {array.dtype}")
    return arrays


def one_thread() -> Any:
    """One BLAS thread until the context is left, or for good.

    Small products of matrices gain nothing from more, and threads that wait for each other keep cores busy.
    """
    from threadpoolctl import threadpool_limits

    importlib.import_module("scipy.linalg")  # brings a BLAS of its own, which is not limited before it is there
    return threadpool_limits(limits=1)


# Where tasks run -----------------------------------------------------------------------------------


def _on_cores(todo: Mapping[int, Callable[[], object]], jobs: int | None) -> _Outcomes:
    from joblib import Parallel, cpu_count, delayed

    failed: list[int] = []
    calls = takewhile(lambda _: not failed, (delayed(_in_process)(n, call, os.getpid()) for n, call in todo.items()))
    parallel = Parallel(
        n_jobs=min(jobs or cpu_count(), max(len(todo), 1)),
        return_as="generator_unordered",
        batch_size=1,
        pre_dispatch="n_jobs",
        max_nbytes=None,
    )
    try:
        for n, outcome in parallel(calls):
            if isinstance(outcome, _Failure):
                failed.append(n)
            yield n, outcome
    except BrokenProcessPool as error:
        raise TaskError("a worker process died, as it does for want of memory: try fewer jobs") from error


def _in_process(n: int, call: Callable[[], object], owner: int) -> tuple[int, Result | _Failure]:
    if os.getpid() != owner:
        ending.with_parent(owner)
    with one_thread():
        return n, _attempt(call)


def _on_cluster(todo: Mapping[int, Callable[[], object]], address: str) -> _Outcomes:
    # Not joblib's Dask backend: it scatters larger arguments, and what is scattered dies with its worker.
    client = _connect(address)
    from distributed import as_completed

    with client:
        calls = iter(todo.items())
        done = as_completed(loop=client.loop, with_results=True, raise_errors=False)
        given: dict[str, int] = {}
        failed = False
        while True:
            if not failed:  # one task in hand and one waiting for every thread there is now
                room = 2 * max(sum(client.nthreads().values()), 1) - len(given)
                for n, call in islice(calls, max(room, 0)):
                    future = client.submit(_in_worker, call, pure=False)
                    given[future.key] = n
                    done.add(future)
            if not given:
                return
            future, received = next(done)
            outcome = _outcome(received)
            failed = failed or isinstance(outcome, _Failure)
            yield given.pop(future.key), outcome


def _in_worker(call: Callable[[], object]) -> Result | _Failure:
    one_thread()  # for good: giving threads back would give them to the tasks of the worker's other threads
    return _attempt(call)


def _outcome(received: Any) -> Result | _Failure:
    match received:
        case (_, BaseException() as error, _) | (BaseException() as error):
            return _Failure(_reason(error))  # not of the task: a worker killed too often, a scheduler that is gone
    return received


def _connect(address: str) -> "Client":
    check_scheduler(address)
    from distributed import Client

    try:
        client = Client(address, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{address}: no Dask scheduler answers ({error})") from error
    if not client.nthreads():
        warn(f"the Dask cluster at {address} has no worker yet: waiting for one", Notice, stacklevel=4)
    return client


def check_scheduler(address: str, seconds: float = 10.0) -> None:
    """InputError where nothing answers at the address of a Dask scheduler, or the package distributed is missing.

    At once where that can be known: the package itself tries for half a minute.
    """
    try:
        import distributed  # noqa: F401
        from distributed.comm.addressing import parse_address, parse_host_port
    except ImportError as error:
        raise InputError("a Dask cluster needs the package distributed: pip install 'rooffloor[dask]'") from error
    try:
        scheme, place = parse_address(address)
        if scheme not in ("tcp", "tls"):  # others have addresses of their own
            return
        host, port = parse_host_port(place)
        socket.create_connection((host, port), timeout=seconds).close()
    except (OSError, ValueError, OverflowError, UnicodeError) as error:
        said = " ".join(str(error).split())
        raise InputError(f"{address}: no Dask scheduler answers ({said}); expected tcp://HOST:PORT") from error
