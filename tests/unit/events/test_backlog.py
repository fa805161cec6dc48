"""Batches that wait for their turn to be applied."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from kvatlas.events.backlog import Backlog
from kvatlas.events.message import Unreadable
from kvatlas.events.model import Batch
from support.batches import EventBatch


def make_backlog(n_batches: int, *, n_slices: int = 0) -> tuple[Backlog, list[float]]:
    """Return a backlog under a clock that advances by one with every look, and what it has applied."""
    applied: list[float] = []

    def apply(content: Batch | Unreadable, *, live: bool) -> Iterator[None] | None:
        assert live
        assert isinstance(content, EventBatch)
        applied.append(content.timestamp)
        return rest(content.timestamp) if n_slices else None

    def rest(timestamp: float) -> Iterator[None]:
        for _ in range(n_slices):
            applied.append(timestamp + 0.5)
            yield

    ticks = count()
    backlog = Backlog(apply, clock=lambda: float(next(ticks)))
    for seq in range(n_batches):
        backlog.add(seq, EventBatch(float(seq), (), size_bytes=10), live=True)
    return backlog, applied


def test_batches_are_applied_until_the_turn_ends() -> None:
    backlog, applied = make_backlog(10)
    assert (backlog.work(until=3), applied) == (True, [0, 1, 2, 3])
    assert (backlog.first, backlog.size_bytes) == (4, 60)
    assert (backlog.work(until=0), applied[4:]) == (True, [4]), "one at least, even if the turn is over"
    assert (backlog.work(until=100), applied[-1], backlog.first) == (False, 9, None)
    assert not backlog


def test_long_batch_is_applied_in_slices_before_the_next_one() -> None:
    backlog, applied = make_backlog(2, n_slices=2)
    assert backlog.work(until=0)
    assert (applied, backlog.first) == ([0], 1)
    backlog.finish_batch()
    assert applied == [0, 0.5, 0.5]
    assert not backlog.work(until=100)
    assert applied == [0, 0.5, 0.5, 1, 1.5, 1.5]


def test_cleared_backlog_applies_nothing_more() -> None:
    backlog, applied = make_backlog(3, n_slices=2)
    backlog.work(until=0)
    backlog.clear()
    assert (backlog.work(until=100), applied, backlog.size_bytes) == (False, [0], 0)
