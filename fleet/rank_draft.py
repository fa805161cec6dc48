"""The state of a rank that is built from a snapshot of its publisher."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from ..events.model import Batch
from ..indexer.draft import RankDraft

SLICE_COST = 1_000
"""Work between two steps, in microseconds as `Steps` guesses them."""


class SnapshotDraft:
    """Implements `events.sink.Draft`.

    Args:
        draft: gets the events.
        adopted: called with the LoRA adapters that the events name, after the rank has taken the state over.
    """

    def __init__(self, draft: RankDraft, adopted: Callable[[frozenset[str]], None]) -> None:
        self._draft, self._adopted = draft, adopted
        self._adapters = frozenset[str]()

    def apply(self, batch: Batch) -> Iterator[None]:
        """See `Draft.apply`."""
        since = 0
        for cost in self._draft.ledger.steps(batch):
            since += cost
            if since >= SLICE_COST:
                since = 0
                yield
        self._adapters |= batch.adapters

    def adopt(self) -> None:
        """See `Draft.adopt`."""
        self._draft.adopt(now=time.monotonic())
        self._adopted(self._adapters)
