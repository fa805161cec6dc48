"""Batches whose events are decoded one by one, when they are needed: a message may have more than one turn can decode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import msgspec

from .errors import WireError
from .model import BlockRemoved, BlockStored, Event, MediumName

MAX_NAMES = 256
"""Media and adapters reported per batch, as in native/module.cpp; engines send a handful."""


class LazyBatch(ABC):
    """Part of a `Batch`: decodes events on demand, and notes what it finds. Decoding all is cheap if they were iterated.

    Args:
        n_sent: events that `event` can return, unreadable ones included.
        lazy: positions of the events that are decoded on demand and noted here, ascending.
        n_unknown: events of unknown kinds beside them.
        decode: decodes an event, as `wire.decode_event` does.

    Attributes:
        n_decoded_bytes: bytes of the events decoded so far.
        n_applied: events that are applied already.
        n_unknown_removals: blocks that these removed, and that were unknown.
    """

    __slots__ = (
        "_adapters",
        "_decode",
        "_lazy",
        "_media",
        "_n_noted",
        "_n_unknown",
        "_rejected",
        "n_applied",
        "n_decoded_bytes",
        "n_sent",
        "n_unknown_removals",
    )

    def __init__(
        self,
        *,
        n_sent: int,
        lazy: Sequence[int],
        n_unknown: int,
        decode: Callable[[bytes | msgspec.Raw], Event],
    ) -> None:
        self._decode = decode
        self.n_sent = n_sent
        self.n_decoded_bytes = self.n_applied = self.n_unknown_removals = 0
        self._lazy, self._n_noted, self._n_unknown = lazy, 0, n_unknown
        self._rejected = ["unknown_tag"] * n_unknown
        self._media: set[MediumName] = set()
        self._adapters: set[str] = set()

    def resume(self, n_applied: int, *, n_unknown: int) -> None:
        """Set `n_applied` and `n_unknown_removals`."""
        self.n_applied, self.n_unknown_removals = n_applied, n_unknown

    @abstractmethod
    def _raw(self, position: int) -> bytes | msgspec.Raw:
        """Return the bytes of an event."""

    def __len__(self) -> int:
        if self._lazy:
            self._note_all()
        return self.n_sent + self._n_unknown - len(self._rejected)

    def __iter__(self) -> Iterator[Event]:
        return (event for n in range(self.n_sent) if (event := self.event(n)) is not None)

    @property
    def events(self) -> tuple[Event, ...]:
        """All readable events."""
        return tuple(self)

    @property
    def rejected(self) -> tuple[str, ...]:
        """See `Batch.rejected`."""
        if self._lazy:
            self._note_all()
        return tuple(self._rejected)

    @property
    def removed_media(self) -> frozenset[MediumName]:
        """See `Batch.removed_media`."""
        self._note_all()
        return frozenset(self._media)

    @property
    def adapters(self) -> frozenset[str]:
        """See `Batch.adapters`."""
        self._note_all()
        return frozenset(self._adapters)

    def event(self, position: int) -> Event | None:
        """Decode and return one event, None if it is unreadable."""
        raw, event, reason = self._raw(position), None, ""
        self.n_decoded_bytes += len(raw)
        try:
            event = self._decode(raw)
        except WireError as error:
            reason = error.reason
        if self._n_noted < len(self._lazy) and self._lazy[self._n_noted] == position:
            self._n_noted += 1
            self._note(event, reason)
        return event

    def _note(self, event: Event | None, reason: str) -> None:
        if event is None:
            self._rejected.append(reason)
        elif isinstance(event, BlockRemoved):
            if len(self._media) < MAX_NAMES:
                self._media.add(event.medium)
        elif isinstance(event, BlockStored) and event.lora_name and len(self._adapters) < MAX_NAMES:
            self._adapters.add(event.lora_name)

    def _note_all(self) -> None:
        while self._n_noted < len(self._lazy):
            self.event(self._lazy[self._n_noted])
