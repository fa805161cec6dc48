"""Watchdog of the event loop: how long it was held, and by which code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Generator

from prometheus_client import CollectorRegistry, Gauge

from ..fleet.tallies import Times
from .stacks import where

log = logging.getLogger(__name__)

BEAT_S = 0.02
"""Interval of the heartbeat: a hold shows at most this much too short, of the 50 ms that are promised. An idle process wakes for each:
0.2 to 0.4 % of a core in a virtual machine, nearly all of it the wake itself, which a busy process does not pay."""

HUNG_S = 1.0
"""Time without a heartbeat after which the log says where the loop is held."""

_LOOK_S = 0.2
"""Interval at which the thread looks at the heartbeat."""

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class LoopMetrics:
    """How late the heartbeats of the event loop came.

    Args:
        registry: shows it.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._held = Times(
            "loop_held_seconds",
            "Time for which the event loop served nothing else, by the lateness of a heartbeat.",
            _SECONDS,
            registry=registry,
        )
        self._longest = Gauge(
            "kvatlas_loop_held_longest_seconds",
            "Longest time for which the event loop was held.",
            registry=registry,
        )
        self._longest_s = 0.0

    def held(self, seconds: float) -> None:
        """Count one heartbeat that came `seconds` late."""
        self._held.observe(seconds)
        if seconds > self._longest_s:
            self._longest_s = seconds
            self._longest.set(seconds)


class Watchdog:
    """Measures how long one event loop is held; a thread logs where, once for each hold of more than `hung_s`.

    Args:
        metrics: counts the lateness of each heartbeat.
        on_beat: called with each heartbeat.
        hung_s: time without a heartbeat that is logged.
    """

    def __init__(
        self, metrics: LoopMetrics, *, on_beat: Callable[[], None] | None = None, hung_s: float = HUNG_S
    ) -> None:
        self._metrics, self._on_beat, self._hung_s = metrics, on_beat, hung_s
        self._due = 0.0
        self._stopped = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """Watch the running loop, from its own thread, until the context ends."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def beat() -> None:
            nonlocal timer
            now = time.monotonic()
            self._metrics.held(max(0.0, now - self._due))
            if self._on_beat is not None:
                self._on_beat()
            self._due = now + BEAT_S
            timer = loop.call_later(BEAT_S, beat)

        self._due = time.monotonic() + BEAT_S
        timer = loop.call_later(BEAT_S, beat)
        self._stopped.clear()
        thread = threading.Thread(
            target=self._look_on, args=(threading.get_ident(),), name="watchdog", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            timer.cancel()
            self._stopped.set()
            thread.join()

    def _look_on(self, watched: int) -> None:
        """Log each long hold of the loop in thread `watched`, while it lasts."""
        logged_due = 0.0
        while not self._stopped.wait(_LOOK_S):
            due = self._due
            late_s = time.monotonic() - due
            if late_s < self._hung_s or due == logged_due:
                continue
            logged_due = due
            # Nothing else returns another thread's stack.
            frame = sys._current_frames().get(watched)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            log.error("the event loop has been held for %.1f s, in %s", late_s, where(frame))
