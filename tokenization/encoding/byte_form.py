"""Byte form of prompts, for models whose token ids cannot be computed here."""

from __future__ import annotations

from typing import Any

import msgspec
from xxhash import xxh3_128_hexdigest

from ..chats.conversation import Message, modality
from ..model import ChatPrompt, TextPrompt

MAX_BYTES = 8 * 2**20
"""Longest request whose bytes make keys, in 30 ms: two million tokens, more than contexts have."""

_encode = msgspec.json.Encoder().encode


def prompt_bytes(prompt: TextPrompt | ChatPrompt) -> bytes | None:
    """Encode a prompt as bytes; None if its text is not valid Unicode.

    Prompts with a common beginning have bytes with a common beginning. A chat starts with its tools and documents, followed
    by its messages. Each ends with a line feed, so the next turn of a conversation extends the bytes of this one. Media are
    replaced by digests. The bytes have no meaning for engines; they can only be compared with each other.

    Cost: 0.2 ms for 100 kB.
    """
    try:
        if isinstance(prompt, TextPrompt):
            return prompt.text.encode()
        head = _encode([prompt.tools, prompt.documents])
        return b"\n".join([head, *(_encode(_without_media(message)) for message in prompt.messages), b""])
    except (UnicodeEncodeError, RecursionError):
        return None


def _without_media(message: Message) -> Message:
    if not isinstance(message.content, list):
        return message
    return msgspec.structs.replace(message, content=[_digested(part) for part in message.content])


def _digested(part: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(part, str) or (kind := modality(part)) is None:
        return part
    return {"type": kind, "digest": xxh3_128_hexdigest(_encode(part))}
