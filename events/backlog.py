"""Batches of one publisher that are in order but not applied yet, since one turn had no time for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from .message import Unreadable
from .model import Batch

_END = object()


class ApplyBatch(Protocol):
    """Applies a batch in slices, and raises nothing."""

    def __call__(self, content: Batch | Unreadable, *, live: bool) -> Iterator[None] | None:
        """Apply the first slice; return an iterator that applies another with each item, None if that was all."""
        ...


class Backlog:
    """Batches that wait to be applied, the first one perhaps in part.

    Args:
        apply: applies one.
        clock: for the ends of turns.

    Attributes:
        size_bytes: of all that wait.
    """

    def __init__(self, apply: ApplyBatch, *, clock: Callable[[], float]) -> None:
        self._apply, self._clock = apply, clock
        self._waiting: deque[tuple[int, Batch | Unreadable, bool]] = deque()
        """Number, content and whether it is live."""
        self._slices: Iterator[None] | None = None
        """The rest of a batch that is no longer among the waiting ones."""
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return self._slices is not None or bool(self._waiting)

    @property
    def first(self) -> int | None:
        """Number of the first batch of which nothing is applied, None if there is none."""
        return self._waiting[0][0] if self._waiting else None

    @property
    def is_amid_batch(self) -> bool:
        """Whether a batch is applied in part."""
        return self._slices is not None

    def add(self, seq: int, content: Batch | Unreadable, *, live: bool) -> None:
        """Add the next batch."""
        self._waiting.append((seq, content, live))
        self.size_bytes += content.size_bytes

    def start(self, seq: int, content: Batch | Unreadable, *, live: bool) -> None:
        """Add the next batch; if none waits before it, apply its first slice."""
        if self:
            self.add(seq, content, live=live)
        else:
            self._slices = self._apply(content, live=live)

    def work(self, until: float) -> bool:
        """Apply at least one slice, and no further after `until`; return whether there are more."""
        while self._step():
            if self._clock() >= until:
                return bool(self)
        return False

    def finish_batch(self) -> None:
        """Apply the rest of a batch that is applied in part."""
        while self._slices is not None:
            self._step()

    def clear(self) -> None:
        """Drop all that wait."""
        self._waiting.clear()
        self._slices, self.size_bytes = None, 0

    def _step(self) -> bool:
        """Apply one slice; return False if there is none."""
        if self._slices is None:
            if not self._waiting:
                return False
            _, content, live = self._waiting.popleft()
            self.size_bytes -= content.size_bytes
            self._slices = self._apply(content, live=live)
        elif next(self._slices, _END) is _END:
            self._slices = None
        return True
