"""The order of one publisher's batches: each is released once, by sequence number, and other lives are recognized."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from math import inf
from typing import Generic, TypeVar

from .counters import StreamCounters
from .held import Held, HeldBatches
from .position import StreamPosition
from .stamps import BatchStamps

ItemT = TypeVar("ItemT")

MAX_JUMP = 1 << 24
"""Largest believable step ahead; a publisher of 1,000 batches per second takes over four hours for it."""


class Verdict(Enum):
    """Relation of a batch to the applied ones, by its number and time stamp."""

    USUAL = auto()
    """It follows them, or is the same as one of them."""
    DOUBTFUL = auto()
    """It has an applied number whose time stamp is no longer known, or is too far ahead."""
    NEW_LIFE = auto()
    """It belongs to another life of the publisher."""


class BatchOrder(Generic[ItemT]):
    """Batches of one life of a publisher, put in order.

    Args:
        held: batches that wait for a missing one before them.
        counters: of the stream; `applied`, `duplicates` and `lost` are counted here.
        position: state to continue from.

    Attributes:
        next_seq: number of the batch to release next; None if no batch was released and the first one is unknown.
        lost: whether batches of this life were given up.
        latest: newest time stamp that can be true; a later one is no evidence of a new life.
        believes_stamps: whether time stamps are evidence at all.
        counts_from_0: whether the publisher's first batch surely has the number 0; some publishers count from 1.
    """

    def __init__(
        self, held: HeldBatches[ItemT], *, counters: StreamCounters, position: StreamPosition
    ) -> None:
        self.held = held
        self.next_seq: int | None = position.next_seq
        self.lost: bool = position.lost
        self.latest = inf
        self.believes_stamps: bool = True
        self.counts_from_0 = False
        self._counters = counters
        self._stamps = BatchStamps(position.next_seq or 0, position.stamps, position.newest_stamp)

    def position(self, *, epoch: int, life: bytes) -> StreamPosition:
        """Return the state to continue from, without the held batches: a replay fetches them again."""
        return StreamPosition(
            epoch=epoch,
            next_seq=self.next_seq,
            stamps=self._stamps.kept(),
            newest_stamp=self._stamps.newest,
            lost=self.lost,
            life=life,
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

    def release(self, seq: int, ts: float) -> None:
        """Note that batch `seq`, the next one, is released."""
        self._stamps.add(seq, ts, believable=ts <= self.latest)
        self.next_seq = seq + 1
        self._counters.applied += 1

    def ready(self) -> Iterator[tuple[int, ItemT]]:
        """Release held batches in order, up to the first hole; give up holes while too much is held."""
        while True:
            if self.next_seq not in self.held:
                if not self.held.is_over:
                    return
                self.give_up_to(self.held.first)
            seq = self.next_seq or 0
            batch = self.held.pop(seq)
            self.release(seq, batch.ts)
            yield seq, batch.item

    def resume(self, seq: int) -> None:
        """Continue with batch `seq`: all before it are known by other means."""
        self.held.drop_before(seq)
        self.next_seq, self.lost = seq, False
        self._stamps.break_off()

    def give_up_to(self, seq: int) -> None:
        """Continue with batch `seq`, without the missing ones before it."""
        first = self.next_seq or 0
        if (first, seq) != (0, 1) or self.counts_from_0:
            self._counters.lost += seq - first
            self.lost |= seq > first
        self.next_seq = seq
        self._stamps.break_off()

    def judge(self, seq: int, ts: float, *, strict: bool) -> Verdict:
        """Return the relation of batch `seq` to the applied ones.

        A duplicate carries the same time stamp as the first copy; another life's batch of the same number does not.

        Args:
            seq: its number.
            ts: its time stamp, 0 if unknown.
            strict: whether a known time stamp differs from an unknown one. Only right if the history can be fetched
                again: an unreadable time stamp is weak evidence.
        """
        if seq in self.held:
            known: float | None = self.held.stamp(seq)
        elif self.next_seq is None or seq >= self.next_seq:
            return Verdict.DOUBTFUL if self.next_seq and seq - self.next_seq > MAX_JUMP else Verdict.USUAL
        else:
            known = self._stamps.of(seq)
        if not self.believes_stamps:
            return Verdict.DOUBTFUL
        if known is None:
            return Verdict.NEW_LIFE if self._stamps.newest < ts <= self.latest else Verdict.DOUBTFUL
        if known == ts:
            return Verdict.USUAL if ts else Verdict.DOUBTFUL
        return Verdict.NEW_LIFE if strict or (known and ts) else Verdict.DOUBTFUL

    def clear(self) -> None:
        """Start a new life."""
        self.next_seq = None
        self.held.clear()
        self._stamps.clear()
        self.lost = False
