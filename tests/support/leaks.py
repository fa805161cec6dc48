"""Guards against leftovers of a test: asyncio tasks, threads that delay the exit, child processes, blocked signals.

Each guard compares before and after and allows `grace_s` for endings in progress, so a clean test never waits.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from .forks import lasting

GRACE_S = 20.0
_POLL_S = 0.01


class LeakError(AssertionError):
    """A test left something running; the message names it."""


@asynccontextmanager
async def no_new_tasks(*, grace_s: float = GRACE_S) -> AsyncGenerator[None]:
    """Fail if tasks started inside are still pending `grace_s` seconds after the end.

    Raises:
        LeakError: naming the coroutine of each such task.
    """
    before = asyncio.all_tasks()
    yield
    started = asyncio.all_tasks() - before - {asyncio.current_task()}
    if not started:
        return
    _, pending = await asyncio.wait(started, timeout=grace_s)
    if pending:
        raise LeakError(f"asyncio tasks still running: {sorted(str(task.get_coro()) for task in pending)}")


@contextmanager
def no_new_threads(*, grace_s: float = GRACE_S) -> Generator[None]:
    """Fail if a thread started inside is still running `grace_s` seconds after the end.

    Daemon threads do not delay the exit, and threads of an event loop's default executor end with the loop, after
    this check; neither counts.

    Raises:
        LeakError: naming the threads.
    """
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + grace_s
    started = [
        thread
        for thread in threading.enumerate()
        if thread not in before and not thread.daemon and not thread.name.startswith("asyncio_")
    ]
    for thread in started:
        thread.join(max(0.0, deadline - time.monotonic()))
    if running := sorted(thread.name for thread in started if thread.is_alive()):
        raise LeakError(f"threads still running: {running}")


@contextmanager
def no_new_processes(*, grace_s: float = GRACE_S) -> Generator[None]:
    """Fail if a child process started inside still exists `grace_s` seconds after the end.

    An ended child counts until it is waited for. Finds nothing on a system without /proc.

    Raises:
        LeakError: with the command line of each child.
    """
    before = _children()
    yield
    deadline = time.monotonic() + grace_s
    while (left := _children() - before) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if left:
        raise LeakError(f"child processes still there: {sorted(_command(pid) for pid in left)}")


@contextmanager
def no_blocked_signals() -> Generator[None]:
    """Fail if this thread blocks signals after the end that it did not block before; they are unblocked.

    Raises:
        LeakError: naming the signals.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, before) - before
    if blocked:
        raise LeakError(
            f"signals still blocked, also for later tests: {sorted(signal.Signals(each).name for each in blocked)}"
        )


def _children() -> set[int]:
    """Return the ids of the children of this process, by any thread, and of its lasting children instead of those."""
    children: set[int] = set()
    for parent in ("self", *lasting()):
        for listing in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                children.update(int(pid) for pid in listing.read_text().split())
            except (
                FileNotFoundError,
                ProcessLookupError,
            ):  # the thread ended between the listing and the read
                continue
    return children - lasting()


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        words = []
    return f"{pid} {b' '.join(words).decode(errors='replace').strip() or '(ended, not waited for)'}"
