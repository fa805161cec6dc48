"""Batches made of values, without bytes of a message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvatlas.events.model import BlockRemoved, BlockStored, Event, MediumName


@dataclass(frozen=True, slots=True)
class EventBatch:
    """A batch with every event as a value. Implements `Batch`."""

    timestamp: float
    events: tuple[Event, ...]
    rank: int | None = None
    rejected: tuple[str, ...] = ()
    size_bytes: int = field(default=0, compare=False)

    @property
    def n_unknown_removals(self) -> int:
        """See `Batch.n_unknown_removals`."""
        return 0

    @property
    def removed_media(self) -> frozenset[MediumName]:
        """See `Batch.removed_media`."""
        return frozenset(event.medium for event in self.events if isinstance(event, BlockRemoved))

    @property
    def adapters(self) -> frozenset[str]:
        """See `Batch.adapters`."""
        names = (event.lora_name for event in self.events if isinstance(event, BlockStored))
        return frozenset(name for name in names if name)

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)
