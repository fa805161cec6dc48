"""The CPU tier behind a GPU pool: whole chunks of prompt blocks, written through, evicted least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ..events.model import EngineHash
from .sequence import BlockTokens, Lora


@dataclass(slots=True)
class Chunk:
    """Consecutive blocks that move together.

    Attributes:
        hashes: of every block.
        parent: hash of the block before the chunk, or None.
        tokens: of every block; empty where events do not tell them.
        lora: adapter, or None.
        ready: whether the copy to CPU memory is complete.
        pins: loads that read the chunk; a pinned chunk is not evicted.
        key: its identity, the hash of the last block.
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
        n_chunks: capacity; 0 for no tier.
    """

    def __init__(self, n_chunks: int) -> None:
        self.capacity = n_chunks
        self._chunks: OrderedDict[EngineHash, Chunk] = OrderedDict()

    def __len__(self) -> int:
        return len(self._chunks)

    def chunks(self) -> list[Chunk]:
        """All chunks, the least recently used first."""
        return list(self._chunks.values())

    def get(self, key: EngineHash) -> Chunk | None:
        """The chunk with this key; does not renew it."""
        return self._chunks.get(key)

    def add(self, chunks: Sequence[Chunk], *, keep: Collection[EngineHash]) -> list[Chunk] | None:
        """Make room for `chunks` and enter them, not yet ready, most recently used last.

        Args:
            chunks: not in the tier.
            keep: keys that must not be evicted.
        Returns:
            the evicted chunks in order; None when there is no room, and then nothing has changed.
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
        """Renew the chunks still here, the last of `keys` most recent."""
        for key in keys:
            if key in self._chunks:
                self._chunks.move_to_end(key)

    def clear(self) -> None:
        """Drop everything."""
        self._chunks.clear()
