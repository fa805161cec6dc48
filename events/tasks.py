"""Long-lived tasks: a failure is reported to the event loop's exception handler, and the work starts again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

RESTART_S = 2.0
"""Pause before failed work starts again. It doubles with each failure in a row, so that the log stays readable."""

LONGEST_RESTART_S = 60.0
"""Longest pause. Work that ran for so long before it failed starts again after the shortest."""


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """An exception that ended the work of a task. Under the key `failure` of the handler's context.

    Attributes:
        task: the kind of task, one of a fixed few.
        of: which of that kind; empty if there is one.
        error: the exception.
        pause_s: time until the work starts again; 0 for a task that was to end anyway; None if only the process can restart.
        needed: whether the process should get no requests meanwhile.
    """

    task: str
    of: str
    error: BaseException
    pause_s: float | None
    needed: bool = True


def keep(
    work: Callable[[], Coroutine[None, None, None]], task: str, *, of: str = "", needed: bool = True
) -> asyncio.Task[None]:
    """Start a task that runs `work`, and starts it again after each exception, until it returns or is cancelled.

    Args:
        work: makes the coroutine; called again after each failure.
        task: its kind, a label of metrics.
        of: which of that kind, for the log.
        needed: whether the process should get no requests while the work does not run.
    """
    return asyncio.create_task(_kept(work, task, of, needed=needed), name=f"{task} {of}".rstrip())


def spawn(
    coroutine: Coroutine[None, None, None], task: str, *, of: str = "", vital: bool = False
) -> asyncio.Task[None]:
    """Start a task that nobody awaits, and that cannot be restarted; an exception that ends it is reported.

    Args:
        coroutine: its work.
        task: its kind, a label of metrics.
        of: which of that kind, for the log.
        vital: whether the process is of no use without it.
    """

    def ended(done: asyncio.Task[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            _report(TaskFailure(task, of, error, pause_s=None if vital else 0.0))

    started = asyncio.create_task(coroutine, name=f"{task} {of}".rstrip())
    started.add_done_callback(ended)
    return started


async def _kept(work: Callable[[], Coroutine[None, None, None]], task: str, of: str, *, needed: bool) -> None:
    this = asyncio.current_task()
    assert this is not None  # noqa: S101 - coroutines run in tasks
    pause_s = RESTART_S
    while True:
        began = time.monotonic()
        try:
            await work()
        except asyncio.CancelledError as error:
            if this.cancelling():
                raise
            caught: BaseException = error  # of something that the work awaited
        except Exception as error:  # noqa: BLE001 - it is reported
            caught = error
        else:
            return
        if time.monotonic() - began >= LONGEST_RESTART_S:
            pause_s = RESTART_S
        _report(TaskFailure(task, of, caught, pause_s, needed))
        del caught  # its traceback holds the frames of the failed work
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_RESTART_S)


def _report(failure: TaskFailure) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {
            "message": f"a bug ended the task {failure.task} {failure.of}".rstrip(),
            "exception": failure.error,
            "failure": failure,
        }
    )
