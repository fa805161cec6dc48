"""Request bodies of OpenAI's responses.

An input is a list of items, from which the engine makes chat messages; consecutive items may form one assistant turn.
Source: vLLM 0.32.0 entrypoints/openai/responses, checked against its render server.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from ..chats.conversation import Entry, Message, ToolFunction, tool_entry
from ..model import ChatPrompt, NoPrefixReason, ServerState
from .common import BodyPrompt, TemplateOptions, complete_chat, no_prompt

UNFINISHED = frozenset({"in_progress", "incomplete"})
"""Statuses with which the last item is continued by the response."""

CUSTOM_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Parameters of the function that stands for a custom tool in the engine's prompt."""


class InputItem(msgspec.Struct):
    """One item of an input, with the fields of every supported kind."""

    type: str = "message"
    role: str | None = None
    content: str | list[str | dict[str, Any]] | None = None
    name: str | None = None
    status: str | None = None
    call_id: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[dict[str, Any]] | None = None
    summary: list[dict[str, Any]] = []
    encrypted_content: str | None = None


class ResponsesTool(ToolFunction, frozen=True):
    """A tool with its fields on one level; only functions, custom tools and their namespaces appear in a prompt."""

    name: str = ""
    type: str = "function"
    tools: tuple[ResponsesTool, ...] = ()
    """Tools of a namespace."""


class Reasoning(msgspec.Struct):
    """Reasoning options."""

    effort: str | None = None


class ResponsesBody(TemplateOptions, kw_only=True):
    """Body of `/v1/responses`."""

    input: str | list[InputItem]
    instructions: str | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: Any = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"
    previous_response_id: str | None = None
    previous_input_messages: Any = None
    background: Any = None


class _UnusableItemError(Exception):
    """An item of an unsupported kind, or without a field that its kind needs.

    Attributes:
        reason: why the request has no prompt.
        detail: the same in words, with the item's position.
    """

    def __init__(self, reason: NoPrefixReason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def responses_prompt(body: ResponsesBody) -> BodyPrompt:
    """Return the conversation of a response; an empty input is an empty user message."""
    prompt = _prompt(body)
    is_background = body.background is True and bytes(body.stream) != b"true"
    if body.previous_response_id is None and not is_background:
        return prompt
    return replace(prompt, state=ServerState(body.previous_response_id or "", is_background))


def _prompt(body: ResponsesBody) -> BodyPrompt:
    if body.previous_response_id is not None or body.previous_input_messages is not None:
        return no_prompt(NoPrefixReason.STORED_HISTORY, "the request continues a stored response")
    items = [InputItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    turns: list[dict[str, Any]] = []
    if body.instructions:
        turns.append({"role": "system", "content": body.instructions})
    try:
        for number, item in enumerate(items):
            _add(turns, item, f"input[{number}]")
        messages = msgspec.convert(turns, list[Message])
    except _UnusableItemError as error:
        return no_prompt(error.reason, error.detail)
    except msgspec.ValidationError:
        return no_prompt(NoPrefixReason.MALFORMED, "a field of an input item has a wrong type")
    unfinished = bool(items) and items[-1].type in {"message", "reasoning"} and items[-1].status in UNFINISHED
    chat = ChatPrompt(
        tuple(messages),
        tools=_tools(body.tools) if body.tools else None,
        add_generation_prompt=not unfinished,
        continue_final_message=unfinished,
        # Unlike for chat completions, the tokenizer adds its special tokens, even if the template writes a BOS token.
        add_special_tokens=True,
        forbids_tools=body.tool_choice == "none",
        calls_in_order=True,
    )
    effort = body.reasoning.effort if body.reasoning else None
    return BodyPrompt(complete_chat(chat, body, reasoning_effort=effort))


def _add(turns: list[dict[str, Any]], item: InputItem, where: str) -> None:
    """Add an item to the last turn if that is the assistant's and lacks the item's field, otherwise as a new turn."""
    match item.type:
        case "function_call" | "custom_tool_call":
            call = _call(item, where)
            if turns and turns[-1]["role"] == "assistant":
                turns[-1].setdefault("tool_calls", []).append(call)
            else:
                turns.append({"role": "assistant", "tool_calls": [call]})
        case "function_call_output" | "custom_tool_call_output":
            turns.append({"role": "tool", "content": item.output, "tool_call_id": item.call_id})
        case "reasoning":
            _add_to_assistant(turns, "reasoning", _reasoning(item, where))
        case "message" if item.role == "assistant" and (text := _first_text(item.content)) is not None:
            _add_to_assistant(turns, "content", text)
        case "message" if item.role is not None:
            turns.append({"role": item.role, "content": item.content, "name": item.name})
        case _:
            raise _UnusableItemError(
                NoPrefixReason.UNSUPPORTED_ITEM,
                f"{where} is neither a message nor a call, its output or reasoning",
            )


def _add_to_assistant(turns: list[dict[str, Any]], field: str, text: str) -> None:
    if turns and turns[-1]["role"] == "assistant" and turns[-1].get(field) is None:
        turns[-1][field] = text
    else:
        turns.append({"role": "assistant", field: text})


def _call(item: InputItem, where: str) -> dict[str, Any]:
    arguments: object = {"input": item.input or ""} if item.type == "custom_tool_call" else item.arguments
    if item.name is None or item.call_id is None or arguments is None:
        raise _UnusableItemError(NoPrefixReason.MALFORMED, f"{where} lacks name, call_id or arguments")
    name = f"{item.namespace}__{item.name}" if item.namespace else item.name
    return {"id": item.call_id, "function": {"name": name, "arguments": arguments}, "type": "function"}


def _reasoning(item: InputItem, where: str) -> str:
    if item.encrypted_content:
        raise _UnusableItemError(NoPrefixReason.MALFORMED, f"{where} is encrypted, which no engine supports")
    text = _first_text(item.content or list(item.summary))
    return text or ""


def _first_text(content: str | list[str | dict[str, Any]] | None) -> str | None:
    """Return the text of the first part; the engine ignores the other parts of an assistant's message."""
    if not isinstance(content, list):
        return content
    first = content[0] if content else None
    text = first.get("text") if isinstance(first, dict) else None
    return text if isinstance(text, str) else None


def _tools(tools: list[ResponsesTool]) -> list[Entry]:
    """Return the tools that appear in the engine's prompt, in order."""
    shown: list[Entry] = []
    for tool in tools:
        match tool.type:
            case "function":
                shown.append(tool_entry(tool))
            case "custom":
                shown.append(
                    tool_entry(
                        ToolFunction(
                            name=tool.name, description=tool.description, parameters=CUSTOM_PARAMETERS
                        )
                    )
                )
            case "namespace":
                shown += [
                    tool_entry(msgspec.structs.replace(inner, name=f"{tool.name}__{inner.name}"))
                    for inner in tool.tools
                    if inner.type == "function"
                ]
            case _:
                pass  # executed by the server, if at all
    return shown
