"""Rate of events, with exponentially fading counts."""

from __future__ import annotations

import math

MEMORY_MS = 30_000.0
"""Time constant in milliseconds: bursts of a minute are followed."""


class Rate:
    """Events per millisecond. Cost: O(1) each."""

    def __init__(self) -> None:
        self._count, self._at, self._since = 0.0, 0.0, math.nan

    def add(self, now: float) -> None:
        """Count an event at `now`, in monotonic seconds."""
        if math.isnan(self._since):
            self._since = now
        self._count, self._at = self._faded(now) + 1.0, now

    def at(self, now: float) -> float:
        """Return the rate; 0 before the first event."""
        if math.isnan(self._since):
            return 0.0
        # of a short past only a part of the time constant was seen
        seen_ms = MEMORY_MS * -math.expm1(-max(0.0, now - self._since) * 1000.0 / MEMORY_MS)
        return self._faded(now) / max(seen_ms, 1000.0)

    def _faded(self, now: float) -> float:
        return self._count * math.exp(-max(0.0, now - self._at) * 1000.0 / MEMORY_MS)
