"""Serialized protobuf messages and gRPC's frames, written field by field."""

from __future__ import annotations


def varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*data, number))


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def content(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def packed(field: int, *numbers: int) -> bytes:
    return content(field, b"".join(map(varint, numbers)))


def frame(message: bytes, *, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message


def tokenized(*ids: int) -> bytes:
    """Make a Generate or Embed request of vLLM with token ids."""
    return content(1, b"id") + content(2, packed(2, *ids))
