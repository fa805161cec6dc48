"""Long bodies in serialized messages: taken out of a request without decoding it, put into a reply without encoding it."""

from __future__ import annotations

_MAX_VARINT_BYTES = 5
"""Length of the largest varint that can be a length in protobuf."""

_LENGTH_DELIMITED = 2
"""Wire type of bytes and messages."""

_BODY_TAGS = (0x22, 0x2A)
"""Tags of `request_body` and `response_body`."""

_BYTES_TAG = 0x0A
"""Tag of `HttpBody.body`."""


def split(message: bytes, n_others: int) -> tuple[bytes, bytes] | None:
    """Return a serialized ProcessingRequest without its body, and the body, which is copied once.

    Gateways serialize fields in the order of their numbers, so that the body comes first. A long message of anything
    else costs seconds to decode, since its fields may be a few bytes long each.

    Args:
        message: more than `n_others` bytes.
        n_others: length of everything but the body at most.
    Returns:
        None if the message is longer without its body, or malformed.
    """
    if message[0] not in _BODY_TAGS:
        return None
    n_content, content = _varint(message, 1)
    if message[content] != _BYTES_TAG:
        return None
    n_body, start = _varint(message, content + 1)
    end = start + n_body
    if end > content + n_content or content + n_content > len(message) or len(message) - n_body > n_others:
        return None
    return message[:1] + _as_varint(content + n_content - end) + message[end:], message[start:end]


def field(number: int, n_bytes: int) -> bytes:
    """Return what comes before the content of a field that has `n_bytes` of it."""
    return _as_varint(number << 3 | _LENGTH_DELIMITED) + _as_varint(n_bytes)


def _as_varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*data, value))


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """Return a varint and the place after it; 0 if it is longer than a length can be."""
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        byte = data[start + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, start + place + 1
    return 0, start
