"""What a request asks for, before and after tokenization."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from .conversation import Message


class NoPrefixReason(StrEnum):
    """Why a request has no token ids; the value is a label of counters."""

    UNKNOWN_PATH = "unknown_path"
    """The path is none of the known APIs, or there is no body to read."""
    NO_TOKENIZER = "no_tokenizer"
    """No tokenizer is configured."""
    NO_CHAT_TEMPLATE = "no_chat_template"
    """The tokenizer came without chat template."""
    REQUEST_TEMPLATE = "request_template"
    """The request brings its own chat template and such templates are not trusted."""
    TEMPLATE_FAILED = "template_failed"
    """The chat template refused the chat or failed on it."""
    ENCODE_FAILED = "encode_failed"
    """The tokenizer refused the text."""
    TOKENIZE_TIMEOUT = "tokenize_timeout"
    """The text was not encoded in time."""
    TOKENIZER_BUSY = "tokenizer_busy"
    """Too much text waits to be encoded."""
    MEDIA = "media"
    """A message holds something that is not text."""
    PROMPT_EMBEDS = "prompt_embeds"
    """The prompt is given as embeddings."""
    STORED_HISTORY = "stored_history"
    """Part of the prompt is stored in the engine."""
    ALTERED_PROMPT = "altered_prompt"
    """The engine is asked to truncate the prompt or to put it together with a suffix."""
    UNSUPPORTED_ITEM = "unsupported_item"
    """An input item is no message."""
    MALFORMED = "malformed"
    """A field has the wrong type; the engine will say so."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A text to encode; `add_special_tokens` lets the tokenizer add what it adds, such as a BOS token."""

    text: str
    add_special_tokens: bool


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids given by the client."""

    tokens: array[int]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation to render.

    Attributes:
        messages: in order.
        tools: as the template sees them; None when the request has none.
        documents: as sent; None when the request has none.
        variables: what else the template sees by name.
        template: template text or name out of the request; None for the model's own.
        add_generation_prompt: open the assistant's turn at the end.
        continue_final_message: leave the last message open, to be continued.
        add_special_tokens: as in `TextPrompt`, for the rendered text.
    """

    messages: tuple[Message, ...]
    tools: object = None
    documents: object = None
    variables: Mapping[str, object] | None = None
    template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class NoPrompt:
    """No prompt that could be tokenized. `detail` is for people and quotes nothing of the body."""

    reason: NoPrefixReason
    detail: str


AnyPrompt = TextPrompt | TokenPrompt | ChatPrompt | NoPrompt


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """The needed fields of one body.

    Attributes:
        model: as asked for; empty when the path is unknown.
        prompt: the first prompt of the request.
        cache_salt: what separates this request's blocks from others', or None.
        stream: whether the answer is wanted as a stream.
        n_prompts: prompts in the body.
    """

    model: str
    prompt: AnyPrompt
    cache_salt: str | None = None
    stream: bool = False
    n_prompts: int = 1


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request, ready for block keys.

    Attributes:
        model: as asked for; empty when the path is unknown.
        tokens: ids as the engine computes them, `array('I')`; None without a prefix.
        lora: the requested name when it is no configured model name: an adapter, or a model nobody serves.
        cache_salt: as in `ParsedRequest`.
        stream: as in `ParsedRequest`.
        n_prompts: prompts in the body; `tokens` are the first one's.
        reason: why there are no tokens; None when there are.
        detail: the reason in words, empty when there are tokens.
    """

    model: str
    tokens: array[int] | None
    lora: str | None = None
    cache_salt: str | None = None
    stream: bool = False
    n_prompts: int = 1
    reason: NoPrefixReason | None = None
    detail: str = ""
