"""The link between GPU and CPU memory: one queue of copies per direction, both slower while both are busy."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum


class Direction(Enum):
    """Direction of a copy."""

    TO_GPU = 0
    TO_CPU = 1


@dataclass(slots=True, eq=False)
class Copy:
    """One copy on the link.

    Attributes:
        left_s: remaining seconds once it is first in its queue, if the other direction is idle.
        is_done: whether it is complete.
    """

    left_s: float
    is_done: bool = False

    @property
    def has_failed(self) -> bool:
        """Never: see `Arrival`."""
        return False


class HostLink:
    """The copies of one engine; those of one direction run one after another.

    Args:
        speed_both_ways: speed of each direction while both are busy, relative to one alone: 1 if they are independent, 0.5
            if they share the bandwidth of one.
    """

    def __init__(self, *, speed_both_ways: float) -> None:
        self._speed_both_ways = speed_both_ways
        self._queues: dict[Direction, deque[Copy]] = {way: deque() for way in Direction}
        self._now = 0.0

    def begin(self, way: Direction, seconds: float, *, now: float) -> Copy:
        """Queue a copy that takes `seconds` if the other direction is idle."""
        self.advance(now)
        copy = Copy(seconds)
        self._queues[way].append(copy)
        self.advance(now)
        return copy

    def next_at(self) -> float | None:
        """Return when the next copy completes if no other begins; None if there is none."""
        heads = self._heads()
        return self._now + min(copy.left_s for copy in heads) / self._speed(heads) if heads else None

    def advance(self, now: float) -> None:
        """Continue copying until `now`, in seconds; a time in the past has no effect. Cost: O(completed copies)."""
        while heads := self._heads():
            nearest, speed = min(copy.left_s for copy in heads), self._speed(heads)
            ends_at = self._now + nearest / speed
            done_s = nearest if ends_at <= now else max(0.0, now - self._now) * speed
            for copy in heads:
                copy.left_s -= done_s
            for queue in self._queues.values():
                if queue and queue[0].left_s <= 0.0:
                    queue.popleft().is_done = True
            if ends_at > now:
                break
            self._now = max(ends_at, self._now)
        self._now = max(now, self._now)

    def _heads(self) -> list[Copy]:
        return [queue[0] for queue in self._queues.values() if queue]

    def _speed(self, heads: list[Copy]) -> float:
        return self._speed_both_ways if len(heads) == 2 else 1.0
