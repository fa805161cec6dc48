"""Blocks of a common store whose publisher names them by hashes of the engines that filled it.

Such a publisher sends no tokens. The key of a hash is known as soon as any engine of the same space has told the block
with its tokens; all of them hash alike, or they could not share the store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from ..events.model import EngineHash
from .hash_keys import hash_key, hash_of
from .holders import Place
from .keys import BlockKey

MAX_POOLED = 262_144
"""Blocks of a store whose hashes are kept; those of dropped ones cannot be removed by hash and are evicted by recency."""

MAX_WAITING = 65_536
"""Blocks that wait for an engine to tell their tokens; beyond that the oldest are dropped."""

RETRIED = 8
"""Waiting blocks that are looked up again with each event."""


class Found(NamedTuple):
    """The block of a hash: its key, and the block size of the engine that told it."""

    key: BlockKey
    block_size: int


FindHash = Callable[[EngineHash], Found | None]
"""Returns the block that an engine of the same space has told by this hash, None if none has."""


class PooledHashes:
    """Hash -> key of the blocks of one store.

    Args:
        find: see `FindHash`.

    Attributes:
        n_dropped: waiting blocks that were dropped.
    """

    def __init__(self, find: FindHash) -> None:
        self._find = find
        self._keys: OrderedDict[bytes, BlockKey] = OrderedDict()
        self._waiting: OrderedDict[tuple[bytes, Place], None] = OrderedDict()
        self.n_dropped = 0

    def __len__(self) -> int:
        return len(self._keys) + len(self._waiting)

    def add(self, engine_hash: EngineHash, place: Place) -> Found | None:
        """Return a stored block; None if no engine has told it yet, then it waits. Cost: O(ranks of the space)."""
        found = self._find(engine_hash)
        if found is None:
            self._waiting[hash_key(engine_hash), place] = None
            if len(self._waiting) > MAX_WAITING:
                self._waiting.popitem(last=False)
                self.n_dropped += 1
            return None
        self._know(hash_key(engine_hash), found)
        return found

    def retry(self) -> Iterator[tuple[Place, Found]]:
        """Yield some waiting blocks that an engine has told meanwhile. Cost: O(`RETRIED` x ranks of the space)."""
        for key, place in list(islice(self._waiting, RETRIED)):
            found = self._find(hash_of(key))
            if found is None:
                self._waiting.move_to_end((key, place))
                continue
            del self._waiting[key, place]
            self._know(key, found)
            yield place, found

    def remove(self, engine_hash: EngineHash, place: Place) -> BlockKey | None:
        """Return the key of a removed block, None if it is unknown or was waiting."""
        self._waiting.pop((hash_key(engine_hash), place), None)
        return self._keys.get(hash_key(engine_hash))

    def clear(self) -> None:
        """Forget all."""
        self._keys.clear()
        self._waiting.clear()

    def _know(self, key: bytes, found: Found) -> None:
        self._keys[key] = found.key
        self._keys.move_to_end(key)
        if len(self._keys) > MAX_POOLED:
            self._keys.popitem(last=False)
