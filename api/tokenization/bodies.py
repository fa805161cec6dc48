"""The bodies of the known APIs, and the prompt each of them means.

Only fields that shape the prompt are declared, with the engine's defaults. Each function gives the first prompt of a
body and the number of its prompts, or None when the prompt's field is there without anything in it.
Source: vLLM 0.32.0 entrypoints (chat_completion, completion, pooling, responses), checked against its render server.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from .conversation import Entry, Message, Tool, ToolFunction, first_malformed, first_media_part, tool_entry
from .model import AnyPrompt, ChatPrompt, NoPrefixReason, NoPrompt, TextPrompt, TokenPrompt

Found = tuple[AnyPrompt, int]

TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
PromptField = str | list[str | TokenId | list[TokenId]]
"""One text, token ids, or a list of several of either."""

VALUES_NOT_GIVEN = (None, "auto")
"""Template variables with these values count as not given."""

ENGINE_VARIABLES = ("add_generation_prompt", "continue_final_message", "return_dict", "tokenize")
"""Names in `chat_template_kwargs` that the engine takes for itself; its own values win."""


class CompletionBody(msgspec.Struct):
    """`/v1/completions`."""

    prompt: PromptField = ""
    prompt_embeds: Any = None
    add_special_tokens: bool = True
    suffix: str | None = None
    truncate_prompt_tokens: int | None = None


class ChatBody(msgspec.Struct):
    """`/v1/chat/completions`."""

    messages: list[Message] = []
    tools: list[Tool] | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    reasoning_effort: str | None = None
    truncate_prompt_tokens: int | None = None


class EmbeddingBody(ChatBody):
    """`/v1/embeddings`, of texts, token ids or a chat."""

    input: PromptField = ""
    add_generation_prompt: bool = False


class InputItem(msgspec.Struct):
    """One item of a responses input; only messages have a role."""

    type: str = "message"
    role: str | None = None
    content: str | list[str | dict[str, Any]] | None = None
    status: str | None = None


class ResponsesTool(ToolFunction, frozen=True):
    """A tool of `/v1/responses`, written flat; only functions need a name."""

    name: str = ""
    type: str = "function"


class Reasoning(msgspec.Struct):
    """Reasoning options of `/v1/responses`."""

    effort: str | None = None


class ResponsesBody(msgspec.Struct):
    """`/v1/responses`."""

    input: str | list[InputItem] = ""
    instructions: str | None = None
    tools: list[ResponsesTool] | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    previous_response_id: str | None = None
    previous_input_messages: Any = None


def completion_prompt(body: CompletionBody) -> Found | None:
    """The prompt of a completion."""
    if body.prompt_embeds:
        return NoPrompt(NoPrefixReason.PROMPT_EMBEDS, "the prompt is given as embeddings"), 1
    if not body.prompt:
        return None
    if body.suffix is not None or body.truncate_prompt_tokens is not None:
        return NoPrompt(NoPrefixReason.ALTERED_PROMPT, "the request sets suffix or truncate_prompt_tokens"), 1
    return _first(body.prompt, add_special_tokens=body.add_special_tokens)


def embedding_prompt(body: EmbeddingBody) -> Found | None:
    """The input of an embedding; a chat when there is no input."""
    if not body.input:
        return chat_prompt(body)
    if body.truncate_prompt_tokens is not None:
        return NoPrompt(NoPrefixReason.ALTERED_PROMPT, "the request sets truncate_prompt_tokens"), 1
    return _first(body.input, add_special_tokens=body.add_special_tokens is not False)


def chat_prompt(body: ChatBody) -> Found | None:
    """The conversation of a chat completion."""
    if not body.messages:
        return None
    if body.truncate_prompt_tokens is not None:
        return NoPrompt(NoPrefixReason.ALTERED_PROMPT, "the request sets truncate_prompt_tokens"), 1
    tools = None
    if body.tools is not None:
        tools = [tool_entry(tool.function, defer_loading=tool.defer_loading) for tool in body.tools]
    variables = _variables(body.chat_template_kwargs, body.reasoning_effort)
    if body.documents is not None:
        variables["documents"] = body.documents
    if body.chat_template:
        variables["chat_template"] = body.chat_template
    prompt = _chat(
        body.messages,
        tools,
        variables,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens or False,
    )
    return prompt, 1


def responses_prompt(body: ResponsesBody) -> Found:
    """The conversation of a response; an empty input is an empty user message."""
    if body.previous_response_id is not None or body.previous_input_messages is not None:
        return NoPrompt(NoPrefixReason.STORED_HISTORY, "the request continues a stored response"), 1
    items = [InputItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    if any(item.type != "message" or item.role is None for item in items):
        return NoPrompt(NoPrefixReason.UNSUPPORTED_ITEM, "the input holds an item that is no message"), 1
    messages = [Message(role="system", content=body.instructions)] if body.instructions else []
    messages += [_message(item) for item in items]
    tools = [tool_entry(tool) for tool in body.tools if tool.type == "function"] if body.tools else None
    unfinished = bool(items) and items[-1].status in {"in_progress", "incomplete"}
    prompt = _chat(
        messages,
        tools,
        _variables(body.chat_template_kwargs, body.reasoning.effort if body.reasoning else None),
        add_generation_prompt=not unfinished,
        continue_final_message=unfinished,
        # Unlike with chat completions the engine lets the tokenizer add its own, even behind a template's BOS token.
        add_special_tokens=True,
    )
    return prompt, 1


def token_prompt(ids: Iterable[int]) -> TokenPrompt:
    """`ids`, each from 0 to 2**32 - 1, as a prompt."""
    return TokenPrompt(array("I", ids))


def _first(source: PromptField, *, add_special_tokens: bool) -> Found:
    if isinstance(source, str):
        return TextPrompt(source, add_special_tokens), 1
    first = source[0]
    if isinstance(first, int):
        try:
            return token_prompt(cast("list[int]", source)), 1
        except TypeError:
            return NoPrompt(NoPrefixReason.MALFORMED, "the prompt mixes token ids with something else"), 1
    prompt = TextPrompt(first, add_special_tokens) if isinstance(first, str) else token_prompt(first)
    return prompt, len(source)


def _variables(given: dict[str, Any] | None, reasoning_effort: str | None) -> dict[str, Any]:
    variables = dict(given or {})
    if reasoning_effort is not None:
        variables["reasoning_effort"] = reasoning_effort
        variables.setdefault("enable_thinking", reasoning_effort != "none")
    return {k: v for k, v in variables.items() if v not in VALUES_NOT_GIVEN and k not in ENGINE_VARIABLES}


def _chat(
    messages: list[Message],
    tools: list[Entry] | None,
    variables: dict[str, Any],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    add_special_tokens: bool,
) -> ChatPrompt | NoPrompt:
    if (where := first_media_part(messages)) is not None:
        return NoPrompt(NoPrefixReason.MEDIA, f"{where} is not text")
    if (where := first_malformed(messages)) is not None:
        return NoPrompt(NoPrefixReason.MALFORMED, f"{where} lacks a field or has it in a wrong type")
    template = variables.pop("chat_template", None)
    return ChatPrompt(
        messages=tuple(messages),
        # A variable of the same name wins, as in the engine.
        tools=variables.pop("tools", tools),
        documents=variables.pop("documents", None),
        template=None if template is None else str(template),
        variables=variables,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        add_special_tokens=add_special_tokens,
    )


def _message(item: InputItem) -> Message:
    content = item.content
    if item.role == "assistant" and isinstance(content, list) and content and isinstance(content[0], dict):
        # The engine keeps the text of the first part and nothing else of an assistant's message.
        text = content[0].get("text")
        content = text if isinstance(text, str) else content
    return Message(role=item.role or "user", content=content)
