"""The record from which a simulated publisher makes snapshots: events that rebuild, from nothing, what its engine holds.

Stores are kept whole, in their order, as long as a block that is held needs them: by itself, or through the blocks before it.
A snapshot has these stores, and then removals of the blocks in them that are no longer held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ..events.model import EngineHash
from .kv_events import GPU, AllBlocksCleared, BlockRemoved, BlockStored, Event

EVENTS_PER_CHUNK = 256
"""Events in one part of a snapshot."""

_SLACK = 1024
"""Stores beyond twice the needed ones before the others are dropped."""

_Key = tuple[str, EngineHash]
"""Medium and hash of a block."""


class Recorder:
    """State of one publisher, from which a snapshot is made.

    Attributes:
        has_failed: whether there are no snapshots any more; tests set it.
    """

    def __init__(self) -> None:
        self.has_failed = False
        self._stores: dict[int, BlockStored] = {}
        self._held: dict[_Key, tuple[int, int]] = {}
        """Copies of a block, and its last store."""
        self._told_by: dict[EngineHash, int] = {}
        """The last store with a block's tokens."""
        self._needs: dict[int, set[int]] = {}
        """The stores without which another has no meaning."""
        self._next = self._n_needed = 0

    def record(self, events: Iterable[Event]) -> None:
        """Add published events."""
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    for block in event.block_hashes:
                        self._remove((event.medium, block))
                case AllBlocksCleared():
                    self._held = {key: each for key, each in self._held.items() if key[0] != GPU}
        if len(self._stores) > 2 * self._n_needed + _SLACK:
            self._collect()

    def chunks(self) -> Iterator[tuple[Event, ...]]:
        """Yield the events of a snapshot, some at a time. Cost: O(blocks)."""
        self._collect()
        events = list(self._events())
        for first in range(0, len(events), EVENTS_PER_CHUNK):
            yield tuple(events[first : first + EVENTS_PER_CHUNK])

    def _events(self) -> Iterator[Event]:
        excess = Counter[_Key]()
        for event in self._stores.values():
            yield event
            excess.update((event.medium, block) for block in event.block_hashes)
        for key, (n_copies, number) in self._held.items():
            while excess[key] < n_copies:
                event = self._stores[number]
                yield event
                excess.update((event.medium, block) for block in event.block_hashes)
        for key, (n_copies, _) in self._held.items():
            excess[key] -= n_copies
        for medium in dict.fromkeys(medium for medium, _ in excess):
            gone = [block for (of, block), n in excess.items() if of == medium for _ in range(n)]
            if gone:
                yield BlockRemoved(block_hashes=tuple(gone), medium=medium, group_idx=0)

    def _store(self, event: BlockStored) -> None:
        number, self._next = self._next, self._next + 1
        self._stores[number] = event
        before = event.block_hashes if not event.token_ids else ()
        if event.parent_block_hash is not None:
            before = (*before, event.parent_block_hash)
        self._needs[number] = {self._told_by[block] for block in before if block in self._told_by}
        for block in event.block_hashes:
            n_copies, _ = self._held.get((event.medium, block), (0, 0))
            self._held[event.medium, block] = n_copies + 1, number
            if event.token_ids:
                self._told_by[block] = number

    def _remove(self, key: _Key) -> None:
        n_copies, number = self._held.get(key, (0, 0))
        if n_copies > 1:
            self._held[key] = n_copies - 1, number
        else:
            self._held.pop(key, None)

    def _collect(self) -> None:
        """Drop the stores that no held block needs."""
        needed = set[int]()
        waiting = {number for _, number in self._held.values()}
        while waiting:
            number = waiting.pop()
            needed.add(number)
            waiting |= self._needs[number] - needed
        self._stores = {number: event for number, event in self._stores.items() if number in needed}
        self._needs = {number: needs for number, needs in self._needs.items() if number in needed}
        self._told_by = {block: number for block, number in self._told_by.items() if number in needed}
        self._n_needed = len(needed)
