"""Decoder of the inputs of an engine's block hashes beside tokens: names, and multimodal items."""

from __future__ import annotations

from itertools import chain, repeat
from typing import cast

import msgspec

from .errors import WireError
from .model import ExtraKey, MultimodalKey

MAX_EXTRA_KEYS = 65_536
"""Events with more extra keys are rejected: an adapter's name for every block has as many as there are blocks."""

MAX_ITEMS = 16_384
"""Events with more multimodal items are rejected: no more fit into the bytes of one, with usual digests."""


class Segment(msgspec.Struct, frozen=True, gc=False):
    """One item of `mm_keys`."""

    hash: str
    start_offset: int


def read_extra_keys(sent: object, segments: object) -> tuple[tuple[ExtraKey, ...] | None, ...] | None:
    """Return the extra keys of each block, None if the engine sent none.

    Args:
        sent: `extra_keys` of vLLM: per block an array of names and of [identifier, offset], or nil.
        segments: `mm_keys` of TensorRT-LLM: per block an array of maps with `hash` and `start_offset`.
    Raises:
        WireError: one of them is unreadable, or has too many keys (`bad_extra_keys`).
    """
    _check_number(sent)
    _check_number(segments)
    extras = _extra_keys(sent)
    if segments is None:
        return extras
    if not isinstance(segments, list):
        raise WireError("bad_extra_keys", f"mm_keys is {type(segments).__name__}, want one array per block")
    blocks = cast("list[object]", segments)
    if extras is not None and len(extras) != len(blocks):
        raise WireError("bad_extra_keys", f"mm_keys has {len(blocks)} blocks, extra_keys {len(extras)}")
    found = map(_segments, blocks)
    return tuple(
        (*(own or ()), *more) or None for own, more in zip(extras or repeat(None), found, strict=False)
    )


def _check_number(blocks: object) -> None:
    """Check the number of keys before any of them becomes an object of ours, which takes a microsecond."""
    if not isinstance(blocks, list):
        return
    sent = [cast("list[object]", block) for block in cast("list[object]", blocks) if isinstance(block, list)]
    n_keys = sum(map(len, sent))
    if n_keys > MAX_EXTRA_KEYS:
        raise WireError("bad_extra_keys", f"event has {n_keys} extra keys, want at most {MAX_EXTRA_KEYS}")
    n_items = n_keys - sum(map(_is_name, chain.from_iterable(sent)))
    if n_items > MAX_ITEMS:
        raise WireError("bad_extra_keys", f"event has {n_items} multimodal items, want at most {MAX_ITEMS}")


def _is_name(key: object) -> bool:
    return isinstance(key, (str, bytes))


def _segments(value: object) -> tuple[MultimodalKey, ...]:
    """Read the segments of one block: `start_offset` tokens of the item come before the block."""
    match value:
        case None:
            return ()
        case list():
            return tuple(map(_segment, cast("list[object]", value)))
        case _:
            raise WireError("bad_extra_keys", f"mm_keys of a block are {type(value).__name__}, want an array")


def _segment(value: object) -> MultimodalKey:
    match value:
        case Segment(hash=identifier, start_offset=before) | {
            "hash": str() as identifier,
            "start_offset": int() as before,
        } if 0 <= before < 1 << 63:
            return MultimodalKey(identifier, -before)
        case _:
            raise WireError("bad_extra_keys", f"mm key is {type(value).__name__}, want hash and start_offset")


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
