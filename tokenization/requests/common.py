"""Fields and helpers shared by the request bodies of several APIs."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Raw
from msgspec.structs import replace

from ..chats.conversation import first_malformed, has_media
from ..chats.variables import template_variables
from ..encoding.truncation import shortened
from ..model import (
    NO_STATE,
    AnyPrompt,
    ChatPrompt,
    NoPrefixReason,
    NoPrompt,
    ServerState,
    TextPrompt,
    TokenPrompt,
    Truncation,
)

ABSENT = Raw(b"null")
"""An absent field."""

TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
PromptField = str | list[str | TokenId | list[TokenId]]
"""One text, one list of token ids, or a list of several of either."""

TruncatedTo = Annotated[int, Meta(ge=-1)]
"""Number of token ids to which the engine shortens a prompt; -1 for its context length, which shortens no valid prompt."""

Side = Literal["left", "right"]


class BodyPrompt(msgspec.Struct, frozen=True, gc=False):
    """The prompt of a body.

    Attributes:
        prompt: the longest prompt of the body.
        n_prompts: number of prompts in the body.
        position: index of `prompt` among them.
        lora: adapter from a separate field, or None.
        extent: length of all prompts together, as a multiple of that of the longest one.
        state: as in `ParsedRequest`.
    """

    prompt: AnyPrompt
    n_prompts: int = 1
    position: int = 0
    lora: str | None = None
    extent: float = 1.0
    state: ServerState = NO_STATE


MAX_CHOICES = 16_384
"""Most responses to one prompt, as in vLLM."""

_decode_number = msgspec.json.Decoder(float, strict=False).decode


def n_choices_of(field: Raw) -> int:
    """Return how many responses to one prompt the field `n` wants: 1 if it is absent, or if no engine accepts it."""
    if field is ABSENT:
        return 1
    try:
        number = _decode_number(field)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 1
    return int(number) if number.is_integer() and 1 <= number <= MAX_CHOICES else 1


def is_given(field: Raw) -> bool:
    """Return whether a field is there and not null."""
    return field is not ABSENT and bytes(memoryview(field)[:4]) != b"null"


class ReusedIds(msgspec.Struct, frozen=True):
    """Token ids from a disaggregated prefill server; the decode server uses them instead of rendering the chat."""

    prompt_token_ids: Any = None


class Head(msgspec.Struct):
    """Fields of all bodies, undecoded, so that a malformed one does not affect the others."""

    model: Raw = ABSENT
    stream: Raw = ABSENT
    cache_salt: Raw = ABSENT

    def n_choices(self) -> int:
        """Return how many responses to one prompt the body wants."""
        return 1


class TemplateOptions(Head):
    """Rendering options of all chat APIs."""

    chat_template_kwargs: dict[str, Any] | None = None
    kv_transfer_params: ReusedIds | None = None


def no_prompt(reason: NoPrefixReason, detail: str) -> BodyPrompt:
    """Return the result for a body without a prompt that can be tokenized."""
    return BodyPrompt(NoPrompt(reason, detail))


def all_computed() -> BodyPrompt:
    """Return the result for a body that wants the probabilities of its prompt.

    Source: SamplingParams of vLLM, whose `skip_reading_prefix_cache` is set with `prompt_logprobs`.
    """
    return no_prompt(
        NoPrefixReason.PROMPT_LOGPROBS,
        "the request wants the probabilities of its prompt, so that the engine computes all of it",
    )


def token_prompt(ids: Iterable[int], truncation: Truncation | None = None) -> TokenPrompt:
    """Make a prompt of `ids`, each from 0 to 2**32 - 1."""
    return TokenPrompt(shortened(array("I", ids), truncation))


def truncation_of(
    n_tokens: int | None, side: Side | None, *, engine_side: Side = "left"
) -> Truncation | None:
    """Return the requested truncation; `engine_side` is the engine's default side."""
    if n_tokens is None or n_tokens < 0:
        return None
    if side is None:
        return Truncation(n_tokens, engine_side, spares_added=True)
    return Truncation(n_tokens, side)


def n_prompts_of(field: PromptField) -> int:
    """Return the number of prompts of a field."""
    return 1 if isinstance(field, str) or isinstance(field[0], int) else len(field)


def extent_of(lengths: Sequence[int]) -> float:
    """Return the sum of the lengths of several prompts, as a multiple of the longest one; 1 if all are empty."""
    most = max(lengths)
    return sum(lengths) / most if most else 1.0


def longest(field: PromptField, *, add_special_tokens: bool, truncation: Truncation | None) -> BodyPrompt:
    """Return the longest prompt of a field; one server gets all, and the longest gains most from a cached prefix."""
    if isinstance(field, str):
        return BodyPrompt(TextPrompt(field, add_special_tokens, truncation))
    try:
        if isinstance(field[0], int):
            return BodyPrompt(token_prompt(cast("list[int]", field), truncation))
        prompts = cast("Sequence[str | list[int]]", field)
        lengths = list(map(len, prompts))
        position = lengths.index(max(lengths))
        found, extent = prompts[position], extent_of(lengths)
        if isinstance(found, str):
            text = TextPrompt(found, add_special_tokens, truncation)
            return BodyPrompt(text, len(prompts), position, extent=extent)
        return BodyPrompt(token_prompt(found, truncation), len(prompts), position, extent=extent)
    except TypeError:
        return no_prompt(NoPrefixReason.MALFORMED, "the prompt mixes token ids with other values")


def complete_chat(
    chat: ChatPrompt, options: TemplateOptions, *, reasoning_effort: str | None = None
) -> AnyPrompt:
    """Apply the rendering options of a body to its conversation, or return why it has no prompt.

    Args:
        chat: the conversation with the body's own fields; `variables` and `template_as_variable` are filled in here.
        options: of the body.
        reasoning_effort: as the API has it; None if the request does not set it.
    """
    media = has_media(chat.messages)
    reused = options.kv_transfer_params.prompt_token_ids if options.kv_transfer_params else None
    if reused is not None and not media:
        return _reused_prompt(reused)
    if media and chat.truncation is not None:
        return NoPrompt(NoPrefixReason.ALTERED_PROMPT, "the request truncates a prompt with media")
    if (where := first_malformed(chat.messages)) is not None:
        return NoPrompt(NoPrefixReason.MALFORMED, f"{where} lacks a field or has one of a wrong type")
    if not options.chat_template_kwargs and reasoning_effort is None and chat.template is None:
        return chat  # as nearly all are
    variables = template_variables(options.chat_template_kwargs, reasoning_effort)
    # As in the engine, a variable takes precedence for tools, and the body's own field for template and documents.
    template = variables.pop("chat_template", None)
    as_variable = not chat.template and template is not None
    forbids_tools = chat.forbids_tools and "tools" not in variables
    documents = variables.pop("documents", None) if chat.documents is None else chat.documents
    return replace(
        chat,
        tools=variables.pop("tools", chat.tools),
        documents=documents,
        template=str(template) if as_variable else chat.template or None,
        template_as_variable=as_variable,
        variables=variables,
        forbids_tools=forbids_tools,
    )


def _reused_prompt(ids: object) -> TokenPrompt | NoPrompt:
    try:
        return token_prompt(msgspec.convert(ids, list[TokenId]))
    except msgspec.ValidationError:
        return NoPrompt(NoPrefixReason.MALFORMED, "prompt_token_ids of kv_transfer_params are not token ids")
