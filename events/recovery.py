"""Pauses between requests for snapshots of one publisher, which double while losses follow each other."""

from __future__ import annotations

from collections.abc import Callable

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0

CALM_S = 60.0
"""Time since the last snapshot after which the next pause is the first one again."""


class Recovery:
    """Pauses between the snapshots of one publisher. Failed ones count too: they cost as much as good ones.

    Args:
        rng: random numbers in [0, 1), so that a fleet that lost events together does not request snapshots together.
    """

    def __init__(self, rng: Callable[[], float]) -> None:
        self._rng = rng
        self._pause_s = FIRST_PAUSE_S
        self._ended_at: float | None = None
        self._next_at = 0.0

    def is_due(self, *, now: float) -> bool:
        """Return whether a snapshot may be requested."""
        return now >= self._next_at

    def ended(self, *, now: float) -> None:
        """Begin the pause after a request: half of it to all of it, doubled each time up to the longest."""
        is_calm = self._ended_at is None or now - self._ended_at >= CALM_S
        self._pause_s = FIRST_PAUSE_S if is_calm else min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._ended_at, self._next_at = now, now + self._pause_s * (1 + self._rng()) / 2
