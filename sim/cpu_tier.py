"""The CPU tier of an engine: a write-through LRU cache of whole chunks of prompt blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ..events.model import EngineHash
from .sequence import BlockTokens, Lora


@dataclass(slots=True)
class Chunk:
    """Consecutive blocks that are copied together.

    Attributes:
        hashes: of all blocks.
        parent: hash of the block before the chunk, or None.
        tokens: of all blocks; empty if events do not contain them.
        lora: adapter, or None.
        ready: whether the copy to CPU memory is complete.
        pins: number of loads that read the chunk; a pinned chunk is not evicted.
        key: the hash of the last block, which identifies the chunk.
    """

    hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    tokens: BlockTokens
    lora: Lora | None = None
    ready: bool = False
    pins: int = 0
    key: EngineHash = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.hashes[-1]


class CpuTier:
    """Chunks by key, in order of last use.

    Args:
        n_chunks: capacity; 0 for no CPU tier.
    """

    def __init__(self, n_chunks: int) -> None:
        self.capacity = n_chunks
        self._chunks: OrderedDict[EngineHash, Chunk] = OrderedDict()

    def __len__(self) -> int:
        return len(self._chunks)

    def chunks(self) -> list[Chunk]:
        """Return all chunks, the least recently used first."""
        return list(self._chunks.values())

    def get(self, key: EngineHash) -> Chunk | None:
        """Return the chunk with this key without renewing it; None if it is absent."""
        return self._chunks.get(key)

    def add(self, chunks: Sequence[Chunk], *, keep: Collection[EngineHash]) -> list[Chunk] | None:
        """Evict chunks if needed and add `chunks`, not yet ready, as the most recently used.

        Args:
            chunks: not in the tier.
            keep: keys that must not be evicted.
        Returns:
            the evicted chunks in order; None if there is no room, and then nothing has changed.
        """
        n_evict = max(0, len(self._chunks) + len(chunks) - self.capacity)
        evicted: list[Chunk] = []
        for key, chunk in self._chunks.items():
            if len(evicted) == n_evict:
                break
            if chunk.ready and not chunk.pins and key not in keep:
                evicted.append(chunk)
        if len(evicted) < n_evict:
            return None
        for chunk in evicted:
            del self._chunks[chunk.key]
        self._chunks.update((chunk.key, chunk) for chunk in chunks)
        return evicted

    def touch(self, keys: Iterable[EngineHash]) -> None:
        """Renew the chunks that are still in the tier, the last of `keys` as the most recent."""
        for key in keys:
            if key in self._chunks:
                self._chunks.move_to_end(key)

    def clear(self) -> None:
        """Remove all chunks."""
        self._chunks.clear()
