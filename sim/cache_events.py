"""The events that a block cache publishes when its tiers store or remove blocks."""

from __future__ import annotations

from collections.abc import Iterable

from ..events.model import EngineHash
from .cpu_tier import Chunk
from .kv_events import CPU, FULL_ATTENTION, GPU, LOCAL, STORAGE, BlockRemoved, BlockStored, Event
from .sequence import BlockSequence, Lora


class CacheEvents:
    """Factory of events in vLLM's form.

    Args:
        block_size: tokens per block.
        self_describing: whether events of chunks contain tokens and all hashes, or only the last hash of each chunk.
    """

    def __init__(self, *, block_size: int, self_describing: bool) -> None:
        self._block_size, self._self_describing = block_size, self_describing

    def stored(self, sequence: BlockSequence, first: int, end: int) -> Event:
        """Make the event for blocks `first` up to, but not including, `end` of a sequence, stored on the GPU."""
        lora = sequence.lora
        return BlockStored(
            block_hashes=tuple(sequence.hashes[first:end]),
            parent_block_hash=sequence.parent(first),
            token_ids=sequence.block_tokens(first, end),
            block_size=self._block_size,
            lora_id=_number(lora),
            medium=GPU,
            lora_name=_name(lora),
            extra_keys=tuple(sequence.extra_keys(index) for index in range(first, end)),
            group_idx=0,
            kv_cache_spec_kind=FULL_ATTENTION,
        )

    def removed(self, hashes: Iterable[EngineHash]) -> list[Event]:
        """Make one event per block of which a copy was removed from the GPU."""
        return [BlockRemoved(block_hashes=(key,), medium=GPU, group_idx=0) for key in hashes]

    def chunk_stored(self, chunk: Chunk, medium: str) -> Event:
        """Make the event for a chunk stored in a slower tier."""
        locality = LOCAL if medium == STORAGE else None
        if not self._self_describing:
            return BlockStored(
                block_hashes=(chunk.key,),
                parent_block_hash=None,
                token_ids=(),
                block_size=0,
                lora_id=None,
                medium=medium,
                lora_name=None,
                group_idx=0,
                locality=locality,
            )
        return BlockStored(
            block_hashes=chunk.hashes,
            parent_block_hash=chunk.parent,
            token_ids=chunk.tokens,
            block_size=self._block_size,
            lora_id=_number(chunk.lora),
            medium=medium,
            lora_name=_name(chunk.lora),
            group_idx=0,
            kv_cache_spec_kind=FULL_ATTENTION,
            locality=locality,
        )

    def chunks_removed(self, chunks: Iterable[Chunk]) -> tuple[Event, ...]:
        """Make one event for all chunks removed from the CPU tier; no event if there are none."""
        if self._self_describing:
            hashes = tuple(key for chunk in chunks for key in chunk.hashes)
        else:
            hashes = tuple([chunk.key for chunk in chunks])
        return (BlockRemoved(block_hashes=hashes, medium=CPU, group_idx=0),) if hashes else ()


def _number(lora: Lora | None) -> int | None:
    return None if lora is None else lora.number


def _name(lora: Lora | None) -> str | None:
    return None if lora is None else lora.name
