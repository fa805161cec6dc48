"""Tasks in several processes, none of which outlives the work or the process that began it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def results_of(tasks: Sequence[Callable[[], T]], *, jobs: int) -> Generator[Iterator[tuple[int, T]]]:
    """Run all tasks; yield an iterator of each task's place and result, in the order in which they end.

    Tasks that have not ended with the context never do: their processes are killed. The same happens if this process dies.

    Args:
        tasks: they and their results can be pickled if there are several jobs.
        jobs: number of processes; 1 runs the tasks in this process.
    """
    if jobs == 1 or len(tasks) < 2:
        yield ((place, task()) for place, task in enumerate(tasks))
        return
    # No other process has the writing end, so reading ends when it is closed or its owner dies.
    lifeline, held = get_context("spawn").Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        min(jobs, len(tasks)),
        mp_context=get_context("spawn"),
        initializer=_end_with,
        initargs=(lifeline,),
    )
    try:
        with (
            _without_interrupt()
        ):  # the processes inherit it: Ctrl-C reaches them too, and is for this one alone
            running = {pool.submit(task): place for place, task in enumerate(tasks)}
        yield _completed(running)
    finally:
        held.close()
        pool.shutdown(cancel_futures=True)
        lifeline.close()


def _completed(running: dict[Future[T], int]) -> Iterator[tuple[int, T]]:
    for future in as_completed(running):
        yield running[future], future.result()


def _end_with(lifeline: Connection) -> None:
    """End this process as soon as the other end of `lifeline` is closed, whatever it does."""

    def watch() -> None:
        lifeline.poll(None)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


@contextmanager
def _without_interrupt() -> Generator[None]:
    """Block SIGINT in this thread; one that comes is delivered afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
