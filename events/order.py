"""The order of one publisher's batches: each is released once, by sequence number, and other lives are recognized."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from .counters import StreamCounters
from .held import Held, HeldBatches
from .position import StreamPosition
from .stamps import BatchStamps

ItemT = TypeVar("ItemT")


class BatchOrder(Generic[ItemT]):
    """Batches of one life of a publisher, put in order.

    Args:
        held: batches that wait for a missing one before them.
        counters: of the stream; `applied`, `duplicates` and `lost` are counted here.
        position: state to continue from.

    Attributes:
        next_seq: number of the batch to release next; None if no batch was released and the first one is unknown.
        lost: whether batches of this life were given up.
    """

    def __init__(
        self, held: HeldBatches[ItemT], *, counters: StreamCounters, position: StreamPosition
    ) -> None:
        self.held = held
        self.next_seq: int | None = position.next_seq
        self.lost: bool = position.lost
        self._counters = counters
        self._stamps = BatchStamps(position.next_seq or 0, position.stamps, position.newest_stamp)

    def position(self, *, epoch: int) -> StreamPosition:
        """Return the state to continue from, without the held batches: a replay fetches them again."""
        return StreamPosition(
            epoch=epoch,
            next_seq=self.next_seq,
            stamps=self._stamps.kept(),
            newest_stamp=self._stamps.newest,
            lost=self.lost,
        )

    def begin(self) -> None:
        """Expect the life to start with batch 0 unless its start is known."""
        if self.next_seq is None:
            self.next_seq = 0

    def hold(self, seq: int, batch: Held[ItemT], *, may_give_up: bool) -> bool:
        """Hold the batch; return False if it is a duplicate, or has no room and no hole may be given up for it."""
        if (self.next_seq is not None and seq < self.next_seq) or seq in self.held:
            self._counters.duplicates += 1
            return False
        if not may_give_up and not self.held.has_room:
            return False
        self.held.put(seq, batch)
        return True

    def ready(self) -> Iterator[tuple[int, ItemT]]:
        """Release held batches in order, up to the first hole; give up holes while too much is held."""
        while True:
            if self.next_seq not in self.held:
                if not self.held.is_over:
                    return
                self.give_up_to(self.held.first)
            seq = self.next_seq or 0
            batch = self.held.pop(seq)
            self._stamps.add(seq, batch.ts)
            self.next_seq = seq + 1
            self._counters.applied += 1
            yield seq, batch.item

    def give_up_to(self, seq: int) -> None:
        """Continue with batch `seq`, without the missing ones before it."""
        first = self.next_seq or 0
        if (first, seq) != (0, 1):  # some publishers count from 1
            self._counters.lost += seq - first
            self.lost |= seq > first
        self.next_seq = seq
        self._stamps.break_off()

    def is_new_life(self, seq: int, ts: float) -> bool:
        """Return whether batch `seq` with this time stamp belongs to another life.

        A duplicate carries the same time stamp as the first copy; another life's batch of the same number does not.
        """
        if seq in self.held:
            known: float | None = self.held.stamp(seq)
        elif self.next_seq is None or seq >= self.next_seq:
            return False
        else:
            known = self._stamps.of(seq)
        if known is None:
            return ts > self._stamps.newest
        return known not in (ts, 0) and ts != 0

    def clear(self) -> None:
        """Start a new life."""
        self.next_seq = None
        self.held.clear()
        self._stamps.clear()
        self.lost = False
