"""Decoder of engine payloads into domain events.

Engines have sent the same three events in many forms: positional arrays and maps, batches of two or three elements
or a map, integer, signed and byte-string hashes, events wrapped in `bin`. All of them are decoded here, by position or
by name, with missing and unknown fields allowed. An unreadable event is left out with a reason; its neighbours are kept.
Source: vLLM 0.9 to 0.33 and SGLang 0.5 event structs.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Sequence
from math import isfinite
from typing import TypeGuard, cast
from zlib import crc32

import msgspec

from .envelope import is_envelope, read_envelope
from .errors import WireError
from .extra_keys import read_extra_keys
from .fields import UNREADABLE, array_size, map_size, read_fields
from .lazy_batch import LazyBatch
from .model import (
    DEFAULT_MEDIUM,
    REMOTE,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    Event,
    MediumName,
    qualified_medium,
)

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
"""Larger payloads are rejected undecoded; a vLLM step of a million tokens stays below. All of it is decoded in one turn."""

MAX_EVENTS = 131_072
"""Payloads with more events are rejected: a megabyte of them is far below what any engine sends in one step."""

MAX_EVENT_BYTES = 768 * 1024
"""Larger events are rejected. One has the blocks of one prompt: 150,000 tokens of five bytes fit. Whatever is in it,
`fields` makes no more Python objects of it than take some 35 ms."""

_MANY_BYTES = 16 * 1024
"""Events from this size on may have so many values that garbage collections would take most of the time."""

MAX_LOOKAHEAD = 64
"""Longest accepted lookahead in tokens; engines use one, or one for each chained drafter module."""

MAX_TEXTS = 65_536
"""Most texts among the token ids of an event; they stand for the content of images."""

LEAST_MILLISECONDS = 1e11
"""Time stamps from here on are in milliseconds: as seconds they would be of the year 5138."""

MAX_NAME_LENGTH = 256
"""Longest accepted medium, adapter or kind."""

_U64 = (1 << 64) - 1
_STORED_FIELDS: tuple[str, ...] = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
    "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership", "session_id",
    "lookahead_token_ids",
)  # fmt: skip
_REMOVED_FIELDS: tuple[str, ...] = ("block_hashes", "medium", "group_idx", "locality", "ownership")
_BATCH_FIELDS = ("ts", "events", "data_parallel_rank")

_decode_any = msgspec.msgpack.Decoder().decode
_decode_raw_array = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_raw_map = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode


class WireBatch(LazyBatch):
    """The events of one payload as bytes. Implements `Batch`."""

    __slots__ = ("_raws", "rank", "size_bytes", "timestamp")

    def __init__(
        self, raws: Sequence[msgspec.Raw], *, timestamp: float, rank: int | None, size_bytes: int
    ) -> None:
        super().__init__(n_sent=len(raws), lazy=range(len(raws)), n_unknown=0, decode=decode_event)
        self._raws, self.timestamp, self.rank, self.size_bytes = raws, timestamp, rank, size_bytes

    def _raw(self, position: int) -> msgspec.Raw:
        return self._raws[position]


def decode_batch(payload: bytes, *, max_bytes: int = MAX_PAYLOAD_BYTES) -> WireBatch:
    """Decode a payload; its events are decoded when they are needed.

    Args:
        payload: bytes of the batch.
        max_bytes: longer ones are rejected.
    Raises:
        WireError: the payload as a whole is not a batch (`too_large`, `not_msgpack`, `not_a_batch`, `too_many_events`).
    Cost: O(bytes), about 1 ns each, and 0.1 us per event.
    """
    if len(payload) > max_bytes:
        raise WireError("too_large", f"payload has {len(payload)} bytes, want at most {max_bytes}")
    try:
        parts = _split(payload)
        timestamp = _decode_any(parts[0]) if len(parts) > 1 else None
        events = parts[1] if len(parts) > 1 else None
        rank = _decode_any(parts[2]) if len(parts) > 2 else None
        n_events = None if events is None else array_size(events)
        if events is None or n_events is None or not isinstance(timestamp, (int, float)):
            raise WireError("not_a_batch", "payload is not [timestamp, events, ...]")
        if n_events > MAX_EVENTS:
            raise WireError("too_many_events", f"payload has {n_events} events, want at most {MAX_EVENTS}")
        raws = _decode_raw_array(events)
    except UNREADABLE as error:
        raise WireError("not_msgpack", f"payload of {len(payload)} bytes is not msgpack: {error}") from None
    return WireBatch(
        raws,
        # a time that is not finite must not count as evidence of a restart
        timestamp=in_seconds(float(timestamp)) if isfinite(timestamp) else 0.0,
        rank=rank if isinstance(rank, int) and rank >= 0 else None,
        size_bytes=len(payload),
    )


def decode_event(raw: bytes | msgspec.Raw) -> Event:
    """Decode one event.

    Raises:
        WireError: the event is unreadable.
    Cost: O(bytes).
    """
    if len(raw) > MAX_EVENT_BYTES:
        raise WireError("event_too_large", f"event has {len(raw)} bytes, want at most {MAX_EVENT_BYTES}")
    if len(raw) < _MANY_BYTES or not gc.isenabled():
        return _event(raw)
    gc.disable()
    try:
        return _event(raw)
    finally:
        gc.enable()


def in_seconds(timestamp: float) -> float:
    """Return a time stamp in seconds; stores send milliseconds, which as seconds would be far in the future."""
    return timestamp / 1000 if timestamp >= LEAST_MILLISECONDS else timestamp


def _split(payload: bytes) -> list[msgspec.Raw]:
    """Split the batch without decoding its events, so that broken text in one does not affect the others."""
    if array_size(payload) is not None:
        return _decode_raw_array(payload)
    if map_size(payload) is not None:
        fields = _decode_raw_map(payload)
        return [fields[name] for name in _BATCH_FIELDS if name in fields]
    batch = cast("object", _decode_any(payload))
    raise WireError("not_a_batch", f"payload is {type(batch).__name__}, want an array or a map")


def _event(raw: bytes | msgspec.Raw) -> Event:
    tag, fields = read_fields(raw, lambda tag: _REMOVED_FIELDS if tag == "BlockRemoved" else _STORED_FIELDS)
    return read_envelope(fields, _of_kind) if is_envelope(fields) else _of_kind(tag, fields.get)


def _of_kind(tag: object, get: Callable[[str], object]) -> Event:
    match tag:
        case "BlockStored":
            return _stored(get)
        case "BlockRemoved":
            return BlockRemoved(_hashes(get("block_hashes")), _medium(get), _group(get))
        case "AllBlocksCleared":
            return AllBlocksCleared()
        case None:
            raise WireError("missing_tag", "event map has no type")
        case _:
            raise WireError("unknown_tag", f"event tag is an unknown {type(tag).__name__}")


def _stored(get: Callable[[str], object]) -> BlockStored:
    parent = get("parent_block_hash")
    block_size = get("block_size")
    window = get("kv_cache_spec_sliding_window") or get("window_size")
    if block_size is None:
        block_size = 0
    if not _is_count(block_size):
        raise WireError("bad_block_size", f"block_size is {type(block_size).__name__}, want a count")
    hashes, tokens = _hashes(get("block_hashes")), _tokens(get("token_ids"))
    return BlockStored(
        hashes=hashes,
        # a hash-only publisher sends 0 for "no parent"; a real hash is 0 once in 2**64
        parent=None if parent is None or parent == 0 else _hash(parent),
        tokens=tokens,
        block_size=block_size,
        medium=_medium(get),
        lora_name=_lora(get("lora_name"), get("lora_id")),
        extra_keys=read_extra_keys(get("extra_keys"), get("mm_keys")),
        group=_group(get),
        kind=_name(get("kv_cache_spec_kind"), "bad_kind"),
        window=window if _is_count(window) and window else None,
        salt=_salt(get("cache_salt")),
        lookahead=_lookahead(get("lookahead_token_ids"), tokens, len(hashes), block_size)
        or _next_of_pairs(get("token_ids")),
        session=_session(get("session_id")),
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
    except TypeError:
        # TensorRT-LLM sends texts that name an image's content in place of its token ids; no prompt of ours has these
        if sum(isinstance(each, str) for each in tokens) > MAX_TEXTS:
            raise WireError("bad_tokens", f"token_ids has more than {MAX_TEXTS} texts") from None
        tokens = [_text_token(each) if isinstance(each, str) else each for each in tokens]
    except OverflowError:
        pass  # found again, and described, below
    try:
        return array("I", cast("list[int]", tokens))
    except (TypeError, OverflowError) as error:
        raise WireError("bad_tokens", f"token_ids holds an item that is not a token id: {error}") from None


def _lookahead(value: object, tokens: array[int], n_blocks: int, block_size: int) -> array[int] | None:
    """Return the tokens after the last block; those after the others must be the next blocks' own, as a prompt has them.

    Windowed groups leave blocks out, so that the next block's tokens are not known.
    """
    if not value:
        return None
    rows = cast("list[object]", value) if isinstance(value, list) else []
    if not rows or len(rows) != n_blocks:
        raise WireError(
            "bad_lookahead", f"lookahead_token_ids has {len(rows)} items, want one for each block"
        )
    followed = tokens + _tokens(rows[-1])
    n_tokens = len(followed) - len(tokens)
    if n_tokens > MAX_LOOKAHEAD:
        raise WireError(
            "bad_lookahead", f"a block has {n_tokens} tokens after it, want at most {MAX_LOOKAHEAD}"
        )
    is_dense = len(tokens) == n_blocks * block_size
    prompt = followed.tolist() if is_dense else []
    for block, row in enumerate(rows[:-1] if is_dense else (), start=1):
        if row != prompt[block * block_size : block * block_size + n_tokens]:
            raise WireError(
                "bad_lookahead", f"the tokens after block {block - 1} are not those of the next block"
            )
    return followed[len(tokens) :]


def _next_of_pairs(value: object) -> array[int] | None:
    """Return the token after the last of (token, next token) pairs, which SGLang's pages with EAGLE consist of."""
    last = cast("list[object]", value)[-1] if isinstance(value, list) and value else None
    return _tokens(cast("list[object]", last)[1:2]) or None if isinstance(last, list) else None


def _salt(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    raise WireError("bad_salt", f"cache_salt is {type(value).__name__}, want a string")


def _session(value: object) -> str | None:
    """Return the session's name; one that is no short text is ignored, as it changes nothing about the blocks."""
    return value if isinstance(value, str) and 0 < len(value) <= MAX_NAME_LENGTH else None


def _text_token(text: str) -> int:
    return crc32(text.encode(errors="surrogatepass"))


def _medium(get: Callable[[str], object]) -> MediumName:
    """Return the medium, with `/REMOTE` and `/OWNER` behind it if the event says so; LOCAL is the usual case."""
    name = _name(get("medium"), "bad_medium")
    base = name.upper() if name else DEFAULT_MEDIUM
    locality, owner = get("locality"), get("ownership")
    if locality is None and owner is None:
        return MediumName(base)
    is_named = isinstance(owner, str) and len(owner) <= MAX_NAME_LENGTH
    return qualified_medium(
        MediumName(base), is_remote=locality == REMOTE, owner=cast("str", owner) if is_named else ""
    )


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


def _group(get: Callable[[str], object]) -> int:
    """Return the number of the group; TensorRT-LLM's interfaces name it `layer_group_id`."""
    value = get("group_idx")
    if value is None:
        value = get("layer_group_id")
    if value is None:
        return 0
    if not _is_count(value):
        raise WireError("bad_group", f"group_idx is {type(value).__name__}, want a count")
    return value
