"""Whether a server that failed is asked again.

closed     asked; `failures` failures in a row open it
open       not asked for `cooldown_s`
half open  asked by one request, the probe: its success closes it, its failure opens it again
"""

from __future__ import annotations

from enum import Enum, auto


class Permit(Enum):
    """Leave to ask the server once; it is handed back with the outcome."""

    USUAL = auto()
    PROBE = auto()


class CircuitBreaker:
    """The state of one server. Time is monotonic seconds.

    Args:
        failures: in a row that open it, at least 1.
        cooldown_s: time that an open one stays so.
    """

    def __init__(self, *, failures: int, cooldown_s: float) -> None:
        self._limit, self._cooldown_s = failures, cooldown_s
        self._failures = 0
        self._opened_at: float | None = None
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether the server counts as failing, half open included."""
        return self._opened_at is not None

    def ask(self, now: float) -> Permit | None:
        """Leave to ask, None when the server is not to be asked."""
        if self._opened_at is None:
            return Permit.USUAL
        if self._probing or now - self._opened_at < self._cooldown_s:
            return None
        self._probing = True
        return Permit.PROBE

    def succeeded(self, permit: Permit) -> None:
        """The server answered, even if late."""
        self.abandoned(permit)
        self._failures, self._opened_at = 0, None

    def failed(self, permit: Permit, now: float) -> None:
        """The server did not answer, or with an error of its own."""
        self.abandoned(permit)
        if self._opened_at is None:
            self._failures += 1
            if self._failures >= self._limit:
                self._opened_at = now
        elif permit is Permit.PROBE:
            self._opened_at = now

    def abandoned(self, permit: Permit) -> None:
        """Nobody waited for the answer."""
        if permit is Permit.PROBE:
            self._probing = False
