"""Payloads decoded in C++: events in the forms that engines usually send. `wire` decodes all others."""

from __future__ import annotations

from collections.abc import Iterator

from . import _native
from .errors import WireError
from .model import DEFAULT_MEDIUM, Batch, BlockRemoved, BlockStored, Event, MediumName
from .wire import MAX_PAYLOAD_BYTES, decode_event
from .wire import decode_batch as decode_in_python


class NativeBatch:
    """A decoded payload. Implements `Batch`; events of the usual forms become Python values only on iteration.

    Attributes:
        native: the decoded events, which the native ledger reads in place.
        n_sent: events of the message, unreadable ones included.
        size_bytes: payload size.
    """

    __slots__ = ("_others", "n_sent", "native", "rank", "rejected", "size_bytes", "timestamp")

    def __init__(
        self,
        native: _native.Batch,
        *,
        timestamp: float,
        rank: int | None,
        unusual: list[int],
        size_bytes: int,
    ) -> None:
        self.native, self.timestamp, self.rank, self.size_bytes = native, timestamp, rank, size_bytes
        self.n_sent = native.size()
        rejected: list[str] = []
        self._others: dict[int, Event | None] = {}
        for position in unusual:
            try:
                self._others[position] = decode_event(native.event_bytes(position))
            except WireError as error:
                self._others[position] = None
                rejected.append(error.reason)
        self.rejected = tuple(rejected)

    def __len__(self) -> int:
        return self.n_sent - len(self.rejected)

    def __iter__(self) -> Iterator[Event]:
        return (event for n in range(self.n_sent) if (event := self.event(n)) is not None)

    @property
    def removed_media(self) -> frozenset[MediumName]:
        """See `Batch.removed_media`. Cost: O(events), 1 ns each."""
        usual = {MediumName(sent.upper()) if sent else DEFAULT_MEDIUM for sent in self.native.removed_media()}
        return frozenset(usual | {e.medium for e in self._others.values() if isinstance(e, BlockRemoved)})

    @property
    def adapters(self) -> frozenset[str]:
        """See `Batch.adapters`. Cost: O(events), 1 ns each."""
        others = {e.lora_name for e in self._others.values() if isinstance(e, BlockStored) and e.lora_name}
        return frozenset({name for name in self.native.adapters() if name} | others)

    def event(self, position: int) -> Event | None:
        """Return the event as a value, None if it is unreadable."""
        if position in self._others:
            return self._others[position]
        return decode_event(self.native.event_bytes(position))


def decode_batch(payload: bytes) -> Batch:
    """Decode a payload: same events, rejections and errors as `wire.decode_batch`. Cost: O(bytes), about 3 ns per byte."""
    decoded = _native.decode_batch(payload) if len(payload) <= MAX_PAYLOAD_BYTES else None
    if decoded is None:
        return decode_in_python(payload)
    native, timestamp, rank, unusual = decoded
    return NativeBatch(native, timestamp=timestamp, rank=rank, unusual=unusual, size_bytes=len(payload))
