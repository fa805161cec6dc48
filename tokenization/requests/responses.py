"""Bodies of OpenAI's responses.

An input is a list of items, of which the engine makes chat messages: several items in a row may be one assistant's turn.
Source: vLLM 0.32.0 entrypoints/openai/responses, checked against its render server.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..chats.conversation import Entry, Message, ToolFunction, tool_entry
from ..model import NoPrefixReason
from .common import Found, TemplateOptions, chat, no_prompt

UNFINISHED = frozenset({"in_progress", "incomplete"})
"""Status of a last item that the answer is to continue."""

CUSTOM_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Parameters of the function that the engine shows the model in place of a custom tool."""


class InputItem(msgspec.Struct):
    """One item of an input, with the fields of every kind that is known here."""

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
    """A tool, written flat; only functions, custom tools and namespaces of them are shown to a model."""

    name: str = ""
    type: str = "function"
    tools: tuple[ResponsesTool, ...] = ()
    """Tools of a namespace."""


class Reasoning(msgspec.Struct):
    """Reasoning options."""

    effort: str | None = None


class ResponsesBody(TemplateOptions, kw_only=True):
    """`/v1/responses`."""

    input: str | list[InputItem]
    instructions: str | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: Any = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"
    previous_response_id: str | None = None
    previous_input_messages: Any = None


class _UnusableItemError(Exception):
    """An item that is of no known kind, or lacks what its kind needs; holds the reason and where it stands."""

    def __init__(self, reason: NoPrefixReason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def responses_prompt(body: ResponsesBody) -> Found:
    """The conversation of a response; an empty input is an empty user message."""
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
        return no_prompt(NoPrefixReason.MALFORMED, "an input item has a field of a wrong type")
    unfinished = bool(items) and items[-1].type in {"message", "reasoning"} and items[-1].status in UNFINISHED
    prompt = chat(
        messages,
        body,
        tools=_tools(body.tools) if body.tools else None,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        add_generation_prompt=not unfinished,
        continue_final_message=unfinished,
        # Unlike with chat completions the engine lets the tokenizer add its own, even behind a template's BOS token.
        add_special_tokens=True,
        forbids_tools=body.tool_choice == "none",
        calls_in_order=True,
    )
    return Found(prompt)


def _add(turns: list[dict[str, Any]], item: InputItem, where: str) -> None:
    """Take an item into the turns, into the last one where that is the assistant's and lacks what the item brings."""
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
        raise _UnusableItemError(NoPrefixReason.MALFORMED, f"{where} is encrypted, which no engine reads")
    text = _first_text(item.content or list(item.summary))
    return text or ""


def _first_text(content: str | list[str | dict[str, Any]] | None) -> str | None:
    """The engine keeps the text of the first part and nothing else of what an assistant said."""
    if not isinstance(content, list):
        return content
    first = content[0] if content else None
    text = first.get("text") if isinstance(first, dict) else None
    return text if isinstance(text, str) else None


def _tools(tools: list[ResponsesTool]) -> list[Entry]:
    """The tools that the engine shows to a model, in their order."""
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
                pass  # run by the server itself, if at all
    return shown
