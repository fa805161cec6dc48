"""What a request asks for, before and after tokenization.

Several of these are made for every request: as msgspec structs they cost a tenth of frozen dataclasses.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

import msgspec

from ..indexer.prefix import MediaSpan
from .chats.conversation import Message


class NoPrefixReason(StrEnum):
    """Why a request has no token ids, or only the first of them; the value is a label of counters."""

    UNKNOWN_PATH = "unknown_path"
    """The path is none of the known APIs, or there is no body to read."""
    NO_GENERATION = "no_generation"
    """The path only tokenizes or renders: the engine computes no blocks for it."""
    NO_TOKENIZER = "no_tokenizer"
    """No tokenizer is configured."""
    UNKNOWN_MODEL = "unknown_model"
    """None of several models is called so."""
    OWN_RENDERER = "own_renderer"
    """The engine writes this model's prompts with code of its own in place of the tokenizer's files."""
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
    """A part of the prompt is an image, audio or video."""
    PROMPT_EMBEDS = "prompt_embeds"
    """The prompt is given as embeddings."""
    STORED_HISTORY = "stored_history"
    """Part of the prompt is stored in the engine."""
    ALTERED_PROMPT = "altered_prompt"
    """The engine is asked to change the prompt in a way that is not known here, such as putting a suffix to it."""
    UNSUPPORTED_ITEM = "unsupported_item"
    """An input item is of a kind that is not known here."""
    MALFORMED = "malformed"
    """A field has the wrong type; the engine will say so."""


class Truncation(msgspec.Struct, frozen=True, gc=False):
    """How the engine shortens a prompt.

    Attributes:
        n_tokens: ids kept at most, 0 or more.
        side: where ids are cut off.
        spares_added: the tokens that the tokenizer adds by itself, such as a BOS token, stay and count.
    """

    n_tokens: int
    side: Literal["left", "right"]
    spares_added: bool = False


class TextPrompt(msgspec.Struct, frozen=True, gc=False):
    """A text to encode.

    Attributes:
        text: all of it.
        add_special_tokens: let the tokenizer add what it adds, such as a BOS token.
        truncation: None for none.
        fork: the same text with something else in place of the first media item and what follows it: only the ids both
            begin with are the engine's. None when there is no such item.
    """

    text: str
    add_special_tokens: bool
    truncation: Truncation | None = None
    fork: str | None = None


class TokenPrompt(msgspec.Struct, frozen=True, gc=False):
    """Token ids.

    Attributes:
        tokens: as the engine has them, `array('I')`.
        media: items among the tokens, by offset.
        cut: why `tokens` end before the prompt does; None when they are all.
    """

    tokens: array[int]
    media: tuple[MediaSpan, ...] = ()
    cut: NoPrefixReason | None = None


class ChatPrompt(msgspec.Struct, frozen=True, gc=False):
    """A conversation to render.

    Attributes:
        messages: in order.
        tools: as the template sees them; None when the request has none.
        documents: as sent; None when the request has none.
        variables: what else the template sees by name.
        template: template text or name out of the request; None for the model's own.
        template_as_variable: `template` came as a variable; the engine finds the form of content in the model's own.
        add_generation_prompt: open the assistant's turn at the end.
        continue_final_message: leave the last message open, to be continued.
        add_special_tokens: as in `TextPrompt`, for the rendered text.
        truncation: as in `TextPrompt`.
        forbids_tools: the request has tools and says that none may be called.
        calls_in_order: the keys of tool calls are in the order in which the template sees them.
        anthropic: the request came in the form of Anthropic's API, whose conversion depends on the template.
    """

    messages: tuple[Message, ...]
    tools: object = None
    documents: object = None
    variables: Mapping[str, object] | None = None
    template: str | None = None
    template_as_variable: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    truncation: Truncation | None = None
    forbids_tools: bool = False
    calls_in_order: bool = False
    anthropic: AnthropicChat | None = None


class AnthropicChat(msgspec.Struct, frozen=True, gc=False):
    """What of a request to Anthropic's API can be told only with the model's chat template.

    Attributes:
        disables_thinking: the request switches thinking off; the template decides which effort that is.
    """

    disables_thinking: bool


class NoPrompt(msgspec.Struct, frozen=True, gc=False):
    """No prompt that could be tokenized. `detail` is for people and quotes nothing of the body."""

    reason: NoPrefixReason
    detail: str


AnyPrompt = TextPrompt | TokenPrompt | ChatPrompt | NoPrompt


class RawRequest(msgspec.Struct, frozen=True, gc=False):
    """A request as it came, for whoever reads it by other means.

    Attributes:
        path: as the engine serves it, such as `/v1/chat/completions`, whatever stood in front.
        body: the JSON object.
    """

    path: str
    body: bytes


class ParsedRequest(msgspec.Struct, frozen=True, gc=False):
    """The needed fields of one body.

    Attributes:
        model: as asked for; empty when the request names none.
        prompt: the longest of the request's prompts, the first of equally long ones.
        lora: adapter that the request names beside the model, or None.
        cache_salt: what separates this request's blocks from others', or None.
        stream: whether the answer is wanted as a stream.
        n_prompts: prompts in the body.
        raw: what it was read from; None when it came otherwise.
    """

    model: str
    prompt: AnyPrompt
    lora: str | None = None
    cache_salt: str | None = None
    stream: bool = False
    n_prompts: int = 1
    raw: RawRequest | None = None


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """One request, ready for block keys.

    Attributes:
        model: as asked for; empty when the request names none.
        tokens: ids as the engine computes them, `array('I')`; None without a prefix.
        media: as in `TokenPrompt`.
        lora: adapter named by the request, by itself or as the model.
        cache_salt: as in `ParsedRequest`.
        stream: as in `ParsedRequest`.
        n_prompts: as in `ParsedRequest`; `tokens` are one prompt's.
        cut: as in `TokenPrompt`.
        reason: why there are no tokens; None when there are.
        detail: `reason` in words, empty when there are tokens.
        unencoded: the prompt as it came, where only its ids are missing; None otherwise.
    """

    model: str
    tokens: array[int] | None
    media: tuple[MediaSpan, ...] = ()
    lora: str | None = None
    cache_salt: str | None = None
    stream: bool = False
    n_prompts: int = 1
    cut: NoPrefixReason | None = None
    reason: NoPrefixReason | None = None
    detail: str = ""
    unencoded: TextPrompt | ChatPrompt | None = None
