"""Messages as gRPC sends them: each after a flag and its length."""

from __future__ import annotations

from ..encoding.byte_form import estimated_tokens
from ..errors import MessageFormatError
from ..model import NoPrefixReason, NoPrompt, ParsedRequest

PREFIX_BYTES = 5
"""Length of what precedes each message."""

_PLAIN, _COMPRESSED = 0, 1


def has_message(body: bytes | bytearray) -> bool:
    """Return whether the first message of a body is whole."""
    n_bytes = int.from_bytes(body[1:PREFIX_BYTES], "big")
    return len(body) >= PREFIX_BYTES and PREFIX_BYTES + n_bytes <= len(body)


def one_message(body: bytes) -> memoryview | None:
    """Return the first message of a body, None if it is compressed. What follows it is ignored.

    Raises:
        MessageFormatError: there is no whole message.
    """
    if len(body) < PREFIX_BYTES:
        raise MessageFormatError(f"{len(body)} bytes, fewer than the {PREFIX_BYTES} before a message")
    n_bytes = int.from_bytes(body[1:PREFIX_BYTES], "big")
    if n_bytes > len(body) - PREFIX_BYTES:
        raise MessageFormatError(
            f"a message of {n_bytes} bytes, of which {len(body) - PREFIX_BYTES} have come"
        )
    if body[0] not in (_PLAIN, _COMPRESSED):
        raise MessageFormatError(f"the flag of compression is {body[0]}")
    return None if body[0] == _COMPRESSED else memoryview(body)[PREFIX_BYTES : PREFIX_BYTES + n_bytes]


def compressed(body: bytes) -> ParsedRequest:
    """Return the request of a message that is compressed; its tokens are estimated as if it were not."""
    prompt = NoPrompt(NoPrefixReason.COMPRESSED, "the message is compressed")
    return ParsedRequest("", prompt, n_estimated=estimated_tokens(len(body)))
