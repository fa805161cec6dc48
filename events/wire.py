"""Decoder of engine payloads into domain events.

Engines have sent the same three events in many forms: positional arrays and maps, batches of two or three elements
or a map, integer, signed and byte-string hashes, events wrapped in `bin`. All of them are decoded here, by position or
by name, with missing and unknown fields allowed. An unreadable event is left out with a reason; its neighbours are kept.
Source: vLLM 0.9 to 0.32 and SGLang 0.5 event structs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import TypeGuard, cast

import msgspec

from .errors import WireError
from .model import (
    DEFAULT_MEDIUM,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    Event,
    EventBatch,
    ExtraKey,
    MediumName,
    MultimodalKey,
)

MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
"""Larger payloads are rejected undecoded; a vLLM step of a million tokens stays far below."""

MAX_NAME_LENGTH = 256
"""Longest accepted medium, adapter or kind."""

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of the decoder for bytes that are not msgpack, text that is not UTF-8, and endless nesting."""

_U64 = (1 << 64) - 1
_STORED_FIELDS: tuple[str, ...] = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
    "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
)  # fmt: skip
_REMOVED_FIELDS: tuple[str, ...] = ("block_hashes", "medium", "group_idx")
_BATCH_FIELDS = ("ts", "events", "data_parallel_rank")

_decode_any = msgspec.msgpack.Decoder().decode
_decode_raw_array = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_raw_map = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode


def decode_batch(payload: bytes) -> EventBatch:
    """Decode the events of one payload, in order; unreadable ones are left out, with their reasons in `rejected`.

    Raises:
        WireError: the payload as a whole is not a batch (`too_large`, `not_msgpack`, `not_a_batch`).
    Cost: O(bytes), one pass unless an event is broken.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise WireError("too_large", f"payload has {len(payload)} bytes, want at most {MAX_PAYLOAD_BYTES}")
    timestamp, raw_events, rank = _split_batch(payload)
    events: list[Event] = []
    rejected: list[str] = []
    for raw in raw_events:
        try:
            events.append(_event(raw))
        except WireError as error:
            rejected.append(error.reason)
    return EventBatch(timestamp, tuple(events), rank, tuple(rejected), len(payload))


def decode_event(raw: bytes) -> Event:
    """Decode one event as `decode_batch` does in a batch.

    Raises:
        WireError: the event is unreadable.
    Cost: O(bytes).
    """
    return _event(_decode_bytes(raw))


def _split_batch(payload: bytes) -> tuple[float, Sequence[object], int | None]:
    try:
        batch: object = _decode_any(payload)
    except _UNREADABLE:
        batch = _split_raw(payload)
    if isinstance(batch, Mapping):
        fields = cast("Mapping[str, object]", batch)
        parts: list[object] = [fields.get(name) for name in _BATCH_FIELDS]
    elif isinstance(batch, list):
        parts = cast("list[object]", batch)
    else:
        raise WireError("not_a_batch", f"payload is {type(batch).__name__}, want an array or a map")
    if len(parts) < 2 or not isinstance(parts[0], (int, float)) or not isinstance(parts[1], list):
        raise WireError("not_a_batch", "payload is not [timestamp, events, ...]")
    rank = parts[2] if len(parts) > 2 else None
    # a time that is not finite must not count as evidence of a restart
    return (
        float(parts[0]) if isfinite(parts[0]) else 0.0,
        cast("list[object]", parts[1]),
        rank if isinstance(rank, int) and rank >= 0 else None,
    )


def _split_raw(payload: bytes) -> list[object]:
    """Split the batch without decoding its events, so that broken text in one does not affect the others."""
    try:
        try:
            raw = _decode_raw_array(payload)
        except msgspec.ValidationError:
            fields = _decode_raw_map(payload)
            raw = [fields[name] for name in _BATCH_FIELDS if name in fields]
        rank = _decode_any(raw[2]) if len(raw) > 2 else None
        return [_decode_any(raw[0]), _decode_raw_array(raw[1]), rank]
    except (*_UNREADABLE, IndexError) as error:
        raise WireError("not_msgpack", f"payload of {len(payload)} bytes is not msgpack: {error}") from None


def _event(raw: object) -> Event:
    if isinstance(raw, (bytes, msgspec.Raw)):  # llm-d's file-system backend wraps each event in bin
        raw = _decode_bytes(raw)
        if isinstance(raw, bytes):
            raw = _decode_bytes(raw)
    tag: object
    if isinstance(raw, dict):
        fields = cast("dict[str, object]", raw)
        tag = fields.get("type")
        get: Callable[[str], object] = fields.get
    elif raw and isinstance(raw, list):
        values = cast("list[object]", raw)
        tag = values[0]
        names = _REMOVED_FIELDS if tag == "BlockRemoved" else _STORED_FIELDS
        get = dict(zip(names, values[1:], strict=False)).get
    else:
        raise WireError("not_an_event", f"event is {type(raw).__name__}, want a map or a non-empty array")
    match tag:
        case "BlockStored":
            return _stored(get)
        case "BlockRemoved":
            return BlockRemoved(
                _hashes(get("block_hashes")), _medium(get("medium")), _group(get("group_idx"))
            )
        case "AllBlocksCleared":
            return AllBlocksCleared()
        case None:
            raise WireError("missing_tag", "event map has no type")
        case _:
            raise WireError("unknown_tag", f"event tag is an unknown {type(tag).__name__}")


def _decode_bytes(raw: bytes | msgspec.Raw) -> object:
    try:
        return cast("object", _decode_any(raw))
    except _UNREADABLE as error:
        raise WireError("not_msgpack", f"event is not msgpack: {error}") from None


def _stored(get: Callable[[str], object]) -> BlockStored:
    parent = get("parent_block_hash")
    block_size = get("block_size")
    window = get("kv_cache_spec_sliding_window")
    if block_size is None:
        block_size = 0
    if not _is_count(block_size):
        raise WireError("bad_block_size", f"block_size is {type(block_size).__name__}, want a count")
    return BlockStored(
        hashes=_hashes(get("block_hashes")),
        # a hash-only publisher sends 0 for "no parent"; a real hash is 0 once in 2**64
        parent=None if parent is None or parent == 0 else _hash(parent),
        tokens=_tokens(get("token_ids")),
        block_size=block_size,
        medium=_medium(get("medium")),
        lora_name=_lora(get("lora_name"), get("lora_id")),
        extra_keys=_extra_keys(get("extra_keys")),
        group=_group(get("group_idx")),
        kind=_name(get("kv_cache_spec_kind"), "bad_kind"),
        window=window if _is_count(window) and window else None,
    )


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 31


def _hashes(value: object) -> tuple[EngineHash, ...]:
    if not isinstance(value, list):
        raise WireError("bad_hashes", f"block_hashes is {type(value).__name__}, want an array")
    return tuple(map(_hash, cast("list[object]", value)))


def _hash(value: object) -> EngineHash:
    """Fold a hash to 64 bits: integers modulo 2**64 (SGLang's are signed), byte strings by their last 8 bytes."""
    if type(value) is int:
        return EngineHash(value & _U64)
    if isinstance(value, bytes) and value:
        return EngineHash(int.from_bytes(value[-8:], "big"))
    raise WireError("bad_hash", f"block hash is {type(value).__name__}, want an integer or bytes")


def _tokens(value: object) -> array[int]:
    if value is None:
        return array("I")
    if not isinstance(value, list):
        raise WireError("bad_tokens", f"token_ids is {type(value).__name__}, want an array")
    tokens: list[object] = cast("list[object]", value)
    if tokens and isinstance(tokens[0], list):  # SGLang with EAGLE sends (token, next token) pairs
        tokens = [pair[0] if pair and isinstance(pair, list) else None for pair in tokens]
    try:
        return array("I", cast("list[int]", tokens))  # array checks each item
    except (TypeError, OverflowError) as error:
        raise WireError("bad_tokens", f"token_ids holds an item that is not a token id: {error}") from None


def _extra_keys(value: object) -> tuple[tuple[ExtraKey, ...] | None, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise WireError("bad_extra_keys", f"extra_keys is {type(value).__name__}, want an array")
    return tuple(map(_block_extras, cast("list[object]", value)))


def _block_extras(value: object) -> tuple[ExtraKey, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise WireError(
            "bad_extra_keys", f"extra keys of a block are {type(value).__name__}, want an array or nil"
        )
    return tuple(map(_extra_key, cast("list[object]", value)))


def _extra_key(value: object) -> ExtraKey:
    match value:
        case str():
            return value
        case bytes():
            return value.hex()
        case [str() as identifier, int() as offset] if _is_offset(offset):
            return MultimodalKey(identifier, offset)
        case _:
            raise WireError(
                "bad_extra_keys", f"extra key is {type(value).__name__}, want a string or [string, offset]"
            )


def _is_offset(value: int) -> bool:
    return type(value) is int and value < 1 << 63  # block keys hold it as i64


def _medium(value: object) -> MediumName:
    name = _name(value, "bad_medium")
    return MediumName(name.upper()) if name else DEFAULT_MEDIUM


def _lora(name: object, lora_id: object) -> str | None:
    """Return the adapter's name; for engines that send only its number, a name that no request can use."""
    if name is None and type(lora_id) is int:
        return f"#{lora_id}"
    return _name(name, "bad_lora_name") or None


def _name(value: object, reason: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_NAME_LENGTH:
        raise WireError(
            reason, f"{reason[4:]} is {type(value).__name__}, want a string of at most {MAX_NAME_LENGTH}"
        )
    return value


def _group(value: object) -> int:
    if value is None:
        return 0
    if not _is_count(value):
        raise WireError("bad_group", f"group_idx is {type(value).__name__}, want a count")
    return value
