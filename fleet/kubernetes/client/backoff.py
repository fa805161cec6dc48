"""Durations and exponential backoff for requests to an API server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MAX_RETRY_AFTER_S = 120.0
"""Longest `Retry-After` obeyed, so that a wrong header cannot stop discovery for a day."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations of retries and watches.

    Attributes:
        first_delay_s: mean delay after the first failure in a row; doubles with each further one. As in client-go.
        max_delay_s: longest mean delay. As in client-go.
        healthy_s: a watch that lasts this long, or delivers an event, ends a row of failures.
        short_watch_s: a watch that ends sooner counts as failed, so that a server that closes at once causes no busy loop.
        watch_s: shortest requested duration of a watch; the longest is twice that, drawn for each watch.
        slack_s: time after the requested end at which a watch is given up.
        missing_s: a kind that is not served for this long has no objects; a starting API server may not serve it yet.
    """

    first_delay_s: float = 0.8
    max_delay_s: float = 30.0
    healthy_s: float = 10.0
    short_watch_s: float = 1.0
    watch_s: int = 120
    slack_s: float = 15.0
    missing_s: float = 30.0


class Backoff:
    """Exponential backoff.

    Args:
        timing: mean delays.
        rng: uniform in [0, 1); varies each delay from half to one and a half of its mean.
    """

    def __init__(self, timing: Timing, rng: Callable[[], float]) -> None:
        self._timing, self._rng = timing, rng
        self._mean_s = timing.first_delay_s

    def failed(self, retry_after_s: float | None) -> float:
        """Return the delay in seconds after one more failure, at least `retry_after_s`."""
        mean_s, self._mean_s = self._mean_s, min(self._mean_s * 2, self._timing.max_delay_s)
        return max(mean_s * (0.5 + self._rng()), min(retry_after_s or 0.0, MAX_RETRY_AFTER_S))

    def reset(self) -> None:
        """End the row of failures."""
        self._mean_s = self._timing.first_delay_s
