"""The storage tier of a fleet: all engines can read what one of them wrote."""

from __future__ import annotations

from ..events.model import EngineHash
from .cpu_tier import Chunk


class StorageTier:
    """Chunks by key. Nothing is ever removed, as in a file system without cleanup."""

    def __init__(self) -> None:
        self._chunks: dict[EngineHash, Chunk] = {}

    def __len__(self) -> int:
        return len(self._chunks)

    def __contains__(self, key: EngineHash) -> bool:
        return key in self._chunks

    def write(self, chunk: Chunk) -> bool:
        """Store a chunk; return False if it is stored already."""
        if chunk.key in self._chunks:
            return False
        self._chunks[chunk.key] = chunk
        return True

    def read(self, key: EngineHash) -> Chunk:
        """Return a copy of the chunk, not yet ready, for a CPU tier."""
        held = self._chunks[key]
        return Chunk(held.hashes, held.parent, held.tokens, held.lora)
