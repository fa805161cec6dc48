"""The observed capacity of a tier: its size whenever the engine evicted blocks."""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import NamedTuple

MAX_PEAKS = 64
"""Peaks kept; a full tier has one every few requests."""

ENOUGH_PEAKS = 8
"""Peaks near the highest that are needed: an engine may also remove blocks before its tier is full."""

NEAR = 0.95
"""Fraction of the highest peak from which a peak counts as near: engines do not evict blocks of running requests."""

CLEARED = 0.5
"""Fraction of the previous size below which the tier was cleared, not evicted from."""


class Basis(StrEnum):
    """The evidence of an observed capacity."""

    EVICTIONS = "evictions"
    """The tier's size when its engine evicted blocks."""
    AUDIT = "audit"
    """The fraction of the tier's expected blocks that its engine reused."""


LEAST_ERROR = {Basis.EVICTIONS: 0.01, Basis.AUDIT: 0.15}
"""Least error as a fraction, even if all values agree: peaks miss blocks of running requests without a hash, and requests
rarely use blocks that are about to be evicted."""


class ObservedCapacity(NamedTuple):
    """The number of blocks in a full tier.

    Attributes:
        n_blocks: from evictions the highest peak, from the audit the median of the latest bounds.
        spread: range of the values behind it, as a fraction of the highest.
        n_samples: evictions, or audited requests.
        basis: evidence.
    """

    n_blocks: int
    spread: float
    n_samples: int
    basis: Basis = Basis.EVICTIONS

    @property
    def error(self) -> float:
        """Relative error of the capacity."""
        return max(LEAST_ERROR[self.basis], self.spread)


class CapacityGauge:
    """A gauge of one tier of one publisher, updated after every batch. Cost: O(1) per batch."""

    def __init__(self) -> None:
        self.n_clears = 0
        """Number of times that the tier was emptied rather than evicted from."""
        self._held = 0
        self._peaks: deque[int] = deque(maxlen=MAX_PEAKS)

    def observe(self, n_blocks: int, *, replaced: bool = False) -> None:
        """Record the size of the tier after one more batch of events.

        Args:
            n_blocks: blocks in the tier.
            replaced: whether the batch removed blocks of the tier; with an unchanged size the tier was then full.
        """
        if n_blocks < self._held * CLEARED:
            self.n_clears += 1
        elif self._held and n_blocks < self._held + replaced:
            self._peaks.append(self._held)
        self._held = n_blocks

    def observed(self) -> ObservedCapacity | None:
        """Return the capacity, None while too few peaks are close together. Cost: O(peaks)."""
        highest = max(self._peaks, default=0)
        near = [peak for peak in self._peaks if peak >= NEAR * highest]
        if len(near) < ENOUGH_PEAKS:
            return None
        return ObservedCapacity(highest, 1 - min(near) / highest, len(near))
