"""Failures of tasks: counted, logged without values, and shown in readiness until the work runs again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from ..events.tasks import TaskFailure
from .stacks import described

log = logging.getLogger(__name__)

OTHER = "other"
"""Kind of a failed callback, or of a task that serves one request."""


class TaskFailures:
    """Exception handler of the event loop.

    Args:
        registry: shows the counter.
        on_fatal: called if a task failed without which the process is of no use.
    """

    def __init__(self, registry: CollectorRegistry, *, on_fatal: Callable[[], None]) -> None:
        self._on_fatal = on_fatal
        self.on_change: Callable[[], None] = lambda: None
        """Called when another task is down."""
        self._down_until: dict[str, float] = {}
        self._failed = Counter(
            "kvatlas_tasks_failed",
            "Tasks that a bug ended; their work starts again.",
            ["task"],
            registry=registry,
        )
        self._failed.labels(OTHER)

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle what nothing else did; see `loop.set_exception_handler`."""
        failure, error = context.get("failure"), context.get("exception")
        if isinstance(failure, TaskFailure):
            self._failed.labels(failure.task).inc()
            self._log(failure)
            self._mark(failure)
        elif isinstance(error, Exception) and "transport" not in context:
            self._failed.labels(OTHER).inc()
            log.critical("a bug ended a callback or the task of one request: %s", described(error))
        else:  # connections that peers broke
            loop.default_exception_handler(context)

    def down(self) -> Iterator[str]:
        """Yield the kinds of tasks that do not run at present."""
        now = time.monotonic()
        for task, until in tuple(self._down_until.items()):
            if until > now:
                yield task
            else:
                del self._down_until[task]

    def _mark(self, failure: TaskFailure) -> None:
        if failure.pause_s is None:
            self._down_until[failure.task] = float("inf")
            self.on_change()
            self._on_fatal()
        elif failure.pause_s and failure.needed:
            self._down_until[failure.task] = time.monotonic() + failure.pause_s
            self.on_change()

    def _log(self, failure: TaskFailure) -> None:
        name = f"{failure.task} {failure.of}".rstrip()
        if failure.pause_s is None:
            then = "the process ends, to be started again"
        else:
            then = (
                f"its work starts again in {failure.pause_s:.0f} s" if failure.pause_s else "its work is lost"
            )
        log.critical("%s: a bug ended this task, and %s: %s", name, then, described(failure.error))
