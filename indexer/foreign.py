"""Chunks of a cache library that uses its own hashes (LMCache), keyed by their tokens.

Such a library stores runs of tokens that are a multiple of the engine's block, under hashes that the engine never uses.
The blocks are still the engine's, so their keys are computed from the tokens.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict

from ..events.model import BlockStored, EngineHash
from .columns import Column, Saved, check_columns
from .keys import BlockKey, PrefixKeys, root_key

MAX_CHUNKS = 65_536
"""Chunks kept per publisher; blocks of a dropped chunk cannot be removed by hash and are evicted by recency."""


class ForeignColumns(Saved, frozen=True):
    """Chunks, one row each, in the order in which they are dropped.

    Attributes:
        hashes: u64.
        sizes: u32, blocks of each.
        keys: u64, keys of all their blocks, chunk after chunk.
    """

    hashes: Column
    sizes: Column
    keys: Column

    def __post_init__(self) -> None:
        """Raise ValueError for wrong columns, chunks without blocks, and a number of keys that does not match."""
        check_columns(hashes=(self.hashes, "Q"), sizes=(self.sizes, "I"))
        check_columns(keys=(self.keys, "Q"))
        if 0 in self.sizes or sum(self.sizes) != len(self.keys):
            raise ValueError(f"{len(self.keys)} keys are not those of chunks with {sum(self.sizes)} blocks")


class ForeignChunks:
    """Hash of a chunk -> keys of its blocks, for one publisher.

    Args:
        seed: seed of the block keys.
        make_keys: computes block keys.
    """

    def __init__(self, *, seed: int, make_keys: PrefixKeys) -> None:
        self._seed, self._make_keys = seed, make_keys
        self._chunks: OrderedDict[EngineHash, array[int]] = OrderedDict()

    @staticmethod
    def matches(event: BlockStored, block_size: int | None) -> bool:
        """Return whether the event comes from such a library: its tokens come in runs of several engine blocks."""
        return (
            block_size is not None
            and event.block_size > block_size
            and event.block_size % block_size == 0
            and len(event.tokens) == len(event.hashes) * event.block_size
        )

    def learn(self, event: BlockStored, block_size: int) -> list[BlockKey] | None:
        """Return the keys of the event's blocks, None if the chunk before it is unknown. Cost: O(tokens)."""
        parent = None if event.parent is None else self._chunks.get(event.parent)
        if event.parent is not None and parent is None:
            return None
        root = BlockKey(parent[-1]) if parent else root_key(lora=event.lora_name, salt=None, seed=self._seed)
        keys = self._make_keys(event.tokens, block_size, seed=self._seed, parent=root)
        n_blocks = event.block_size // block_size
        for number, engine_hash in enumerate(event.hashes):
            self._chunks[engine_hash] = keys[number * n_blocks : (number + 1) * n_blocks]
            self._chunks.move_to_end(engine_hash)
        while len(self._chunks) > MAX_CHUNKS:
            self._chunks.popitem(last=False)
        return [BlockKey(key) for key in keys]

    def forget(self, engine_hash: EngineHash) -> list[BlockKey] | None:
        """Drop a removed chunk and return its keys; None if it is unknown."""
        keys = self._chunks.pop(engine_hash, None)
        return None if keys is None else [BlockKey(key) for key in keys]

    def dump(self) -> ForeignColumns:
        """Return everything learned, to be saved."""
        chunks = self._chunks.values()
        return ForeignColumns(
            hashes=array("Q", self._chunks),
            sizes=array("I", map(len, chunks)),
            keys=array("Q", b"".join(chunks)),
        )

    def load(self, saved: ForeignColumns) -> None:
        """Load a dump."""
        start = 0
        for engine_hash, size in zip(saved.hashes, saved.sizes, strict=True):
            self._chunks[EngineHash(engine_hash)] = saved.keys[start : start + size]
            start += size

    def clear(self) -> None:
        """Drop all chunks."""
        self._chunks.clear()
