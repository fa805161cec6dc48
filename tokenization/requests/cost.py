"""What reading a JSON body costs, estimated before it is decoded.

One unit is what decoding a plain value costs, about 40 ns: a number, or a short text. The number of bytes says little: for
the same bytes, many tiny objects cost a hundred times as much as one long text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from msgspec.structs import replace

from ..chats.conversation import Message
from ..chats.sandbox import MAX_RENDERED_CHARS
from ..model import ChatPrompt, NoPrefixReason, NoPrompt, ParsedRequest

CONTAINER = 32
"""Units of a list or object: 400 ns for nested lists, 750 ns for a content part with two texts, and as much again for its use."""

MAX_COST = 1_000_000
"""Default limit of one body: a million token ids, or 29,000 content parts. Decoding them takes 20 to 40 ms, in one step."""

LIGHT_BYTES = 64 * 1024
"""A body up to this length is light, whatever it contains: 12 ms at most for reading."""

LIGHT_COST = 20_000
MAX_LIGHT_BYTES = 2**20
"""A longer body is light up to this cost and length, as nearly all are. Finding that out costs 0.3 ms per MB."""

MAX_UNREAD_BYTES = 16 * 2**20
"""A body above the limit of cost is skimmed for its model up to this length: 10 ms, at most 40."""

MAX_JSON_CHARS = 8 * 2**20
"""Texts of tools, documents and tool arguments: templates make JSON of them in one step, of 4 ns a character."""

_STRUCTURE = b",[{"
_NOT_STRUCTURE = bytes(set(range(256)).difference(_STRUCTURE))
_ASCII = bytes(range(128))


def is_light(body: bytes) -> bool:
    """Return whether reading `body` takes so little time that the event loop may do it."""
    if len(body) <= LIGHT_BYTES:
        return True
    return len(body) <= MAX_LIGHT_BYTES and _structure_cost(body) <= LIGHT_COST


def cost_by_library(body: bytes) -> int:
    """Return the cost of decoding `body`, or more: commas and brackets within texts count as well."""
    n_wide = 0 if body.isascii() else len(body.translate(None, _ASCII))
    return _structure_cost(body) + n_wide // 16 + body.count(b"\\") // 4


def _structure_cost(body: bytes) -> int:
    structure = body.translate(None, _NOT_STRUCTURE)
    n_commas = structure.count(b",")
    return n_commas + CONTAINER * (len(structure) - n_commas)


def _native_cost() -> Callable[[bytes], int]:
    try:
        from ..encoding._native import json_cost  # noqa: PLC0415 - absent if the extension is not built
    except ImportError:
        return cost_by_library
    return lambda body: json_cost(body, CONTAINER)


decoding_cost = _native_cost()
"""Returns the cost of decoding a body; releases the GIL if the native part is built."""


def too_complex(cost: int, max_cost: int) -> NoPrompt:
    """Return the prompt of a request that is not read because of its cost."""
    return NoPrompt(
        NoPrefixReason.TOO_COMPLEX,
        f"reading the request costs {cost}, and tokenization.maxReadingCost is {max_cost}",
    )


def heavy(request: ParsedRequest, max_cost: int) -> ParsedRequest:
    """Return `request` to be rendered in a thread, without prompt if its texts or tool arguments cost too much.

    The arguments are JSON within texts, which the engine decodes for the template.
    """
    if isinstance(request.prompt, ChatPrompt):
        if request.raw is not None and (detail := _too_long(request.prompt, len(request.raw.body))):
            return replace(request, prompt=NoPrompt(NoPrefixReason.TOO_LONG, detail))
        cost = sum(map(_arguments_cost, request.prompt.messages))
        if cost > max_cost:
            return replace(request, prompt=too_complex(cost, max_cost))
    return replace(request, is_heavy=True)


def _too_long(chat: ChatPrompt, n_bytes: int) -> str:
    """Return which texts of a chat are too long to be rendered, empty if none are; `n_bytes` is the body's length."""
    if n_bytes > MAX_RENDERED_CHARS:
        n_chars = sum(map(_text_chars, chat.messages))
        if n_chars > MAX_RENDERED_CHARS:
            return f"the chat has {n_chars} characters, more than {MAX_RENDERED_CHARS}"
    if n_bytes > MAX_JSON_CHARS:
        calls = [message.tool_calls for message in chat.messages]
        n_chars = _json_chars([chat.tools, chat.documents, calls])
        if n_chars > MAX_JSON_CHARS:
            return f"tools, documents and tool calls have {n_chars} characters, more than {MAX_JSON_CHARS}"
    return ""


def _json_chars(value: object) -> int:
    """Return the characters of all texts in a value."""
    n_chars, left = 0, [value]
    while left:
        each = left.pop()
        if isinstance(each, str):
            n_chars += len(each)
        elif isinstance(each, Mapping):
            left.extend(cast("Mapping[str, object]", each).values())
        elif isinstance(each, Sequence):
            left.extend(cast("Sequence[object]", each))
    return n_chars


def _text_chars(message: Message) -> int:
    if not isinstance(message.content, list):
        return len(message.content or "")
    texts = (part if isinstance(part, str) else part.get("text") for part in message.content)
    return sum(len(text) for text in texts if isinstance(text, str))


def _arguments_cost(message: Message) -> int:
    texts = (call["function"].get("arguments") for call in message.tool_calls or ())
    return sum(decoding_cost(text.encode(errors="surrogatepass")) for text in texts if isinstance(text, str))
