"""The parent of several workers: starts them, starts them again, and ends them."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Between a worker's end and its new start, so that one that cannot run does not keep a core busy."""

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ENDS = frozenset({signal.SIGTERM, signal.SIGINT})
_PR_SET_PDEATHSIG = 1


class Supervisor:
    """Runs workers in processes of their own until they are told to end.

    A worker that ends by itself is started again; one that ends with `gives_up`, which says that no other start would
    fare better, takes all others with it.

    Args:
        n_workers: how many.
        run: runs the worker of a number, and returns its exit status; called in its process.
        gives_up: exit status of a worker that cannot run.
    """

    def __init__(self, n_workers: int, run: Callable[[int], int], *, gives_up: int) -> None:
        self._n_workers, self._run, self._gives_up = n_workers, run, gives_up
        self._workers: dict[int, int] = {}
        """Process id -> number."""
        self._is_ending = False

    def serve(self) -> int:
        """Returns once every worker has ended: the status of the one that gave up, else 0.

        SIGTERM, SIGINT and SIGHUP are passed on to every worker; the first two end them. To be called from the main
        thread of a process without other threads.
        """
        for number in _FORWARDED:
            signal.signal(number, self._pass_on)
        for worker in range(self._n_workers):
            self._start(worker)
        status = 0
        while self._workers:
            pid, wait_status = os.wait()
            worker = self._workers.pop(pid)
            code = os.waitstatus_to_exitcode(wait_status)
            if code == self._gives_up and not self._is_ending:
                status = code
                self._end()
            elif not self._is_ending:
                log.warning("worker %d ended with status %d; it is started again", worker, code)
                time.sleep(PAUSE_S)
                self._start_unless_ending(worker)
        return status

    def _start_unless_ending(self, worker: int) -> None:
        if not self._is_ending:
            self._start(worker)

    def _start(self, worker: int) -> None:
        # A signal between the fork and the child's own handling of it would run the parent's handler there.
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        pid = os.fork()
        if pid == 0:
            self._become(worker)
        self._workers[pid] = worker
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)

    def _become(self, worker: int) -> NoReturn:
        """Be the worker; never returns to the parent's code."""
        status = 1
        try:
            for number in _FORWARDED:
                signal.signal(number, signal.SIG_DFL)
            _end_with_parent()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
            status = self._run(worker)
        except BaseException:
            log.exception("worker %d failed", worker)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        self._is_ending |= number in _ENDS
        for pid in self._workers:
            os.kill(pid, number)

    def _end(self) -> None:
        self._pass_on(signal.SIGTERM, None)


def _end_with_parent() -> None:
    """Have the system end this process when its parent dies, which could not do it any more. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
