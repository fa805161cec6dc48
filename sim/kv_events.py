"""KV-cache events in the wire format of vLLM 0.32: maps with a `type`; fields with their default value are omitted.

Independent of `kvatlas.events`, so that the two implementations check each other.
"""

from __future__ import annotations

import msgspec

from ..events.model import EngineHash
from .sequence import BlockTokens

GPU = "GPU"
CPU = "CPU"
STORAGE = "STORAGE"
LOCAL = "LOCAL"
"""Locality of a storage tier that is not shared; events of other tiers have no locality."""

FULL_ATTENTION = "full_attention"

ExtraKeys = tuple[str, ...] | None
"""Further inputs of a block's hash beside parent and tokens: adapter, then salt."""


class BlockStored(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Blocks stored in a tier; the first seven fields are always sent."""

    block_hashes: tuple[EngineHash, ...]
    parent_block_hash: EngineHash | None
    token_ids: BlockTokens
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: tuple[ExtraKeys, ...] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Blocks of which one copy each was removed from a tier."""

    block_hashes: tuple[EngineHash, ...]
    medium: str
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    """The GPU prefix cache was cleared."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, frozen=True, array_like=True):
    """One message: `[ts, events, data_parallel_rank]`."""

    ts: float
    events: tuple[Event, ...]
    data_parallel_rank: int = 0
