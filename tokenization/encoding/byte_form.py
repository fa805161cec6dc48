"""Prompts as bytes, for models whose token ids cannot be computed here."""

from __future__ import annotations

from typing import Any

import msgspec
from xxhash import xxh3_128_hexdigest

from ..chats.conversation import Message, modality
from ..model import ChatPrompt, TextPrompt

_encode = msgspec.json.Encoder().encode


def prompt_bytes(prompt: TextPrompt | ChatPrompt) -> bytes | None:
    """What stands for the text of a prompt; None when it is no Unicode.

    Prompts that begin alike begin with the same bytes: of a chat first come tools and documents, then the messages, each
    closed by a line feed, so that the next turn of a conversation continues the bytes of this one. Media are replaced by
    digests of what was sent. The bytes are no engine's; they can only be compared with each other.

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
