"""Events in the wire format of engines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from kvatlas.events.model import BlockRemoved, BlockStored, Event, ExtraKey, MultimodalKey

Form = Literal["map", "array"]


def payload(
    events: Iterable[Event], *, form: Form = "map", timestamp: float = 1.5, rank: int | None = 0
) -> bytes:
    """Encode `events` as a payload with the fields of vLLM 0.32, as maps or as positional arrays."""
    rows = [_fields(event) for event in events]
    return msgspec.msgpack.encode(
        [timestamp, rows if form == "map" else [list(r.values()) for r in rows], rank]
    )


def _fields(event: Event) -> dict[str, object]:
    match event:
        case BlockStored():
            return {
                "type": "BlockStored",
                "block_hashes": event.hashes,
                "parent_block_hash": event.parent,
                "token_ids": list(event.tokens),
                "block_size": event.block_size,
                "lora_id": None,
                "medium": event.medium,
                "lora_name": event.lora_name,
                "extra_keys": _extras(event.extra_keys),
                "group_idx": event.group,
                "kv_cache_spec_kind": event.kind,
                "kv_cache_spec_sliding_window": event.window,
                **_newer(event),
            }
        case BlockRemoved():
            return {
                "type": "BlockRemoved",
                "block_hashes": event.hashes,
                "medium": event.medium,
                "group_idx": event.group,
            }
        case _:
            return {"type": "AllBlocksCleared"}


def _newer(event: BlockStored) -> dict[str, object]:
    """Return the fields of vLLM 0.33 and SGLang, if they are set; the first four are at their places in arrays."""
    fields: dict[str, object] = {}
    if event.lookahead is not None:
        tokens = [*event.tokens, *event.lookahead]
        ends = range(event.block_size, len(event.tokens) + 1, event.block_size)
        rows = [tokens[end : end + event.n_lookahead] for end in ends]
        fields = {"locality": None, "ownership": None, "session_id": None, "lookahead_token_ids": rows}
    return fields if event.salt is None else fields | {"cache_salt": event.salt}


def _extras(blocks: tuple[tuple[ExtraKey, ...] | None, ...] | None) -> object:
    if blocks is None:
        return None
    return [None if keys is None else [_extra(key) for key in keys] for keys in blocks]


def _extra(key: ExtraKey) -> object:
    return [key.identifier, key.offset] if isinstance(key, MultimodalKey) else key
