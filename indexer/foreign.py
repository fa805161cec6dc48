"""Chunks of a cache library that uses its own hashes (LMCache), keyed by their tokens.

Such a library stores runs of tokens that are a multiple of the engine's block, under hashes that the engine never uses.
The blocks are still the engine's, so their keys are computed from the tokens.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict

from ..events.fields import MAX_HASHES
from ..events.model import BlockStored, EngineHash
from .columns import Column, Saved, check_columns
from .hash_keys import hash_column, hash_key
from .keys import BlockKey, PrefixKeys, root_key
from .tiers import TierId

MAX_CHUNKS = 65_536
"""Chunks kept per publisher; blocks of a dropped chunk cannot be removed by hash and are evicted by recency."""

MAX_KEYS = 4_194_304
"""Blocks of those chunks, 32 MiB: a bound that does not depend on the size of a chunk."""


class ForeignColumns(Saved, frozen=True):
    """Chunks, one row each, in the order in which they are dropped.

    Attributes:
        hashes: u64.
        tiers: u32, tier of each.
        sizes: u32, blocks of each.
        keys: u64, keys of all their blocks, chunk after chunk.
    """

    hashes: Column
    tiers: Column
    sizes: Column
    keys: Column

    def __post_init__(self) -> None:
        """Raise ValueError for wrong columns, chunks without blocks, and a number of keys that does not match."""
        check_columns(hashes=(self.hashes, "Q"), tiers=(self.tiers, "I"), sizes=(self.sizes, "I"))
        check_columns(keys=(self.keys, "Q"))
        if 0 in self.sizes or sum(self.sizes) != len(self.keys):
            raise ValueError(f"{len(self.keys)} keys are not those of chunks with {sum(self.sizes)} blocks")


class ForeignChunks:
    """Tier and hash of a chunk -> keys of its blocks, for one publisher.

    The library's hashes are a space of their own in each tier: they may equal the engine's, and the same chunk may be in
    several tiers.

    Args:
        seed: seed of the block keys.
        make_keys: computes block keys.
    """

    def __init__(self, *, seed: int, make_keys: PrefixKeys) -> None:
        self._seed, self._make_keys = seed, make_keys
        self._chunks: OrderedDict[tuple[TierId, bytes], array[int]] = OrderedDict()
        self._n_keys = 0
        self.tiers: set[TierId] = set()
        """Tiers that have had chunks: there a hash may be one of the library's."""

    @staticmethod
    def matches(event: BlockStored, block_size: int | None) -> bool:
        """Return whether the event comes from such a library: its tokens come in runs of several engine blocks."""
        return (
            block_size is not None
            and event.block_size > block_size
            and event.block_size % block_size == 0
            and len(event.tokens) == len(event.hashes) * event.block_size
        )

    def learn(self, event: BlockStored, tier: TierId, block_size: int) -> list[BlockKey] | None:
        """Return the keys of the event's blocks, None if the chunk before it is unknown or it has too many. Cost: O(tokens)."""
        parent = None if event.parent is None else self._chunks.get((tier, hash_key(event.parent)))
        if (event.parent is not None and parent is None) or len(event.tokens) > MAX_HASHES * block_size:
            return None
        self.tiers.add(tier)
        root = (
            BlockKey(parent[-1])
            if parent
            else root_key(lora=event.lora_name, salt=_salt(event), seed=self._seed)
        )
        keys = self._make_keys(event.tokens, block_size, seed=self._seed, parent=root)
        n_blocks = event.block_size // block_size
        for number, engine_hash in enumerate(event.hashes):
            place = tier, hash_key(engine_hash)
            self._drop(place)
            self._chunks[place] = keys[number * n_blocks : (number + 1) * n_blocks]
            self._n_keys += n_blocks
        while len(self._chunks) > MAX_CHUNKS or self._n_keys > MAX_KEYS:
            self._drop(next(iter(self._chunks)))
        return [BlockKey(key) for key in keys]

    def get(self, engine_hash: EngineHash, tier: TierId) -> array[int] | None:
        """Return the keys of a chunk in a tier, None if it is unknown."""
        return self._chunks.get((tier, hash_key(engine_hash)))

    def forget(self, engine_hash: EngineHash, tier: TierId) -> list[BlockKey] | None:
        """Drop a chunk removed from a tier and return its keys; None if it is unknown."""
        keys = self._drop((tier, hash_key(engine_hash)))
        return None if keys is None else [BlockKey(key) for key in keys]

    def _drop(self, key: tuple[TierId, bytes]) -> array[int] | None:
        keys = self._chunks.pop(key, None)
        self._n_keys -= len(keys or ())
        return keys

    def dump(self) -> ForeignColumns:
        """Return everything learned, to be saved."""
        chunks = self._chunks.values()
        return ForeignColumns(
            hashes=hash_column(key for _, key in self._chunks),
            tiers=array("I", (tier for tier, _ in self._chunks)),
            sizes=array("I", map(len, chunks)),
            keys=array("Q", b"".join(chunks)),
        )

    def load(self, saved: ForeignColumns) -> None:
        """Load a dump."""
        start = 0
        for engine_hash, tier, size in zip(saved.hashes, saved.tiers, saved.sizes, strict=True):
            self._chunks[TierId(tier), hash_key(EngineHash(engine_hash))] = saved.keys[start : start + size]
            start += size
        self._n_keys = start
        self.tiers.update(map(TierId, saved.tiers))

    def clear(self) -> None:
        """Drop all chunks."""
        self._chunks.clear()
        self.tiers.clear()
        self._n_keys = 0


def _salt(event: BlockStored) -> str | None:
    """Return the cache salt of the event's prompt, None if it was not sent or there is none."""
    first = (event.extra_keys[0] if event.extra_keys else None) or ()
    return next((extra for extra in first if isinstance(extra, str)), None)
