"""The fields of one event, decoded when they are read.

Fields that nobody reads cost no Python objects. Long ones are decoded as the types that they must have, so that an event of any
content takes a few tens of nanoseconds per byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

import msgspec

from .errors import WireError
from .extra_keys import MAX_EXTRA_KEYS, Segment

T = TypeVar("T")

MAX_FIELDS = 64
"""Events with more fields are rejected; engines send fifteen."""

MAX_HASHES = 65_536
"""Events with more blocks are rejected; a prompt of a million tokens has that many blocks of 16."""

MAX_PAIRS = 98_304
"""Most (token, next token) pairs of an event; no more fit into the bytes of one with usual token ids."""

MAX_DIGESTED = 16_384
"""Most blocks of an event with digests of embeddings among their extra keys."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of the decoder for bytes that are not msgpack, text that is not UTF-8, and endless nesting."""

_LONG_BYTES = 16 * 1024
"""Fields from this size on are decoded by their type."""

_ARRAY_LEADS, _MAP_LEADS, _BIN_LEADS = (0xDC, 0xDD), (0xDE, 0xDF), (0xC4, 0xC5, 0xC6)

_decode_any = msgspec.msgpack.Decoder().decode
_decode_raws = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_raw_map = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_decode_pairs = msgspec.msgpack.Decoder(list[list[int]]).decode

_decode_keys = msgspec.msgpack.Decoder(list[list[str | list[str | int]] | None]).decode
_decode_raw_keys = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def _decode_extra_keys(raw: msgspec.Raw) -> list[object]:
    """Decode extra keys: names and items, or digests among them, of which each block is decoded by itself."""
    try:
        return cast("list[object]", _decode_keys(raw))
    except msgspec.ValidationError:
        blocks = _decode_raw_keys(raw)
    sizes = map(array_size, blocks[: MAX_DIGESTED + 1])
    if len(blocks) > MAX_DIGESTED or sum(size or 0 for size in sizes) > MAX_EXTRA_KEYS:
        raise WireError("bad_extra_keys", f"extra_keys has {len(blocks)} blocks with digests")
    return [cast("object", _decode_any(block)) for block in blocks]


_HASHES = (msgspec.msgpack.Decoder(list[int | bytes]).decode, MAX_HASHES, "too_many_hashes", "bad_hash")
_LONG: Mapping[str, tuple[Callable[[msgspec.Raw], object], int | None, str, str]] = {
    "block_hashes": _HASHES,
    "seq_hashes": _HASHES,
    "token_ids": (msgspec.msgpack.Decoder(list[int | str]).decode, None, "bad_tokens", "bad_tokens"),
    "lookahead_token_ids": (_decode_pairs, MAX_HASHES, "bad_lookahead", "bad_tokens"),
    "extra_keys": (_decode_extra_keys, MAX_HASHES, "bad_extra_keys", "bad_extra_keys"),
    "mm_keys": (
        msgspec.msgpack.Decoder(list[list[Segment] | None]).decode, MAX_HASHES, "bad_extra_keys", "bad_extra_keys",
    ),
}  # fmt: skip
"""Name of a field that may be long -> its decoder, most items, and the reasons for too many and for others."""


class Fields:
    """The fields of an event by name.

    Args:
        raws: name -> bytes.
    """

    __slots__ = ("_raws", "_values")

    def __init__(self, raws: Mapping[str, msgspec.Raw]) -> None:
        self._raws = raws
        self._values: dict[str, object] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._raws

    def get(self, name: str, default: object = None) -> object:
        """Return a field, `default` if it was not sent.

        Raises:
            WireError: it is unreadable.
        """
        if name not in self._values:
            raw = self._raws.get(name)
            if raw is None:
                return default
            self._values[name] = _decode(name, raw)
        return self._values[name]


def read_fields(raw: bytes | msgspec.Raw, order: Callable[[object], Sequence[str]]) -> tuple[object, Fields]:
    """Return the tag of an event (None if a map has none), and its other fields.

    Args:
        raw: a map, or an array that begins with the tag; may be wrapped in `bin`, also twice.
        order: tag -> names of the fields in an array.
    Raises:
        WireError: it is neither, or unreadable.
    """
    for _ in range(2):  # llm-d's file-system backend wraps each event in bin
        if _lead(raw) not in _BIN_LEADS:
            break
        raw = cast("bytes", decoded(_decode_any, raw))
    n_items, n_fields = array_size(raw), map_size(raw)
    if max(n_items or 0, n_fields or 0) > MAX_FIELDS:
        raise WireError(
            "too_many_fields", f"event has {n_items or n_fields} fields, want at most {MAX_FIELDS}"
        )
    if n_fields is not None:
        try:
            fields = Fields(_decode_raw_map(raw))
        except msgspec.ValidationError as error:
            raise WireError("not_an_event", f"event has a field without a name: {error}") from None
        except UNREADABLE as error:
            raise WireError("not_msgpack", f"event is not msgpack: {error}") from None
        return fields.get("type"), fields
    if not n_items:
        if n_items is None:
            decoded(_decode_any, raw)  # what is no msgpack at all has a reason of its own
        raise WireError("not_an_event", "event is no map and no array with a tag")
    first, *others = decoded(_decode_raws, raw)
    tag = _decode("type", first)
    return tag, Fields(dict(zip(order(tag), others, strict=False)))


def array_size(raw: bytes | msgspec.Raw) -> int | None:
    """Return the number of items of a msgpack array, None if `raw` is no array."""
    return _size(raw, 0x90, _ARRAY_LEADS)


def map_size(raw: bytes | msgspec.Raw) -> int | None:
    """Return the number of fields of a msgpack map, None if `raw` is no map."""
    return _size(raw, 0x80, _MAP_LEADS)


def decoded(decode: Callable[[bytes | msgspec.Raw], T], raw: bytes | msgspec.Raw) -> T:
    """Decode a part of an event.

    Raises:
        WireError: it is not msgpack, or not of the decoder's type.
    """
    try:
        return decode(raw)
    except UNREADABLE as error:
        raise WireError("not_msgpack", f"event is not msgpack: {error}") from None


def _decode(name: str, raw: msgspec.Raw) -> object:
    if len(raw) < _LONG_BYTES:
        return cast("object", decoded(_decode_any, raw))
    n_items = array_size(raw)
    if n_items is None and map_size(raw) is None:
        return cast("object", decoded(_decode_any, raw))  # one text, however long
    if n_items is None or name not in _LONG:
        raise WireError("field_too_large", f"{name} has {len(raw)} bytes")
    decode, most, reason_of_many, reason = _LONG[name]
    if name == "token_ids" and _begins_with_array(raw):
        decode, most = _decode_pairs, MAX_PAIRS
    if most is not None and n_items > most:
        raise WireError(reason_of_many, f"{name} has {n_items} items, want at most {most}")
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        raise WireError(reason, f"{name}: {error}") from None
    except UNREADABLE as error:
        raise WireError("not_msgpack", f"event is not msgpack: {error}") from None


def _lead(raw: bytes | msgspec.Raw) -> int:
    head = bytes(memoryview(raw)[:1])
    return head[0] if head else 0


def _size(raw: bytes | msgspec.Raw, short: int, leads: tuple[int, int]) -> int | None:
    head = bytes(memoryview(raw)[:5])
    lead = head[0] if head else 0
    if lead & 0xF0 == short:
        return lead & 0x0F
    if lead == leads[0]:
        return int.from_bytes(head[1:3], "big")
    return int.from_bytes(head[1:5], "big") if lead == leads[1] else None


def _begins_with_array(raw: msgspec.Raw) -> bool:
    n_head = {0xDC: 3, 0xDD: 5}.get(_lead(raw), 1)
    return array_size(bytes(memoryview(raw)[n_head : n_head + 5])) is not None
