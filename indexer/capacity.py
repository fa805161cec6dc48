"""How much a tier really holds, told by how much it held whenever the engine gave blocks up."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

MAX_PEAKS = 64
"""Peaks remembered; a tier that is full has one with every few requests."""

ENOUGH_PEAKS = 8
"""Peaks near the highest below which nothing is concluded: an engine may also give up blocks before its tier is full."""

NEAR = 0.95
"""Part of the highest peak from which a peak counts as near: engines keep blocks of requests under way from eviction."""

CLEARED = 0.5
"""Part of what was held below which it was cleared, not evicted."""


class ObservedCapacity(NamedTuple):
    """What a tier holds when it is full.

    Attributes:
        n_blocks: the most it held.
        spread: how far below, as a part of that, the lowest of the peaks lies that this rests on.
        n_peaks: their number.
    """

    n_blocks: int
    spread: float
    n_peaks: int


class CapacityGauge:
    """Watches the size of one tier of one publisher, batch by batch. Cost: O(1) a batch."""

    def __init__(self) -> None:
        self._held = 0
        self._peaks: deque[int] = deque(maxlen=MAX_PEAKS)

    def observe(self, n_blocks: int) -> None:
        """The tier holds `n_blocks` after one more batch of events."""
        if self._held * CLEARED <= n_blocks < self._held:
            self._peaks.append(self._held)
        self._held = n_blocks

    def observed(self) -> ObservedCapacity | None:
        """None while too few peaks lie together. Cost: O(peaks)."""
        highest = max(self._peaks, default=0)
        near = [peak for peak in self._peaks if peak >= NEAR * highest]
        if len(near) < ENOUGH_PEAKS:
            return None
        return ObservedCapacity(highest, 1 - min(near) / highest, len(near))
