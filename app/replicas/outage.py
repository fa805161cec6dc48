"""An outage of the server between the replicas: when to connect again, and what to log of it."""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
"""First pause before connecting again, and the longest, which the caller varies."""

STEADY_S = 10.0
"""Time that a connection lasts to end an outage: a server or proxy may take connections and break each of them at once."""

REPEAT_S = 600.0
"""Time after which the same line of one outage is logged again."""

MAX_LINES = 16
"""Different lines of one outage that are logged."""


class Outage:
    """Pauses and log lines of the failures since a connection last lasted.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pause_s = PAUSE_S
        self._said: dict[str, float] = {}
        """Line -> when it was logged."""

    @property
    def is_over(self) -> bool:
        """Whether nothing was logged since a connection last lasted."""
        return not self._said

    def end(self) -> None:
        """Handle a connection that has lasted."""
        self._pause_s = PAUSE_S
        self._said.clear()

    def says(self, line: str) -> bool:
        """Return whether to log a line about it now, and note that it is logged."""
        now, at = self._clock(), self._said.get(line)
        is_due = len(self._said) < MAX_LINES if at is None else now - at >= REPEAT_S
        if is_due:
            self._said[line] = now
        return is_due

    def pause_s(self) -> float:
        """Return the seconds to wait before the next connection; the ones after it come later each time."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s
