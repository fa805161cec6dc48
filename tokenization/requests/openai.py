"""Request bodies of OpenAI's completions, chat completions and embeddings.

Only fields that affect the prompt are declared, with the engine's defaults. Each function returns the prompt of a body, or
None if the prompt's field is empty.
Source: vLLM 0.32.0 entrypoints (chat_completion, completion, pooling), checked against its render server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from ..chats.conversation import Message, Tool, tool_entry
from ..model import ChatPrompt, NoPrefixReason
from .common import (
    ABSENT,
    BodyPrompt,
    Head,
    PromptField,
    Side,
    TemplateOptions,
    TruncatedTo,
    all_computed,
    complete_chat,
    extent_of,
    is_given,
    longest,
    n_choices_of,
    n_prompts_of,
    no_prompt,
    truncation_of,
)

T = TypeVar("T")


class CompletionBody(Head):
    """Body of `/v1/completions`."""

    prompt: PromptField = ""
    prompt_embeds: str | list[Any] | None = None
    add_special_tokens: bool = True
    suffix: str | None = None
    truncate_prompt_tokens: TruncatedTo | None = None
    truncation_side: Side | None = None
    n: Raw = ABSENT
    echo: Raw = ABSENT
    logprobs: Raw = ABSENT
    prompt_logprobs: Raw = ABSENT

    def n_choices(self) -> int:
        """See `Head.n_choices`."""
        return n_choices_of(self.n)

    @property
    def wants_probabilities(self) -> bool:
        """Whether the response has probabilities of the prompt: engines take an echo with probabilities for that."""
        return is_given(self.prompt_logprobs) or (bytes(self.echo) == b"true" and is_given(self.logprobs))


class ConversationOptions(TemplateOptions):
    """Rendering options of the APIs of this form."""

    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: TruncatedTo | None = None
    truncation_side: Side | None = None


class ChatOptions(ConversationOptions):
    """Fields of a chat completion except its messages."""

    tools: list[Tool] | None = None
    tool_choice: Any = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    echo: bool = False
    prompt_logprobs: Raw = ABSENT
    n: Raw = ABSENT

    def n_choices(self) -> int:
        """See `Head.n_choices`."""
        return n_choices_of(self.n)

    @property
    def wants_probabilities(self) -> bool:
        """Whether the engine computes probabilities of the prompt: for an echo it does, as many as `top_logprobs`, or 0."""
        return is_given(self.prompt_logprobs) or self.echo


class ChatBody(ChatOptions, kw_only=True):
    """Body of `/v1/chat/completions`."""

    messages: list[Message]


class BatchBody(ChatOptions, kw_only=True):
    """Body of `/v1/chat/completions/batch`."""

    messages: list[Raw]
    """Conversations."""


class EmbeddingBody(ConversationOptions):
    """Body of `/v1/embeddings`."""

    input: Raw = ABSENT
    """Texts or token ids as in a completion, one conversation, or several."""
    messages: Raw = ABSENT
    """One conversation, or several."""
    add_generation_prompt: bool = False
    padding: Literal["max_length", "do_not_pad"] | None = None


class ConversationBody(Head):
    """Body of `/v1/conversations`."""

    items: tuple[dict[str, Any], ...] = ()


class ImagesBody(Head):
    """Body of `/v1/images/generations`."""

    prompt: str = ""


_prompt_field = msgspec.json.Decoder(PromptField).decode
_conversation = msgspec.json.Decoder(list[Message]).decode
_several = msgspec.json.Decoder(list[Raw]).decode


def completion_prompt(body: CompletionBody) -> BodyPrompt | None:
    """Return the prompt of a completion."""
    if body.prompt_embeds:
        return no_prompt(NoPrefixReason.PROMPT_EMBEDS, "the prompt consists of embeddings")
    if not body.prompt:
        return None
    if body.suffix is not None:
        return no_prompt(NoPrefixReason.ALTERED_PROMPT, "the request sets suffix")
    if body.wants_probabilities:
        return replace(all_computed(), n_prompts=n_prompts_of(body.prompt))
    truncation = truncation_of(body.truncate_prompt_tokens, body.truncation_side)
    return longest(body.prompt, add_special_tokens=body.add_special_tokens, truncation=truncation)


def chat_prompt(body: ChatBody) -> BodyPrompt | None:
    """Return the conversation of a chat completion."""
    return _chat(body, body.messages) if body.messages else None


def batch_prompt(body: BatchBody) -> BodyPrompt | None:
    """Return the longest conversation of a batch."""
    if not body.messages:
        return None
    messages = _conversation(_longest_of(body.messages))
    if not messages:
        return None
    return replace(_chat(body, messages), n_prompts=len(body.messages), extent=_extent(body.messages))


def embedding_prompt(body: EmbeddingBody) -> BodyPrompt | None:
    """Return the input of an embedding."""
    if body.padding == "max_length":
        return no_prompt(NoPrefixReason.ALTERED_PROMPT, "the request pads the prompt")
    try:
        field = _prompt_field(body.input)
    except msgspec.ValidationError:
        return _embedded_chat(body, body.input if bytes(body.messages) == b"null" else body.messages)
    if not field:
        return None
    truncation = truncation_of(body.truncate_prompt_tokens, body.truncation_side, engine_side="right")
    return longest(field, add_special_tokens=body.add_special_tokens is not False, truncation=truncation)


def conversation_prompt(body: ConversationBody) -> BodyPrompt | None:
    """Return that a new conversation has no prompt yet."""
    if not body.items:
        return None
    return no_prompt(NoPrefixReason.NO_GENERATION, "the engine does not run the model for this path")


def images_prompt(body: ImagesBody) -> BodyPrompt | None:
    """Return that the prompt of an image is not kept in the KV cache."""
    if not body.prompt:
        return None
    return no_prompt(NoPrefixReason.NO_GENERATION, "the engine makes an image of the prompt")


def _embedded_chat(body: EmbeddingBody, field: Raw) -> BodyPrompt | None:
    several = _several(field)
    if not several:
        return None
    batched = bytes(memoryview(several[0])[:1]) == b"["
    messages = _conversation(_longest_of(several) if batched else field)
    if not messages:
        return None
    truncation = truncation_of(body.truncate_prompt_tokens, body.truncation_side, engine_side="right")
    chat = ChatPrompt(
        tuple(messages),
        template=body.chat_template,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens or False,
        truncation=truncation,
    )
    prompt = complete_chat(chat, body)
    return BodyPrompt(prompt, len(several), extent=_extent(several)) if batched else BodyPrompt(prompt)


def _chat(body: ChatOptions, messages: Sequence[Message]) -> BodyPrompt:
    if body.wants_probabilities:
        return all_computed()
    tools = None
    if body.tools is not None:
        tools = [tool_entry(tool.function, defer_loading=tool.defer_loading) for tool in body.tools]
    chat = ChatPrompt(
        tuple(messages),
        tools=tools,
        documents=body.documents,
        template=body.chat_template,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens or False,
        truncation=truncation_of(body.truncate_prompt_tokens, body.truncation_side),
        forbids_tools=body.tool_choice == "none",
    )
    return BodyPrompt(complete_chat(chat, body, reasoning_effort=body.reasoning_effort))


def _longest_of(fields: Sequence[Raw]) -> Raw:
    """Return the field with the most bytes, the first of equally long ones."""
    return max(fields, key=_n_bytes)


def _extent(fields: Sequence[Raw]) -> float:
    """Return the bytes of all fields, as a multiple of those of the longest one."""
    return extent_of(list(map(_n_bytes, fields)))


def _n_bytes(field: Raw) -> int:
    return memoryview(field).nbytes
