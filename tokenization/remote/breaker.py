"""A circuit breaker for one server.

closed     requests are allowed; `failures` failures in a row open the breaker
open       no requests for `cooldown_s`
half open  one request is allowed, the probe: its success closes the breaker, its failure opens it again
"""

from __future__ import annotations

from enum import Enum, auto


class Permit(Enum):
    """Permission for one request; the caller returns it with the outcome."""

    NORMAL = auto()
    PROBE = auto()


class CircuitBreaker:
    """The state of one server. Time is monotonic seconds.

    Args:
        failures: consecutive failures that open the breaker, at least 1.
        cooldown_s: time for which it stays open.
    """

    def __init__(self, *, failures: int, cooldown_s: float) -> None:
        self._limit, self._cooldown_s = failures, cooldown_s
        self._failures = 0
        self._opened_at: float | None = None
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether the breaker is open or half open."""
        return self._opened_at is not None

    def acquire(self, now: float) -> Permit | None:
        """Return a permit for one request; None if the server must not get one."""
        if self._opened_at is None:
            return Permit.NORMAL
        if self._probing or now - self._opened_at < self._cooldown_s:
            return None
        self._probing = True
        return Permit.PROBE

    def succeeded(self, permit: Permit) -> None:
        """Record a response, even a late one."""
        self.abandoned(permit)
        self._failures, self._opened_at = 0, None

    def failed(self, permit: Permit, now: float) -> None:
        """Record a missing response, or one that reports an error of the server."""
        self.abandoned(permit)
        if self._opened_at is None:
            self._failures += 1
            if self._failures >= self._limit:
                self._opened_at = now
        elif permit is Permit.PROBE:
            self._opened_at = now

    def abandoned(self, permit: Permit) -> None:
        """Return the permit of a cancelled request."""
        if permit is Permit.PROBE:
            self._probing = False
