"""Images and other media in the prompts of simulated servers: words in their place, and the encoding of each once."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec

from ..tokenization.chats.conversation import modality
from ..tokenization.media import media_ids
from ..tokenization.model import AnyPrompt, ChatPrompt
from ..tokenization.requests.request import parse_body
from .words import prose

ITEM_WORDS = 64
"""Words in place of one item. They follow from its content, so equal items have equal tokens."""

ITEM_BYTES = 1 << 20
"""Size of an encoded item, for responses."""


def with_words(prompt: ChatPrompt) -> ChatPrompt:
    """Return a conversation with words in place of its media."""
    messages = tuple(
        msgspec.structs.replace(message, content=[_words_of(part) for part in message.content])
        if isinstance(message.content, list)
        else message
        for message in prompt.messages
    )
    return msgspec.structs.replace(prompt, messages=messages)


def _words_of(part: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(part, str) or modality(part) is None:
        return part
    return {"type": "text", "text": prose(Random(msgspec.json.encode(part, order="sorted")), ITEM_WORDS)}


class EncodedMedia:
    """Ids of encoded media, which the servers of one process share, as an encoder cache connector does."""

    def __init__(self) -> None:
        self._ids: set[int] = set()

    def __contains__(self, item: int) -> bool:
        return item in self._ids

    def add(self, item: int) -> None:
        """Note that an item is encoded."""
        self._ids.add(item)


class MediaEncoder:
    """Encoder of one server: one item after another, and none that is encoded already.

    Args:
        encoded: what is encoded already.
        seconds: real seconds per item.
        is_alone: whether the server does nothing else, so that it answers without the engine.
    """

    def __init__(self, encoded: EncodedMedia, seconds: float, *, is_alone: bool) -> None:
        self._encoded, self._seconds, self.is_alone = encoded, seconds, is_alone
        self._turn = asyncio.Lock()

    async def encode(self, path: str, body: bytes) -> tuple[int, ...]:
        """Encode the media in a request body; return their ids."""
        prompt: AnyPrompt = parse_body(path, body).prompt
        items = media_ids(prompt)
        for item in items:
            async with self._turn:
                if item not in self._encoded:
                    await asyncio.sleep(self._seconds)
                    self._encoded.add(item)
        return items


def ec_transfer_params(items: tuple[int, ...], *, host: str) -> dict[str, object]:
    """Return the field of an encode server's response: where each encoded item is."""
    return {f"{item:016x}": {"peer_host": host, "size_bytes": ITEM_BYTES} for item in items}
