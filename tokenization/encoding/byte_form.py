"""Byte form of prompts, for prompts whose token ids are not known, and the number of tokens estimated from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from xxhash import xxh64_intdigest

from ...indexer.prefix import WORD_BYTES
from ..chats.conversation import TEXT_FIELDS, Message, modality
from ..model import ChatPrompt, TextPrompt
from .media_tokens import MediaTokens

MAX_BYTES = 8 * 2**20
"""Longest request whose bytes make keys, in 30 ms, and longest form: two million tokens, more than contexts have."""

_encode = msgspec.json.Encoder().encode


def byte_form(prompt: TextPrompt | ChatPrompt, media: MediaTokens) -> bytes | None:
    """Encode a prompt as bytes; None if its text is not valid Unicode.

    Prompts with a common beginning have bytes with a common beginning. A text is its UTF-8. A chat starts with its tools
    and documents as JSON, followed by role, text and tool calls of each message. A media item is a digest of four bytes,
    repeated for each token that it is estimated to have, at a multiple of four bytes. The bytes have no meaning for
    engines; they can only be compared with each other. They end at `MAX_BYTES`: an image of a few bytes can claim any size.

    Args:
        prompt: the text or chat.
        media: estimates the tokens of media items.
    Cost: 0.1 ms for 100 kB.
    Source: the order of roles, texts and media, and four bytes a token, are those of the reference's estimate.
    """
    try:
        if isinstance(prompt, TextPrompt):
            return prompt.text.encode()
        form = bytearray()
        for head in (prompt.tools, prompt.documents):
            if head:
                form += _encode(head)
        for message in prompt.messages:
            _add(form, message, media)
        return bytes(memoryview(form)[:MAX_BYTES])
    except (UnicodeEncodeError, RecursionError):
        return None


def estimated_tokens(n_bytes: int) -> int:
    """Return the number of tokens that a text of so many bytes of UTF-8 is estimated to have: at most those of `MAX_BYTES`.

    A body may consist of media, and a length that a client announces may be any number.
    """
    return -(-min(n_bytes, MAX_BYTES) // WORD_BYTES)


def _add(form: bytearray, message: Message, media: MediaTokens) -> None:
    form += message.role.encode()
    if isinstance(message.content, str):
        form += message.content.encode()
    else:
        for part in message.content or ():
            _add_part(form, part, media)
    if message.tool_calls:
        form += _encode(message.tool_calls)
    thought = message.reasoning or message.reasoning_content
    if thought:
        form += thought.encode()


def _add_part(form: bytearray, part: str | Mapping[str, Any], media: MediaTokens) -> None:
    if isinstance(part, str):
        form += part.encode()
        return
    kind = modality(part)
    if kind is not None:
        form += bytes(-len(form) % WORD_BYTES)
        n_words = min(media.of(kind, part), max(1, (MAX_BYTES - len(form)) // WORD_BYTES))
        form += (xxh64_intdigest(_encode(part)) & 0xFFFFFFFF).to_bytes(WORD_BYTES, "little") * n_words
        return
    field = TEXT_FIELDS.get(part.get("type") or "text")
    text = part.get(field) if field is not None else None
    form += text.encode() if isinstance(text, str) else _encode(part)
