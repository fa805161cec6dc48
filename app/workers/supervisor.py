"""The parent process of several workers: starts, restarts and ends them, and kills one that hangs."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn, Protocol

from .heartbeats import Heartbeats

log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Pause before a worker is restarted, so that one that cannot run does not keep a core busy."""

LONGEST_PAUSE_S = 10.0
"""The same while the system has no room for its process."""

START_S = 300.0
"""Longest time until a worker's first heartbeat, as kubelet's startup probe of the chart waits; a large tokenizer takes a while."""

END = signal.SIGUSR1
"""Signal that ends a worker. Workers ignore SIGTERM and SIGINT: terminals and some service managers send them to every
process of a group, and a second signal would end a worker before its requests are finished."""

_LOOK_S = 0.1
"""Interval at which the parent looks for workers that have ended or hang."""

RELOAD = signal.SIGHUP
"""Signal that has the configuration loaded again. Blocked in a process that starts, which it would end."""

_ENDS = (signal.SIGTERM, signal.SIGINT)
_PASSED_ON = (*_ENDS, RELOAD)
_PR_SET_PDEATHSIG = 1


class Look(Protocol):
    """Work of the parent while the workers run."""

    def __call__(self, *, is_signalled: bool) -> None:
        """Do it; `is_signalled` once after `RELOAD`."""
        ...


def _do_nothing(*, is_signalled: bool) -> None:
    """Do nothing."""


class Supervisor:
    """Runs each worker in a process of its own until a signal ends them.

    A worker that ends by itself is restarted. A worker that ends with the status `gives_up` ends all of them, unless it was
    started again and another one runs. A worker whose heartbeats stop, or do not begin within `START_S`, is killed and restarted.

    Args:
        n_workers: number of workers.
        run: runs the worker of a number, and returns its exit status; called in its process, with `RELOAD` blocked until it
            can handle that.
        gives_up: exit status of a worker that a restart would not help.
        heartbeats: of the workers.
        timeout_s: time without a heartbeat after which a worker is killed.
        on_look: called each time that the parent looks at the workers.
    """

    def __init__(
        self,
        n_workers: int,
        run: Callable[[int], int],
        *,
        gives_up: int,
        heartbeats: Heartbeats,
        timeout_s: float,
        on_look: Look = _do_nothing,
    ) -> None:
        self._n_workers, self._run, self._gives_up = n_workers, run, gives_up
        self._heartbeats, self._timeout_s = heartbeats, timeout_s
        self._on_look, self._is_signalled = on_look, False
        self._workers: dict[int, int] = {}
        """Process id -> number of the worker."""
        self._restarted: set[int] = set()
        """Workers that were started again."""
        self._is_ending = False

    def serve(self) -> int:
        """Run until every worker has ended; return the status of a worker that gave up, else 0.

        SIGTERM and SIGINT are passed on as `END`, SIGHUP as it is. To be called from the main thread of a process
        without other threads.
        """
        for number in _PASSED_ON:
            signal.signal(number, self._pass_on)
        for worker in range(self._n_workers):
            self._start(worker)
        status = 0
        while self._workers:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                time.sleep(_LOOK_S)
                self._kill_hung()
                self._look()
                continue
            ended = self._workers.pop(pid, None)
            if ended is None:  # a process that lost its parent: the first process of a container gets them
                continue
            code = os.waitstatus_to_exitcode(wait_status)
            if code == self._gives_up and not self._is_ending and not self._others_go_on(ended):
                status = code
                self._end()
            elif not self._is_ending:
                log.warning("worker %d ended with status %d; it is started again", ended, code)
                self._start_again(ended)
        return status

    def _others_go_on(self, worker: int) -> bool:
        """Return whether a worker was started again while another one runs, whose requests are not to fail with it."""
        return worker in self._restarted and any(map(self._heartbeats.has_begun, self._workers.values()))

    def _start_again(self, worker: int) -> None:
        self._restarted.add(worker)
        pause_s = PAUSE_S
        while not self._is_ending:
            time.sleep(pause_s)
            try:
                self._start(worker)
            except OSError as error:  # no more processes, or no memory
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                log.warning("worker %d cannot be started: %s; it is tried again", worker, error.strerror)
            else:
                return

    def _kill_hung(self) -> None:
        """Kill workers that have been silent for too long; `serve` starts them again."""
        for pid, worker in self._workers.items():
            silent_s = self._heartbeats.silent_s(worker, passed_s=_LOOK_S)
            is_starting = self._heartbeats.is_starting(worker)
            if silent_s >= (max(START_S, self._timeout_s) if is_starting else self._timeout_s):
                log.error("worker %d has not responded for %.0f s; it is killed", worker, silent_s)
                os.kill(pid, signal.SIGKILL)
                self._heartbeats.started(worker)

    def _look(self) -> None:
        is_signalled, self._is_signalled = self._is_signalled, False
        self._on_look(is_signalled=is_signalled)

    def _start(self, worker: int) -> None:
        """Start a worker unless all are to end; raises OSError if there can be no process."""
        # A signal between the fork and the child's own handlers would run the parent's handler in the child.
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        try:
            if self._is_ending:
                return
            self._heartbeats.started(worker)
            pid = os.fork()
            if pid == 0:
                self._become(worker)
            self._workers[pid] = worker
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)

    def _become(self, worker: int) -> NoReturn:
        """Run the worker in the forked child; never returns to the parent's code."""
        status = 1
        try:
            for number in _ENDS:
                signal.signal(number, signal.SIG_IGN)
            signal.signal(RELOAD, signal.SIG_DFL)
            _end_with_parent()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
            status = self._run(worker)
        except BaseException:
            log.exception("worker %d failed", worker)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        if number in _ENDS:
            self._end()
        else:
            self._is_signalled = True
            self._send(number)

    def _end(self) -> None:
        self._is_ending = True
        self._send(END)

    def _send(self, number: int) -> None:
        for pid in self._workers:
            # one that has just ended is about to be noted by `serve`
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _end_with_parent() -> None:
    """Have the kernel signal this process when its parent dies. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, END)
