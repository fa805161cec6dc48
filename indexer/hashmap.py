"""Engine hash -> block key of one publisher, learned from events with tokens and kept while it may be needed."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from ..events.model import BlockStored, EngineHash, MultimodalKey
from .hash_keys import hash_column, hash_key, hash_of
from .hash_table import HashTable, Known
from .keys import BlockKey, PrefixKeys, root_key
from .saved_hashes import SavedHashes
from .steps import PIECE

MAX_PARKED_BLOCKS = 65_536
"""Blocks of events with unknown parents kept per publisher, about 300 full 8k-token prefills."""

MAX_PARKED_TOKENS = 4_194_304
"""Tokens of those events, 16 MiB: a bound that does not depend on the block size."""

SLACK = 16_384
"""Hashes without residency that are kept, since their slower-tier events may still come."""

SWEPT_PER_BLOCK = 4
"""Old hashes checked per stored block while too many are known: more than are learned in the same time."""


class Residents(Protocol):
    """The blocks that a publisher holds."""

    def total(self) -> int:
        """Return the number of residencies."""
        ...

    def has(self, key: BlockKey) -> bool:
        """Return whether any tier has the key."""
        ...


class HashMap:
    """Keys of one publisher's engine hashes.

    An event with an unknown parent is parked until the parent is learned, so the order of events does not matter.

    Args:
        seed: seed of the block keys.
        make_keys: computes block keys.
        table: receives the learned hashes.
    """

    def __init__(self, *, seed: int, make_keys: PrefixKeys, table: HashTable) -> None:
        self.n_parked = 0
        self.n_dropped = 0
        self.table = table
        self._parked_tokens = 0
        self._seed, self._make_keys = seed, make_keys
        self._parked: OrderedDict[bytes, list[BlockStored]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.table)

    def get(self, engine_hash: EngineHash) -> Known | None:
        """Return the block of a hash, None if it is unknown."""
        return self.table.get(engine_hash)

    @property
    def parents_awaited(self) -> array[int]:
        """Hashes whose children are parked."""
        return hash_column(self._parked)

    @property
    def n_parents_awaited(self) -> int:
        """Number of hashes whose children are parked."""
        return len(self._parked)

    def learn(self, event: BlockStored) -> Iterator[list[EngineHash]]:
        """Learn a store event with dense tokens; yield all hashes learned, those of adopted children included.

        Learning goes on as the result is iterated. Cost: O(blocks learned).
        """
        waiting = [event]
        while waiting:
            event = waiting.pop()
            if all(self.table.get(engine_hash) for engine_hash in reversed(event.hashes)):
                continue
            parent = None if event.parent is None else self.table.get(event.parent)
            if event.parent is not None and parent is None:
                self._park(event.parent, event)
                continue
            for fresh in self._learn_one(event, parent):
                for engine_hash in fresh:
                    if self._parked:
                        children = self._parked.pop(hash_key(engine_hash), [])
                        self._unparked(children)
                        waiting += children
                yield fresh

    def sweep(self, residents: Residents, *, n_blocks: int) -> int:
        """Drop the oldest hashes of blocks that no tier has, while too many are known. Cost: O(n_blocks).

        Args:
            residents: blocks that the publisher holds.
            n_blocks: blocks stored since the last call.
        Returns:
            hashes checked.
        """
        if len(self.table) <= SLACK:
            return 0
        limit = SLACK + 2 * residents.total()
        for n_checked in range(SWEPT_PER_BLOCK * n_blocks):
            if len(self.table) <= limit:
                return n_checked
            engine_hash, known = self.table.pop_oldest()
            if residents.has(known.key):
                self.table.put(engine_hash, known)
        return SWEPT_PER_BLOCK * n_blocks

    def clear(self) -> None:
        """Drop everything: the publisher started a new life."""
        self.table.clear()
        self._parked.clear()
        self.n_parked = self._parked_tokens = 0

    def dump(self) -> SavedHashes:
        """Return everything learned and parked, to be saved. Cost: O(hashes)."""
        parked = ((hash_of(key), event) for key, events in self._parked.items() for event in events)
        return SavedHashes.of(self.table.columns(), parked)

    def load(self, saved: SavedHashes) -> None:
        """Load a dump. Cost: O(hashes)."""
        self.table.put_columns(saved.columns)
        for parked in saved.parked:
            self._park(EngineHash(parked.parent), parked.event())

    def _learn_one(self, event: BlockStored, parent: Known | None) -> Iterator[list[EngineHash]]:
        root = parent.key if parent else _root(event, self._seed)
        tokens = event.tokens if event.lookahead is None else event.tokens + event.lookahead
        keys = self._make_keys(
            tokens,
            event.block_size,
            seed=self._seed,
            parent=root,
            extras=_extras(event),
            lookahead=event.n_lookahead,
        )
        depth = parent.depth + 1 if parent else 0
        before, fresh = event.parent, list[EngineHash]()
        for number, (engine_hash, key) in enumerate(zip(event.hashes, keys, strict=True)):
            if self.table.get(engine_hash) is None:
                self.table.put(engine_hash, Known(BlockKey(key), depth + number, before))
                fresh.append(engine_hash)
                if len(fresh) == PIECE:
                    yield fresh
                    fresh = []
            before = engine_hash
        yield fresh

    def _park(self, parent: EngineHash, event: BlockStored) -> None:
        self._parked.setdefault(hash_key(parent), []).append(event)
        self.table.expect(parent)
        self.n_parked += len(event.hashes)
        self._parked_tokens += len(event.tokens)
        while self.n_parked > MAX_PARKED_BLOCKS or self._parked_tokens > MAX_PARKED_TOKENS:
            _, events = self._parked.popitem(last=False)
            self.n_dropped += self._unparked(events)

    def _unparked(self, events: list[BlockStored]) -> int:
        """Remove `events` from the counts; return their number of blocks."""
        n_blocks = sum(len(event.hashes) for event in events)
        self.n_parked -= n_blocks
        self._parked_tokens -= sum(len(event.tokens) for event in events)
        return n_blocks


def _own_names(event: BlockStored) -> list[str]:
    """Return what else separates the prompt's blocks from others: cache salt, digests of prompt embeddings."""
    first = (event.extra_keys[0] if event.extra_keys else None) or ()
    names = [extra for extra in first if isinstance(extra, str) and extra != event.lora_name]
    return names if event.salt is None else [event.salt, *names]


def _root(event: BlockStored, seed: int) -> BlockKey | None:
    return root_key(lora=event.lora_name, salt="\0".join(_own_names(event)), seed=seed)


def _extras(event: BlockStored) -> dict[int, list[MultimodalKey]]:
    extras: dict[int, list[MultimodalKey]] = {}
    for block, items in enumerate(event.extra_keys or ()):
        for item in items or ():
            if isinstance(item, MultimodalKey):
                extras.setdefault(block, []).append(item)
            elif item != event.lora_name and (block or event.parent is not None):
                extras.setdefault(block, []).append(MultimodalKey(item, 0))
    return extras
