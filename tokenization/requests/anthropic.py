"""Request bodies of Anthropic's messages, which the engine converts into chat completions.

Two parts of the conversion depend on the model's chat template and are done by `ChatRenderer`: whether system messages
inside the conversation move to its front, and which effort switches thinking off.
Source: vLLM 0.32.0 entrypoints/anthropic, checked against its render server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ..chats.conversation import BILLING_HEADER, Entry, Message, ToolFunction, tool_entry
from ..model import AnthropicChat, ChatPrompt, NoPrefixReason
from .common import BodyPrompt, TemplateOptions, complete_chat, no_prompt


class MessagesTool(msgspec.Struct, frozen=True):
    """A tool that the client declares."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ToolChange(msgspec.Struct):
    """A tool that is added or removed within the conversation, by name or with its definition."""

    name: str = ""
    definition: MessagesTool | None = None


class Block(msgspec.Struct):
    """One content block, with the fields of every kind."""

    type: str
    text: str | None = None
    source: dict[str, Any] | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    content: str | list[dict[str, Any]] | None = None
    thinking: str | None = None
    tool: ToolChange | None = None


class AnthropicMessage(msgspec.Struct):
    """One message of the conversation."""

    role: str
    content: str | list[Block]


class Thinking(msgspec.Struct):
    """Options of extended thinking."""

    type: str


class OutputConfig(msgspec.Struct):
    """Options of the output."""

    effort: str | None = None


class ToolChoice(msgspec.Struct):
    """The tool that the model must call, may call or must not call."""

    type: str


class MessagesBody(TemplateOptions, kw_only=True):
    """Body of `/v1/messages`."""

    messages: list[AnthropicMessage]
    system: str | list[Block] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class _MalformedError(Exception):
    """A request that the engine will reject; the message says why."""


BLOCK_KINDS = frozenset(
    "text image tool_use tool_result tool_reference thinking redacted_thinking tool_addition tool_removal".split()
)


def messages_prompt(body: MessagesBody) -> BodyPrompt | None:
    """Return the conversation of a request, with system messages in their original places; None if it is empty."""
    if not body.messages:
        return None
    blocks = [block for turn in body.messages if not isinstance(turn.content, str) for block in turn.content]
    if any(block.type not in BLOCK_KINDS for block in blocks):
        return no_prompt(NoPrefixReason.UNSUPPORTED_ITEM, "the messages contain a block of unknown type")
    try:
        tools = _tools(body.tools, blocks)
        turns = [*_system(body.system), *(turn for message in body.messages for turn in _turns(message))]
    except _MalformedError as error:
        return no_prompt(NoPrefixReason.MALFORMED, str(error))
    disables_thinking = body.thinking is not None and body.thinking.type == "disabled"
    effort = body.output_config.effort if body.output_config and not disables_thinking else None
    chat = ChatPrompt(
        msgspec.convert(turns, tuple[Message, ...]),
        tools=None if tools is None else [_tool_entry(tool) for tool in tools],
        forbids_tools=body.tool_choice is not None and body.tool_choice.type == "none",
        anthropic=AnthropicChat(disables_thinking),
    )
    return BodyPrompt(complete_chat(chat, body, reasoning_effort=effort))


def _system(system: str | list[Block] | None) -> list[dict[str, Any]]:
    text = system if isinstance(system, str) else _system_text(system or [])
    return [{"role": "system", "content": text}] if text else []


def _system_text(blocks: Iterable[Block]) -> str:
    texts = [block.text for block in blocks if block.type == "text" and block.text]
    return "".join(text for text in texts if not text.startswith(BILLING_HEADER))


def _turns(message: AnthropicMessage) -> list[dict[str, Any]]:
    """Return the chat messages of one turn; tool results come before the user's other content."""
    role, content = message.role, message.content
    if role == "system":
        text = content if isinstance(content, str) else _system_text(content)
        return [{"role": "system", "content": text}] if text and not text.startswith(BILLING_HEADER) else []
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    turns: list[dict[str, Any]] = []
    turn: dict[str, Any] = {"role": role}
    parts: list[dict[str, Any]] = []
    for block in content:
        if block.type == "tool_result" and role == "user":
            turns += _tool_result(block)
        else:
            parts += _parts(block)
    if reasoning := [
        block.thinking for block in content if block.type == "thinking" and block.thinking is not None
    ]:
        turn["reasoning"] = "".join(reasoning)
    if calls := [_call(block) for block in content if block.type == "tool_use"]:
        turn["tool_calls"] = calls
    if parts:
        plain = len(parts) == 1 and parts[0]["type"] == "text"
        turn["content"] = parts[0]["text"] if plain else parts
    return turns if role == "user" and not parts else [*turns, turn]


def _parts(block: Block) -> list[dict[str, Any]]:
    """Return the content parts for a block that stays in its turn."""
    match block.type:
        case "text" if block.text:
            return [{"type": "text", "text": block.text}]
        case "image" if block.source:
            return [_image(block.source)]
        case "tool_result":
            return [{"type": "text", "text": f"Tool result: {block.content or ''}"}]
        case _:
            return []


def _image(source: dict[str, Any]) -> dict[str, Any]:
    return {"type": "image_url", "image_url": source}


def _call(block: Block) -> dict[str, Any]:
    function = {"arguments": block.input or {}, "name": block.name or ""}
    return {"id": block.id or "", "function": function, "type": "function"}


def _tool_result(block: Block) -> list[dict[str, Any]]:
    """Return one message each for the result's text, its images (as the user), and the tools that it refers to."""
    items = block.content if isinstance(block.content, list) else []
    texts = [item.get("text", "") for item in items if item.get("type") == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise _MalformedError("the text of a tool result is not a string")
    content = block.content if isinstance(block.content, str) else "\n".join(texts)
    head = {"role": "tool", "tool_call_id": block.tool_use_id or ""}
    turns: list[dict[str, Any]] = [{**head, "content": content}]
    if images := [_image(item.get("source", {})) for item in items if item.get("type") == "image"]:
        turns.append({"role": "user", "content": images})
    names = [
        item.get("tool_name") or item.get("name") for item in items if item.get("type") == "tool_reference"
    ]
    if references := [{"type": "tool_reference", "name": name} for name in names if name]:
        turns.append({**head, "content": references})
    return turns


def _tools(declared: list[MessagesTool] | None, blocks: Sequence[Block]) -> list[MessagesTool] | None:
    """Return the tools that are declared at the end of the conversation; None if the request has no tools."""
    changes = [block for block in blocks if block.type in {"tool_addition", "tool_removal"}]
    if not changes:
        return declared
    tools = {tool.name: tool for tool in declared or []}
    removed: set[str] = set()
    for block in changes:
        change = block.tool or ToolChange()
        name = change.definition.name if change.definition else change.name
        if change.definition is not None:
            tools[name] = change.definition
        elif name not in tools:
            raise _MalformedError("a block names a tool that is not declared")
        elif block.type == "tool_addition":
            tools[name] = msgspec.structs.replace(tools[name], defer_loading=None)
        if block.type == "tool_removal":
            removed.add(name)
        else:
            removed.discard(name)
    return [tool for name, tool in tools.items() if name not in removed]


def _tool_entry(tool: MessagesTool) -> Entry:
    schema = tool.input_schema if "type" in tool.input_schema else {**tool.input_schema, "type": "object"}
    return tool_entry(
        ToolFunction(
            name=tool.name,
            description=tool.description,
            parameters=schema,
            strict=tool.strict,
            defer_loading=tool.defer_loading,
        )
    )
