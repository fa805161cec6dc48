"""A server of the encode stage, which encodes images and other media one after another."""

from __future__ import annotations

from collections import deque


class Encoder:
    """Queue of media on a virtual clock.

    Args:
        s_per_item: seconds per image, video or audio.
    """

    def __init__(self, s_per_item: float) -> None:
        self._s_per_item = s_per_item
        self._ends: deque[float] = deque()

    def encode(self, now: float) -> float:
        """Queue one item, and return when it will be encoded."""
        begins_at = max(now, self._ends[-1]) if self._ends else now
        self._ends.append(begins_at + self._s_per_item)
        return self._ends[-1]

    def n_queued(self, now: float) -> int:
        """Return the number of items that are queued or being encoded."""
        while self._ends and self._ends[0] <= now:
            self._ends.popleft()
        return len(self._ends)
