"""Requests and prompts, before and after tokenization.

Each request creates several of these objects. As msgspec structs they cost a tenth of frozen dataclasses.
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
    """Reasons why a request has no token ids, or only the first of them; the values are labels of counters."""

    UNKNOWN_PATH = "unknown_path"
    """The path does not belong to a known API, or there is no body to read."""
    UNREAD = "unread"
    """The configuration routes such requests without reading them (`passthrough-parser`)."""
    COMPRESSED = "compressed"
    """The message of a gRPC request is compressed."""
    NO_GENERATION = "no_generation"
    """The path only tokenizes or renders; the engine computes no blocks for it."""
    NO_TOKENIZER = "no_tokenizer"
    """No tokenizer is configured."""
    UNKNOWN_MODEL = "unknown_model"
    """Several models are served, and none has this name."""
    NAME_TOO_LONG = "name_too_long"
    """The model's name is longer than that of any model."""
    OWN_RENDERER = "own_renderer"
    """The engine writes this model's prompts with its own code, not from the tokenizer's files."""
    NO_CHAT_TEMPLATE = "no_chat_template"
    """The tokenizer has no chat template."""
    REQUEST_TEMPLATE = "request_template"
    """The request contains a chat template, and templates from requests are not trusted."""
    TEMPLATE_FAILED = "template_failed"
    """The chat template rejected the chat or failed on it."""
    ENCODE_FAILED = "encode_failed"
    """The tokenizer rejected the text."""
    TOO_LONG = "too_long"
    """The prompt, or a part of it that cannot be cut, is too long to be encoded."""
    TOKENIZE_TIMEOUT = "tokenize_timeout"
    """The text was not encoded in time."""
    TOKENIZER_BUSY = "tokenizer_busy"
    """Too much text was already waiting to be encoded."""
    MEDIA = "media"
    """A part of the prompt is an image, audio or video."""
    PROMPT_EMBEDS = "prompt_embeds"
    """The prompt consists of embeddings."""
    STORED_HISTORY = "stored_history"
    """Part of the prompt is stored in the engine."""
    ALTERED_PROMPT = "altered_prompt"
    """The engine changes the prompt in a way that kvatlas does not support, such as appending a suffix."""
    PROMPT_LOGPROBS = "prompt_logprobs"
    """The request wants the probabilities of its prompt, for which the engine computes all of it and reuses nothing."""
    UNSUPPORTED_ITEM = "unsupported_item"
    """An input item has a kind that kvatlas does not support."""
    TOO_COMPLEX = "too_complex"
    """Reading the body would take too long: it has too many values."""
    MALFORMED = "malformed"
    """A field has the wrong type; the engine reports the error."""


class Truncation(msgspec.Struct, frozen=True, gc=False):
    """The engine's rule for shortening a prompt.

    Attributes:
        n_tokens: maximum number of ids kept, 0 or more.
        side: end at which ids are cut off.
        spares_added: keep the special tokens that the tokenizer adds, such as a BOS token; they count in `n_tokens`.
    """

    n_tokens: int
    side: Literal["left", "right"]
    spares_added: bool = False


class TextPrompt(msgspec.Struct, frozen=True, gc=False):
    """A text to encode.

    Attributes:
        text: the whole text.
        add_special_tokens: whether the tokenizer adds its special tokens, such as a BOS token.
        truncation: None if the prompt is not truncated.
        fork: the same text, but different from the first media item on. Only the ids that both texts begin with equal
            the engine's. None if there are no media.
    """

    text: str
    add_special_tokens: bool
    truncation: Truncation | None = None
    fork: str | None = None


class TokenPrompt(msgspec.Struct, frozen=True, gc=False):
    """Token ids.

    Attributes:
        tokens: the engine's ids, `array('I')`.
        media: items among the tokens, sorted by offset.
        cut: why `tokens` end before the prompt does; None if they are complete.
    """

    tokens: array[int]
    media: tuple[MediaSpan, ...] = ()
    cut: NoPrefixReason | None = None


class ChatPrompt(msgspec.Struct, frozen=True, gc=False):
    """A conversation to render.

    Attributes:
        messages: in order.
        tools: as passed to the template; None if the request has no tools.
        documents: as sent; None if the request has no documents.
        variables: further template variables by name.
        template: text or name of a template from the request; None for the model's template.
        template_as_variable: `template` was sent as a template variable, so the engine detects the content format
            from the model's template.
        add_generation_prompt: open the assistant's turn at the end.
        continue_final_message: leave the last message open, to be continued.
        add_special_tokens: as in `TextPrompt`, for the rendered text.
        truncation: as in `TextPrompt`.
        forbids_tools: the request's `tool_choice` forbids calling its tools.
        calls_in_order: the keys of tool calls are already in the template's order.
        anthropic: options of a request to Anthropic's API; None for requests to other APIs.
    """

    messages: tuple[Message, ...]
    tools: object = None
    documents: object = None
    variables: Mapping[str, object] = {}
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
    """Options of a request to Anthropic's API whose meaning depends on the model's chat template.

    Attributes:
        disables_thinking: the request switches thinking off; the template determines the matching effort.
    """

    disables_thinking: bool


class NoPrompt(msgspec.Struct, frozen=True, gc=False):
    """A request without a prompt that can be tokenized. `detail` is for people and never quotes the body."""

    reason: NoPrefixReason
    detail: str


AnyPrompt = TextPrompt | TokenPrompt | ChatPrompt | NoPrompt


class RawRequest(msgspec.Struct, frozen=True, gc=False):
    """An unparsed request, to be forwarded to an engine's tokenization API.

    Attributes:
        path: the engine's path, such as `/v1/chat/completions`, without any prefix.
        body: the JSON object.
    """

    path: str
    body: bytes


class ServerState(msgspec.Struct, frozen=True, gc=False):
    """What a request needs or leaves in the memory of one server.

    Attributes:
        previous_response: id of the stored response that it continues, as the client sent it; empty if it continues none.
        is_background: whether the server responds at once, and computes afterwards.
    """

    previous_response: str = ""
    is_background: bool = False


NO_STATE = ServerState()


class ParsedRequest(msgspec.Struct, frozen=True, gc=False):
    """The fields of one request body that kvatlas needs.

    Attributes:
        model: requested name; empty if the request names no model.
        prompt: the longest of the request's prompts, the first of equally long ones.
        lora: adapter from a separate field, or None.
        cache_salt: separates this request's blocks from those of other salts; None for no salt.
        stream: whether the client wants a streamed response.
        n_prompts: number of prompts in the body.
        n_choices: number of responses that the client wants to each prompt.
        raw: the unparsed request; None if there was no HTTP body.
        is_heavy: rendering it may take longer than a few milliseconds.
        extent: length of all prompts together, as a multiple of that of the longest one.
        n_estimated: tokens of the prompt as a gRPC message shows them, for when its ids cannot be used; 0 for other bodies.
        state: what it needs or leaves in the memory of one server.
    """

    model: str
    prompt: AnyPrompt
    lora: str | None = None
    cache_salt: str | None = None
    stream: bool = False
    n_prompts: int = 1
    n_choices: int = 1
    raw: RawRequest | None = None
    is_heavy: bool = False
    extent: float = 1.0
    n_estimated: int = 0
    state: ServerState = NO_STATE


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """One request, ready for block keys.

    Attributes:
        model: requested name; empty if the request names no model.
        tokens: the engine's ids, `array('I')`; None if they are not known.
        media: as in `TokenPrompt`.
        lora: adapter, from a separate field or from the model name; None for the base model.
        cache_salt: as in `ParsedRequest`.
        stream: as in `ParsedRequest`.
        n_prompts: as in `ParsedRequest`; `tokens` belong to one prompt.
        n_choices: as in `ParsedRequest`.
        cut: as in `TokenPrompt`.
        reason: why there are no tokens; None if there are tokens.
        detail: `reason` in words; empty if there are tokens.
        unencoded: its byte form, if only its ids are missing and it is not too long; otherwise None.
        n_estimated: estimated tokens, if the ids are missing or cut; 0 if the engine computes nothing for the request, or if nothing
            is known of the prompt.
        keyed_as: the model whose prompts of the same text are the same; empty if every name is an alias or an adapter of one.
        extent: as in `ParsedRequest`; 1 if `n_estimated` is of all prompts.
    """

    model: str
    tokens: array[int] | None
    media: tuple[MediaSpan, ...] = ()
    lora: str | None = None
    cache_salt: str | None = None
    stream: bool = False
    n_prompts: int = 1
    n_choices: int = 1
    cut: NoPrefixReason | None = None
    reason: NoPrefixReason | None = None
    detail: str = ""
    unencoded: bytes | None = None
    n_estimated: int = 0
    keyed_as: str = ""
    extent: float = 1.0
