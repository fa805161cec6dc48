"""Batches that came before their turn."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

ItemT = TypeVar("ItemT")


class Held(NamedTuple, Generic[ItemT]):
    """One batch: the publisher's time stamp, the caller's item, and the payload size in bytes."""

    ts: float
    item: ItemT
    size_bytes: int


class HeldBatches(Generic[ItemT]):
    """Batches by sequence number.

    Args:
        max_count: batches that may be held.
        max_bytes: payload bytes that they may have together.
    """

    def __init__(self, *, max_count: int, max_bytes: int) -> None:
        self._max_count, self._max_bytes = max_count, max_bytes
        self._batches: dict[int, Held[ItemT]] = {}
        self._order: list[int] = []
        """Heap of the numbers, lowest first; one that was taken out leaves it at the top."""
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._batches)

    def __contains__(self, seq: object) -> bool:
        return seq in self._batches

    @property
    def first(self) -> int:
        """Lowest number held; at least one batch must be."""
        return self._order[0]

    @property
    def is_over(self) -> bool:
        """Whether more is held than allowed."""
        return len(self._batches) > self._max_count or self.size_bytes > self._max_bytes

    @property
    def has_room(self) -> bool:
        """Whether one more batch may be held."""
        return len(self._batches) < self._max_count and self.size_bytes <= self._max_bytes

    def stamp(self, seq: int) -> float:
        """Return the time stamp of a held batch."""
        return self._batches[seq].ts

    def put(self, seq: int, batch: Held[ItemT]) -> None:
        """Hold a batch whose number is not held yet."""
        self._batches[seq] = batch
        heappush(self._order, seq)
        self.size_bytes += batch.size_bytes

    def pop(self, seq: int) -> Held[ItemT]:
        """Take a batch out. Cost: O(log n), amortized."""
        batch = self._batches.pop(seq)
        self.size_bytes -= batch.size_bytes
        while self._order and self._order[0] not in self._batches:
            heappop(self._order)
        return batch

    def drop_after(self, seq: int) -> int:
        """Drop all later batches; return their number. Cost: O(n)."""
        late = [each for each in self._batches if each > seq]
        for each in late:
            self.size_bytes -= self._batches.pop(each).size_bytes
        self._order = sorted(self._batches)
        return len(late)

    def drop_before(self, seq: int) -> None:
        """Drop all earlier batches. Cost: O(n log n)."""
        while self._batches and self.first < seq:
            self.pop(self.first)

    def clear(self) -> None:
        """Drop all batches."""
        self._batches.clear()
        self._order.clear()
        self.size_bytes = 0
