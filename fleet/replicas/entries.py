"""A channel of entries: a value per key and owner, of which the last one wins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from .channel import MAX_PAYLOAD_BYTES, UNREADABLE, MalformedError

V = TypeVar("V")

MAX_KEY_BYTES = 512
"""Longest key of an entry in UTF-8, longer than any name of an endpoint or id of a session that is kept."""


class Entries(Generic[V]):
    """Implements `Channel` for values by key. A sibling can have at most `max_entries`; further ones are ignored.

    Args:
        value: type of the values, which `msgspec` decodes and checks: whatever it accepts is taken.
        on_entry: called with owner, key, value before and value after for each change of a sibling's entry; None is no entry.
        max_entries: most entries of one owner.
    """

    def __init__(
        self, value: type[V], on_entry: Callable[[str, str, V | None, V | None], None], *, max_entries: int
    ) -> None:
        self._on_entry, self._max_entries = on_entry, max_entries
        self._own: dict[str, V] = {}
        self._changed: set[str] = set()
        self._theirs: dict[str, dict[str, V]] = {}
        self._on_change: Callable[[], None] = _nothing
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(dict[str, value | None])  # type: ignore[valid-type]

    def put(self, key: str, value: V | None) -> None:
        """Set an own entry, or remove it with None. It is published with the next `drain`."""
        if value is None:
            if self._own.pop(key, None) is None:
                return
        elif self._own.get(key) == value:
            return
        else:
            self._own[key] = value
        if not self._changed:
            self._on_change()
        self._changed.add(key)

    def own(self) -> Mapping[str, V]:
        """Return the own entries."""
        return self._own

    def owners(self) -> Mapping[str, Mapping[str, V]]:
        """Return the siblings' entries by owner and key."""
        return self._theirs

    def of(self, key: str) -> Iterator[V]:
        """Yield what the siblings have for a key."""
        for entries in self._theirs.values():
            if (value := entries.get(key)) is not None:
                yield value

    def listen(self, on_change: Callable[[], None]) -> None:
        """See `Channel.listen`."""
        self._on_change = on_change

    def drain(self) -> Sequence[bytes]:
        """See `Channel.drain`."""
        if not self._changed:
            return []
        changed = {key: self._own.get(key) for key in self._changed}
        self._changed.clear()
        return list(self._payloads(changed))

    def whole(self) -> Sequence[bytes]:
        """See `Channel.whole`."""
        return self.whole_of(self._own)

    def whole_of(self, own: Mapping[str, V]) -> Sequence[bytes]:
        """Return these entries as the whole; those that `drain` publishes stay as they are."""
        return list(self._payloads(own)) if own else []

    def apply(self, owner: str, payload: bytes) -> None:
        """See `Channel.apply`."""
        self._set(owner, self._decoded(payload))

    def replace(self, owner: str, payloads: Sequence[bytes]) -> None:
        """See `Channel.replace`."""
        whole: dict[str, V | None] = {}
        for payload in payloads:
            whole.update(self._decoded(payload))
        gone = [key for key in self._theirs.get(owner, {}) if whole.get(key) is None]
        self._set(owner, dict.fromkeys(gone))
        self._set(owner, whole)

    def drop(self, owner: str) -> None:
        """See `Channel.drop`."""
        for key, value in self._theirs.pop(owner, {}).items():
            self._on_entry(owner, key, value, None)

    def _set(self, owner: str, changes: Mapping[str, V | None]) -> None:
        entries = self._theirs.setdefault(owner, {})
        for key, value in changes.items():
            before = entries.get(key)
            if value is not None:
                if before is None and (len(entries) >= self._max_entries or len(key) > MAX_KEY_BYTES):
                    continue
                entries[key] = value
            elif before is not None:
                del entries[key]
            if value != before:
                self._on_entry(owner, key, before, value)

    def _decoded(self, payload: bytes) -> dict[str, V | None]:
        try:
            return self._decoder.decode(payload)
        except UNREADABLE as error:
            raise MalformedError(str(error)) from None

    def _payloads(self, entries: Mapping[str, V | None]) -> Iterator[bytes]:
        payload = self._encoder.encode(entries)
        if len(payload) <= MAX_PAYLOAD_BYTES:
            yield payload
        elif len(entries) > 1:
            items = list(entries.items())
            middle = len(items) // 2
            yield from self._payloads(_dict(items[:middle]))
            yield from self._payloads(_dict(items[middle:]))


def _dict(items: Iterable[tuple[str, V | None]]) -> dict[str, V | None]:
    return dict(items)


def _nothing() -> None:
    pass
