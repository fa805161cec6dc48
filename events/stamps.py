"""Time stamps of a publisher's latest batches, which separate a duplicate from a batch of another life."""

from __future__ import annotations

from array import array

N_STAMPS = 1024
"""Batches whose time stamps are kept; a power of two."""


class BatchStamps:
    """Time stamps of the latest applied batches, as the publisher sent them, and the newest of all.

    Args:
        end: sequence number after the last of `stamps`.
        stamps: of consecutive batches, at most `N_STAMPS`.
        newest: last believable time stamp, even if it is no longer among `stamps`.
    """

    def __init__(self, end: int, stamps: array[float], newest: float) -> None:
        self.newest = newest
        self._ring = array("d", [0.0]) * N_STAMPS
        self._end, self._n_kept = end, len(stamps)
        for seq, stamp in enumerate(stamps, start=end - len(stamps)):
            self._ring[seq % N_STAMPS] = stamp

    def add(self, seq: int, stamp: float, *, believable: bool) -> None:
        """Record applied batch `seq`; it follows the last one added unless `break_off` was called.

        A stamp that is not believable only identifies its batch.
        """
        self._ring[seq % N_STAMPS] = stamp
        if believable:
            self.newest = stamp
        self._end, self._n_kept = seq + 1, min(self._n_kept + 1, N_STAMPS)

    def break_off(self) -> None:
        """Forget all but the newest stamp: the next batch does not follow the last one."""
        self._n_kept = 0

    def clear(self) -> None:
        """Forget all stamps: the publisher started a new life."""
        self._n_kept, self.newest = 0, 0.0

    def of(self, seq: int) -> float | None:
        """Return the time stamp of batch `seq`, None if it is not kept."""
        return self._ring[seq % N_STAMPS] if self._end - self._n_kept <= seq < self._end else None

    def kept(self) -> array[float]:
        """Return all kept stamps, oldest first."""
        return array("d", [self._ring[seq % N_STAMPS] for seq in range(self._end - self._n_kept, self._end)])
