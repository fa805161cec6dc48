"""What the bodies of several APIs have in common."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Raw

from ..chats.conversation import Entry, Message, first_malformed, has_media
from ..chats.variables import template_variables
from ..encoding.encoding import shortened
from ..model import (
    AnthropicChat,
    AnyPrompt,
    ChatPrompt,
    NoPrefixReason,
    NoPrompt,
    TextPrompt,
    TokenPrompt,
    Truncation,
)

ABSENT = Raw(b"null")
"""A field that is not there."""

TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
PromptField = str | list[str | TokenId | list[TokenId]]
"""One text, token ids, or a list of several of either."""

TruncatedTo = Annotated[int, Meta(ge=-1)]
"""Token ids that the engine keeps of a prompt; -1: as many as fit its context, which is all of one it can take."""

Side = Literal["left", "right"]


class Found(msgspec.Struct, frozen=True, gc=False):
    """The prompt of a body.

    Attributes:
        prompt: the longest one.
        n_prompts: prompts in the body.
        position: which of them it is.
        lora: adapter named beside the model.
    """

    prompt: AnyPrompt
    n_prompts: int = 1
    position: int = 0
    lora: str | None = None


class ReusedIds(msgspec.Struct, frozen=True):
    """Token ids that a disaggregated prefill server hands to the decode server, which renders nothing then."""

    prompt_token_ids: Any = None


class Head(msgspec.Struct):
    """What the bodies of all APIs have; undecoded, so that a wrong one costs no other field."""

    model: Raw = ABSENT
    stream: Raw = ABSENT
    cache_salt: Raw = ABSENT


class TemplateOptions(Head):
    """What every API for chats lets a client say about their rendering."""

    chat_template_kwargs: dict[str, Any] | None = None
    kv_transfer_params: ReusedIds | None = None


def no_prompt(reason: NoPrefixReason, detail: str) -> Found:
    """A body without a prompt that could be tokenized."""
    return Found(NoPrompt(reason, detail))


def token_prompt(ids: Iterable[int], truncation: Truncation | None = None) -> TokenPrompt:
    """`ids`, each from 0 to 2**32 - 1, as a prompt."""
    return TokenPrompt(shortened(array("I", ids), truncation))


def truncation_of(
    n_tokens: int | None, side: Side | None, *, engine_side: Side = "left"
) -> Truncation | None:
    """The truncation that a request asks for; `engine_side` is where the engine cuts when the request does not say."""
    if n_tokens is None or n_tokens < 0:
        return None
    if side is None:
        return Truncation(n_tokens, engine_side, spares_added=True)
    return Truncation(n_tokens, side)


def longest(field: PromptField, *, add_special_tokens: bool, truncation: Truncation | None) -> Found:
    """The longest prompt of a field that may hold several: it has most to win, and the server gets all of them."""
    if isinstance(field, str):
        return Found(TextPrompt(field, add_special_tokens, truncation))
    try:
        if isinstance(field[0], int):
            return Found(token_prompt(cast("list[int]", field), truncation))
        prompts = cast("Sequence[str | list[int]]", field)
        position = max(range(len(prompts)), key=lambda number: len(prompts[number]))
        found = prompts[position]
        if isinstance(found, str):
            return Found(TextPrompt(found, add_special_tokens, truncation), len(prompts), position)
        return Found(token_prompt(found, truncation), len(prompts), position)
    except TypeError:
        return no_prompt(NoPrefixReason.MALFORMED, "the prompt mixes token ids with something else")


def chat(
    messages: Sequence[Message],
    options: TemplateOptions,
    *,
    tools: list[Entry] | None,
    reasoning_effort: str | None = None,
    documents: object = None,
    template: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    add_special_tokens: bool = False,
    truncation: Truncation | None = None,
    forbids_tools: bool = False,
    calls_in_order: bool = False,
    echo: bool = False,
    anthropic: AnthropicChat | None = None,
) -> AnyPrompt:
    """A conversation as a prompt; see `ChatPrompt`. `echo`: the request wants its last message back."""
    media = has_media(messages)
    reused = options.kv_transfer_params.prompt_token_ids if options.kv_transfer_params else None
    if reused is not None and not echo and not media:
        try:
            return token_prompt(msgspec.convert(reused, list[TokenId]))
        except msgspec.ValidationError:
            return NoPrompt(
                NoPrefixReason.MALFORMED, "prompt_token_ids of kv_transfer_params are no token ids"
            )
    if media and truncation is not None:
        return NoPrompt(NoPrefixReason.ALTERED_PROMPT, "the request truncates a prompt with media")
    if (where := first_malformed(messages)) is not None:
        return NoPrompt(NoPrefixReason.MALFORMED, f"{where} lacks a field or has it in a wrong type")
    variables = template_variables(options.chat_template_kwargs, reasoning_effort)
    # Of things that can be said in two places, a variable wins for tools and loses for the others, as in the engine.
    variable = variables.pop("chat_template", None)
    as_variable = not template and variable is not None
    forbids_tools &= "tools" not in variables
    return ChatPrompt(
        messages=tuple(messages),
        tools=variables.pop("tools", tools),
        documents=variables.pop("documents", None) if documents is None else documents,
        template=str(variable) if as_variable else template or None,
        template_as_variable=as_variable,
        variables=variables,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        add_special_tokens=add_special_tokens,
        truncation=truncation,
        forbids_tools=forbids_tools,
        calls_in_order=calls_in_order,
        anthropic=anthropic,
    )
