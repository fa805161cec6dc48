"""Chat messages, from the wire to what a chat template sees.

The engine does not hand a client's messages to the template as they are: it drops unknown fields, brings the known ones
into its own order, joins or wraps content parts and parses tool arguments. A template that prints a whole object shows
each of these, so they are repeated here exactly.
Source: vLLM 0.32.0 renderers/chat_utils.py and openai/chat_completion/protocol.py, checked against its render server.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard, cast

import msgspec

TEXT_FIELDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Type of a content part that is text -> the field with the text."""

OPTIONAL_TEXT = frozenset({"text", "refusal"})
"""Part types the engine skips when their text is null."""

TOOL_REFERENCE = "tool_reference"
"""Type of a content part that names a tool; a template that takes parts sees it as it is."""

MODALITIES = {
    "image_url": "image",
    "input_image": "image",
    "image_pil": "image",
    "image_embeds": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio_embeds": "audio",
    "video_url": "video",
    "video_embeds": "video",
    "prompt_embeds": "prompt_embeds",
}
"""Type of a content part with media -> the type a template sees. A part without a type, or with a `uuid`, is known by
its field of the same name."""

KNOWN_PART_FIELDS = frozenset({
    "audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url", "input_audio",
    "name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid", "video_embeds", "video_url",
})  # fmt: skip
"""Fields of content parts with a meaning of their own; the others are kept beside the text."""

BILLING_HEADER = "x-anthropic-billing-header"
"""First word of a line that a coding agent puts on its system prompt, new with every request; the engine drops it."""

Entry = dict[str, object]
"""One message as the template sees it; the order of keys shows when a template prints it."""


class Message(msgspec.Struct, frozen=True):
    """One chat message as sent. Fields of other names never reach a template."""

    role: str
    content: str | list[str | dict[str, Any]] | None = None
    name: Any = None
    task: Any = None
    tool_call_id: Any = msgspec.UNSET
    tool_calls: list[dict[str, Any]] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """Older name of `reasoning`."""
    tools: Any = None
    """Tools of a developer message."""


class ToolFunction(msgspec.Struct, frozen=True):
    """The function a tool is, in the engine's order of keys."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    """One tool of a chat request."""

    function: ToolFunction
    type: str = "function"
    defer_loading: bool | None = None


def tool_entry(function: ToolFunction, *, defer_loading: bool | None = None) -> Entry:
    """The tool as the template sees it: absent description and parameters are there as null, other absent fields not."""
    entry: Entry = {
        "name": function.name,
        "description": function.description,
        "parameters": function.parameters,
    }
    if function.strict is not None:
        entry["strict"] = function.strict
    deferred = function.defer_loading if function.defer_loading is not None else defer_loading
    if deferred is not None:
        entry["defer_loading"] = deferred
    tool: Entry = {"type": "function", "function": entry}
    if defer_loading is not None:
        tool["defer_loading"] = defer_loading
    return tool


def has_media(messages: Iterable[Message]) -> bool:
    """Whether any message holds an image, audio, video or embeddings."""
    parts = [part for message in messages if isinstance(message.content, list) for part in message.content]
    return bool(parts) and any(not isinstance(part, str) and modality(part) is not None for part in parts)


def modality(part: Mapping[str, Any]) -> str | None:
    """The type of media a content part holds, as a template sees it; None for other parts."""
    kind = part.get("type")
    if kind is None or part.get("uuid") is not None:
        return next((MODALITIES[name] for name in MODALITIES if name in part), None)
    return MODALITIES.get(kind) if isinstance(kind, str) else None


def first_malformed(messages: Iterable[Message]) -> str | None:
    """Where the first part of no known kind, text part without text or tool call without function stands, if any does."""
    for i, message in enumerate(messages):
        if isinstance(message.content, list):
            for j, part in enumerate(message.content):
                if not isinstance(part, str) and not _is_known(part):
                    return f"messages[{i}].content[{j}]"
        for j, call in enumerate(message.tool_calls or ()):
            if call.get("type", "function") != "function" or not _is_object(call.get("function")):
                return f"messages[{i}].tool_calls[{j}]"
    return None


def conversation(
    messages: Sequence[Message],
    *,
    content_parts: bool,
    developer_role: bool,
    calls_in_order: bool = False,
    media_text: str | None = None,
) -> list[Entry]:
    """The messages as the template sees them.

    Args:
        messages: well-formed, as `first_malformed` tells.
        content_parts: content becomes a list of `{"type": "text", "text": ...}`, even if it was sent as a string;
            otherwise parts are joined by line feeds into a string.
        developer_role: whether the template knows the role `developer`; it becomes `system` otherwise.
        calls_in_order: tool calls keep the order of their keys; they are brought into the API's own otherwise.
        media_text: what stands in place of media. In a list None leaves the parts as the template sees them. In a
            string it stands in front of the message's text, where the engine puts words of the model's own.
    """
    entries: list[Entry] = []
    for message in messages:
        content = _content(message, content_parts=content_parts, media_text=media_text)
        entry: Entry = {"role": message.role, "content": content}
        _add_details(entry, message, calls_in_order=calls_in_order)
        entries.append(entry)
    if not developer_role and "developer" in [message.role for message in messages]:
        return _one_system_message([_as_system(entry) for entry in entries])
    return entries


def merged_system_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """All system messages as one at the front, their texts joined without anything between."""
    system = [message for message in messages if message.role == "system"]
    if not system:
        return tuple(messages)
    text = "".join(message.content for message in system if isinstance(message.content, str))
    return (Message(role="system", content=text), *(m for m in messages if m.role != "system"))


def _items(message: Message) -> list[str | dict[str, Any]]:
    content = message.content
    if content is None:
        return []
    return [content] if isinstance(content, str) else content


def _is_known(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    if modality(part) is not None:
        return True
    if kind == TOOL_REFERENCE:
        return isinstance(part.get("name"), str)
    if not isinstance(kind, str) or kind not in TEXT_FIELDS or part.get("uuid") is not None:
        return False
    text = part.get(TEXT_FIELDS[kind])
    return isinstance(text, str) or (text is None and kind in OPTIONAL_TEXT)


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _add_details(entry: Entry, message: Message, *, calls_in_order: bool) -> None:
    """What a template sees of a message beside role and content."""
    role = message.role
    if role == "assistant":
        if message.tool_calls:
            entry["tool_calls"] = [_tool_call(call, in_order=calls_in_order) for call in message.tool_calls]
        reasoning = message.reasoning_content if message.reasoning is None else message.reasoning
        if reasoning is not None:
            entry["reasoning"] = entry["reasoning_content"] = reasoning
    elif role == "tool" and message.tool_call_id is not msgspec.UNSET:
        entry["tool_call_id"] = message.tool_call_id
    if isinstance(message.name, str):
        entry["name"] = message.name
    if isinstance(message.task, str):
        entry["task"] = message.task
    if role == "developer":
        entry["tools"] = message.tools


def _content(message: Message, *, content_parts: bool, media_text: str | None) -> str | list[Entry]:
    if isinstance(message.content, str) and not content_parts and message.role != "system":
        return message.content  # as below, at a fifth of the cost: nearly all messages are so
    items = _items(message)
    if message.role == "system":
        items = [kept for item in items if (kept := _without_billing_header(item)) is not None]
    if not content_parts:
        media = [media_text] if media_text and has_media([message]) else []
        return "\n".join([*media, *(text for item in items if (text := _plain(item)))])
    parts = [part for item in items if (part := _part(item, media_text)) is not None]
    # Templates take the content of tool messages as a string even where they loop over parts.
    if message.role == "tool" and all(part["type"] == "text" for part in parts):
        return "\n".join(cast("str", part["text"]) for part in parts)
    return parts


def _plain(item: str | dict[str, Any]) -> str | None:
    """The text of a part that is not media."""
    if isinstance(item, str):
        return item
    if modality(item) is not None:
        return None
    return item["name"] if item["type"] == TOOL_REFERENCE else item.get(TEXT_FIELDS[item["type"]])


def _part(item: str | dict[str, Any], media_text: str | None) -> Entry | None:
    """A content part as a template sees it that takes parts; None for one that is left out."""
    if isinstance(item, str):
        return {"type": "text", "text": item}
    more = {name: value for name, value in item.items() if name not in KNOWN_PART_FIELDS}
    if (kind := modality(item)) is not None:
        return {"type": kind, **more} if media_text is None else {"type": "text", "text": media_text}
    if item["type"] == TOOL_REFERENCE:
        return {"type": TOOL_REFERENCE, "name": item["name"]}
    text = item.get(TEXT_FIELDS[item["type"]])
    return None if text is None else {"type": "text", "text": text, **more}


def _without_billing_header(item: str | dict[str, Any]) -> str | dict[str, Any] | None:
    text = item if isinstance(item, str) else item.get("text") if item.get("type") == "text" else None
    if not isinstance(text, str) or not text.startswith(BILLING_HEADER):
        return item
    rest = text.partition("\n")[2]
    if not rest:
        return None
    return rest if isinstance(item, str) else {**item, "text": rest}


def _tool_call(call: dict[str, Any], *, in_order: bool) -> Entry:
    function = _ordered(call["function"], () if in_order else ("arguments", "name"))
    function["arguments"] = _arguments(function.get("arguments"))
    return _ordered({**call, "function": function}, () if in_order else ("id", "function", "type"))


def _ordered(fields: dict[str, Any], first: tuple[str, ...]) -> Entry:
    return {key: fields[key] for key in first if key in fields} | fields


def _arguments(arguments: object) -> Entry:
    """Arguments as an object; what is none, or no JSON, counts as empty, so that one bad turn spoils no later one."""
    if isinstance(arguments, str) and arguments:
        try:
            # Python's own parser, as in the engine: it takes NaN, and integers up to its limit of 4300 digits.
            arguments = json.loads(arguments)
        except ValueError:
            return {}
    return arguments if _is_object(arguments) else {}


def _as_system(entry: Entry) -> Entry:
    if entry["role"] != "developer":
        return entry
    return {key: "system" if key == "role" else value for key, value in entry.items() if key != "tools"}


def _one_system_message(entries: list[Entry]) -> list[Entry]:
    """System messages merged into one at the front; many templates take a system message nowhere else."""
    system = [entry for entry in entries if entry["role"] == "system"]
    if len(system) <= 1 and entries[0]["role"] == "system":
        return entries
    texts = [text for entry in system if (text := _plain_text(entry["content"]))]
    others = [entry for entry in entries if entry["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _plain_text(content: object) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(cast("str", part["text"]) for part in cast("list[Entry]", content) if "text" in part)
