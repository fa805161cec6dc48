"""How long to leave an API server alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MAX_RETRY_AFTER_S = 120.0
"""Longest wait that a server can ask for: a wrong header must not blind the process for a day."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How often an API server is asked.

    Attributes:
        first_delay_s: wait after the first failure in a row, on average; doubles with each further one.
        max_delay_s: longest wait, on average. Both are client-go's.
        healthy_s: a watch that lived so long, or brought anything, ends a row of failures.
        short_watch_s: a watch that ends sooner counts as failed, so that a server that closes at once is not asked in a loop.
        watch_s: shortest time that watches are asked for; the longest is twice that, drawn anew each time.
        slack_s: time past the end that was asked of the server, after which a watch counts as silent.
        missing_s: a kind that is not served for so long has no objects; API servers that start may forget one for a while.
    """

    first_delay_s: float = 0.8
    max_delay_s: float = 30.0
    healthy_s: float = 10.0
    short_watch_s: float = 1.0
    watch_s: int = 120
    slack_s: float = 15.0
    missing_s: float = 30.0


class Backoff:
    """Waits that grow with each failure in a row.

    Args:
        timing: how.
        rng: uniform in [0, 1); spreads the waits of several pickers by half to both sides.
    """

    def __init__(self, timing: Timing, rng: Callable[[], float]) -> None:
        self._timing, self._rng = timing, rng
        self._mean_s = timing.first_delay_s

    def failed(self, retry_after_s: float | None) -> float:
        """Seconds to wait after one more failure, at least `retry_after_s`."""
        mean_s, self._mean_s = self._mean_s, min(self._mean_s * 2, self._timing.max_delay_s)
        return max(mean_s * (0.5 + self._rng()), min(retry_after_s or 0.0, MAX_RETRY_AFTER_S))

    def reset(self) -> None:
        """Things went well for a while."""
        self._mean_s = self._timing.first_delay_s
