"""How a run ends that is told to: within seconds, whatever library is on the stack, with nothing half-written.

A signal becomes an exception in the main thread, so that files are cleaned up on the way out. That fails where the
exception is raised inside a callback that swallows it (numba, ctypes), or where the main thread waits for threads that
know of no signals. So a watchdog, which the operating system wakes beside Python's own handling, gives the main thread
some seconds, then removes what is temporary and ends the process.
"""

import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from rooffloor.validate.common.errors import INTERRUPTED, TERMINATED

GRACE_S = {signal.SIGTERM: 2.0, signal.SIGINT: 5.0}
"""Seconds that the main thread has from the signal to the end."""
LONGEST_HOLD_S = 30.0
"""Seconds that the watchdog waits for finished files to be in their places."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which cleans up as Ctrl-C does."""


ENDS: dict[int, tuple[type[KeyboardInterrupt], str, int]] = {
    signal.SIGTERM: (Terminated, "terminated", TERMINATED),
    signal.SIGINT: (KeyboardInterrupt, "interrupted", INTERRUPTED),
}
"""Of each signal: what is raised, what is said, and the exit code."""
_WITH_PARENT = "rooffloor parent watch"
_temporary: set[Path] = set()
_lock = threading.RLock()
_held, _waiting = 0, list[int]()


@contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """A file or folder that goes should the process be ended inside the block; else its owner removes it."""
    _temporary.add(path)
    try:
        yield path
    finally:
        _temporary.discard(path)


@contextmanager
def held() -> Iterator[None]:
    """A signal that comes inside the block (finished files move to their places) counts when it has ended."""
    global _held
    with _lock:
        _held += 1
    try:
        yield
    finally:
        with _lock:
            _held -= 1
            late = _waiting.pop() if _waiting and not _held else None
        if late is not None:
            signal.raise_signal(late)


@contextmanager
def on_signals(*, for_good: bool = False) -> Iterator[None]:
    """SIGTERM and Ctrl-C raise `Terminated` and KeyboardInterrupt, and end the process where that does not.

    Nothing changes outside of the main thread, nor in processes that are forked meanwhile; a signal that is ignored
    stays ignored.

    Parameters
    ----------
    for_good : bool
        The process ends after the block: where it was a signal that ended it, the watchdog sees to that too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner, over = os.getpid(), threading.Event()

    def stop(number: int, _: FrameType | None) -> None:
        if os.getpid() != owner:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if _held:
            _waiting.append(number)
            return
        raise ENDS[number][0]

    def silent(seen: "sys.UnraisableHookArgs") -> None:
        if not isinstance(seen.exc_value, KeyboardInterrupt):
            unraisable(seen)

    caught = [number for number in ENDS if signal.getsignal(number) is not signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, stop) for number in caught}
    hear, tell = socket.socketpair()
    tell.setblocking(False)
    woken = signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)
    unraisable, sys.unraisablehook = sys.unraisablehook, silent
    watchdog = threading.Thread(target=_watch, args=(hear, over, for_good), name="rooffloor watchdog", daemon=True)
    watchdog.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(woken)
        tell.close()
        sys.unraisablehook = unraisable
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _deaf() -> None:
    """A forked process does not wake the watchdog of the one that it was forked from."""
    with suppress(ValueError):
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_deaf)


def _watch(hear: socket.socket, over: threading.Event, for_good: bool) -> None:
    """Wait for a signal, then for the end of the block; end the process where it does not come."""
    with hear:  # open to the end: the system writes into it at every signal
        number = 0
        while number not in ENDS:
            heard = hear.recv(1)
            if not heard:  # the block has ended
                return
            number = heard[0]
        _, said, code = ENDS[number]
        grace = GRACE_S[signal.Signals(number)]
        end = time.monotonic() + grace
        told = over.wait(grace)
        longest = time.monotonic() + LONGEST_HOLD_S
        while not told and _held and time.monotonic() < longest:
            told = over.wait(0.05)
            end = time.monotonic() + grace
        told = told or over.wait(max(end - time.monotonic(), 0.0))
        if told and not for_good:
            return
        time.sleep(max(end - time.monotonic(), 0.0))  # an interpreter on its way out takes this thread with it
        clean_up()
        if not over.is_set():
            with suppress(OSError):  # not through sys.stderr: the main thread may hold its lock
                os.write(2, f"rooffloor: {said}\n".encode())
        os._exit(code)


def clean_up() -> None:
    """Remove what is temporary."""
    for path in tuple(_temporary):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def with_parent(parent: int, every_s: float = 1.0) -> None:
    """End this process, a worker, when its parent has gone, however that went; waiting for work it would live on."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(every_s)
        os._exit(TERMINATED)

    if not any(thread.name == _WITH_PARENT for thread in threading.enumerate()):
        threading.Thread(target=watch, name=_WITH_PARENT, daemon=True).start()
