"""The place of a body in a serialized ProcessingRequest, found without decoding it."""

from __future__ import annotations

_MAX_VARINT_BYTES = 5
"""Length of the largest varint that can be a length in protobuf."""

_BODY_TAGS = (0x22, 0x2A)
"""Tags of `request_body` and `response_body`."""

_BYTES_TAG = 0x0A
"""Tag of `HttpBody.body`."""


def is_body(message: bytes, n_others: int) -> bool:
    """Return whether all of a serialized ProcessingRequest but `n_others` bytes is the content of a body.

    Gateways serialize fields in the order of their numbers, so that the body comes first. A long message of anything
    else costs seconds to decode, since its fields may be a few bytes long each.
    """
    if message[0] not in _BODY_TAGS:
        return False
    _, start = _varint(message, 1)
    if message[start : start + 1] != bytes((_BYTES_TAG,)):
        return False
    length, start = _varint(message, start + 1)
    return len(message) - n_others <= length <= len(message) - start


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """Return a varint and the place after it; 0 if it is longer than a length can be."""
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        byte = data[start + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, start + place + 1
    return 0, start
