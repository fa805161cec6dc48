"""How much a tier really holds, told by how much it held whenever the engine gave blocks up."""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import NamedTuple

MAX_PEAKS = 64
"""Peaks remembered; a tier that is full has one with every few requests."""

ENOUGH_PEAKS = 8
"""Peaks near the highest below which nothing is concluded: an engine may also give up blocks before its tier is full."""

NEAR = 0.95
"""Part of the highest peak from which a peak counts as near: engines keep blocks of requests under way from eviction."""

CLEARED = 0.5
"""Part of what was held below which it was cleared, not evicted."""


class Basis(StrEnum):
    """What an observed capacity rests on."""

    EVICTIONS = "evictions"
    """How much the tier held when its engine gave blocks up."""
    AUDIT = "audit"
    """How much of what was expected of the tier its engine reused."""


LEAST_ERROR = {Basis.EVICTIONS: 0.01, Basis.AUDIT: 0.15}
"""Part that values which agree may be off together: peaks leave out what requests under way held without a hash, and requests
seldom ask for blocks that are just about to go."""


class ObservedCapacity(NamedTuple):
    """What a tier holds when it is full.

    Attributes:
        n_blocks: by evictions the most it held, by the audit the middle of the last bounds.
        spread: how far the values that this rests on lie apart, as a part of the highest.
        n_samples: evictions, or audited requests.
        basis: which of the two.
    """

    n_blocks: int
    spread: float
    n_samples: int
    basis: Basis = Basis.EVICTIONS

    @property
    def error(self) -> float:
        """Part by which the capacity may be off."""
        return max(LEAST_ERROR[self.basis], self.spread)


class CapacityGauge:
    """Watches the size of one tier of one publisher, batch by batch. Cost: O(1) a batch."""

    def __init__(self) -> None:
        self.n_clears = 0
        """Times that the tier was emptied rather than evicted from."""
        self._held = 0
        self._peaks: deque[int] = deque(maxlen=MAX_PEAKS)

    def observe(self, n_blocks: int, *, replaced: bool = False) -> None:
        """The tier holds `n_blocks` after one more batch of events.

        Args:
            n_blocks: blocks in it.
            replaced: whether the batch removed blocks that the tier held, so that with as many as before it was full.
        """
        if n_blocks < self._held * CLEARED:
            self.n_clears += 1
        elif n_blocks < self._held + replaced:
            self._peaks.append(self._held)
        self._held = n_blocks

    def observed(self) -> ObservedCapacity | None:
        """None while too few peaks lie together. Cost: O(peaks)."""
        highest = max(self._peaks, default=0)
        near = [peak for peak in self._peaks if peak >= NEAR * highest]
        if len(near) < ENOUGH_PEAKS:
            return None
        return ObservedCapacity(highest, 1 - min(near) / highest, len(near))
