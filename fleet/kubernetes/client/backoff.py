"""Durations and exponential backoff for requests to an API server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .errors import UNANSWERED, Failure

MAX_RETRY_AFTER_S = 120.0
"""Longest `Retry-After` obeyed, so that a wrong header cannot stop discovery for a day."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations of retries and watches.

    Attributes:
        first_delay_s: mean delay after the first failure in a row; doubles with each further one. As in client-go.
        max_delay_s: longest mean delay. As in client-go.
        away_delay_s: longest mean delay while the server does not respond, which costs it nothing.
        healthy_s: a watch that lasts this long, or delivers an event, ends a row of failures.
        short_watch_s: a watch that ends sooner counts as failed, so that a server that closes at once causes no busy loop.
        watch_s: shortest requested duration of a watch; the longest is twice that, drawn for each watch.
            A silent watch is noticed at its end, so this is short; servers send a bookmark 2 s before each end.
        slack_s: time after the requested end at which a watch is given up.
        missing_s: a kind that is not served for this long has no objects; a starting API server may not serve it yet.
        gone_s: a pool that comes back within this time was replaced, and its endpoints stay.
    """

    first_delay_s: float = 0.8
    max_delay_s: float = 30.0
    away_delay_s: float = 2.0
    healthy_s: float = 10.0
    short_watch_s: float = 1.0
    watch_s: int = 12
    slack_s: float = 4.0
    missing_s: float = 30.0
    gone_s: float = 2.0


class Backoff:
    """Exponential backoff.

    Args:
        timing: mean delays.
        rng: uniform in [0, 1); varies each delay from half to one and a half of its mean.
    """

    def __init__(self, timing: Timing, rng: Callable[[], float]) -> None:
        self._timing, self._rng = timing, rng
        self._mean_s = timing.first_delay_s
        self._was_woken = False

    def failed(self, failure: Failure) -> float:
        """Return the delay in seconds after one more failure: the one that the server asks for, otherwise our own."""
        spread = 0.5 + self._rng()
        if failure.retry_after_s:
            return max(self._timing.first_delay_s * spread, min(failure.retry_after_s, MAX_RETRY_AFTER_S))
        mean_s, self._mean_s = self._mean_s, min(self._mean_s * 2, self._timing.max_delay_s)
        return spread * (min(mean_s, self._timing.away_delay_s) if failure.reason in UNANSWERED else mean_s)

    def reset(self) -> None:
        """End the row of failures."""
        self._mean_s = self._timing.first_delay_s
        self._was_woken = False

    def wake(self) -> bool:
        """Return whether to retry now, because the server answers again; only once in a row of failures."""
        if self._was_woken:
            return False
        self.reset()
        self._was_woken = True
        return True
