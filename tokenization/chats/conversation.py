"""Chat messages, and their conversion to the entries that a chat template gets.

The engine changes a client's messages before it passes them to the template: it drops unknown fields, reorders the known
ones, joins or wraps content parts and parses tool arguments. The same is done here exactly, since a template that prints
a whole object shows each of these changes.
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
"""Type of a content part with text -> the field with the text."""

OPTIONAL_TEXT = frozenset({"text", "refusal"})
"""Part types that the engine skips if their text is null."""

TOOL_REFERENCE = "tool_reference"
"""Type of a content part that names a tool; it is passed unchanged to templates that expect parts."""

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
"""Type of a content part with media -> the type in the template's entry. The type of a part without `type`, or with
`uuid`, is the name of its media field."""

KNOWN_PART_FIELDS = frozenset({
    "audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url", "input_audio",
    "name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid", "video_embeds", "video_url",
})  # fmt: skip
"""Fields of content parts that the engine interprets; it keeps other fields beside the text."""

BILLING_HEADER = "x-anthropic-billing-header"
"""First word of a line that a coding agent puts before its system prompt. It changes per request; the engine drops it."""

Entry = dict[str, object]
"""One message as passed to the template; the order of keys is visible if a template prints it."""


class Message(msgspec.Struct, frozen=True):
    """One chat message as sent. Other fields are never passed to a template."""

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
    """Tools of a message with the role `developer`."""


class ToolFunction(msgspec.Struct, frozen=True):
    """The function of a tool, with the engine's order of keys."""

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
    """Return a tool as passed to the template: absent description and parameters are null, other absent fields omitted."""
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
    """Return whether any message contains an image, audio, video or embeddings."""
    for message in messages:
        if isinstance(message.content, list):
            for part in message.content:
                if not isinstance(part, str) and modality(part) is not None:
                    return True
    return False


def modality(part: Mapping[str, Any]) -> str | None:
    """Return the media type of a content part, as passed to the template; None for other parts."""
    kind = part.get("type")
    if kind == "text" and "uuid" not in part:
        return None  # shortcut for nearly all parts
    if kind is None or part.get("uuid") is not None:
        return next((MODALITIES[name] for name in MODALITIES if name in part), None)
    return MODALITIES.get(kind) if isinstance(kind, str) else None


def first_malformed(messages: Iterable[Message]) -> str | None:
    """Return the position of the first malformed part or tool call; None if all are well-formed.

    Malformed are parts of an unknown kind, text parts without text, and tool calls without function.
    """
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
    """Convert messages to the entries that the template gets.

    Args:
        messages: well-formed according to `first_malformed`.
        content_parts: content becomes a list of `{"type": "text", "text": ...}`, even if it was sent as a string;
            otherwise parts are joined by line feeds into a string.
        developer_role: whether the template supports the role `developer`; otherwise it becomes `system`.
        calls_in_order: tool calls keep the order of their keys; otherwise they get the API's order.
        media_text: placeholder for media. In a list of parts, None keeps the media parts. In a string the placeholder
            precedes the message's text, where the engine inserts the model's own placeholder.
    """
    entries: list[Entry] = []
    has_developer = False
    for message in messages:
        has_developer = has_developer or message.role == "developer"
        content = _content(message, content_parts=content_parts, media_text=media_text)
        entry: Entry = {"role": message.role, "content": content}
        _add_details(entry, message, calls_in_order=calls_in_order)
        entries.append(entry)
    if has_developer and not developer_role:
        return _one_system_message([_as_system(entry) for entry in entries])
    return entries


def merged_system_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Merge all system messages into one at the front; their texts are joined without separator."""
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
    """Add the fields of a message other than role and content."""
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
        return message.content  # shortcut for nearly all messages: same result as below, a fifth of the cost
    items = _items(message)
    if message.role == "system":
        items = [kept for item in items if (kept := _without_billing_header(item)) is not None]
    if not content_parts:
        media = [media_text] if media_text and has_media([message]) else []
        return "\n".join([*media, *(text for item in items if (text := _plain(item)))])
    parts = [part for item in items if (part := _part(item, media_text)) is not None]
    # Templates expect the content of tool messages as a string, even if they loop over parts.
    if message.role == "tool" and all(part["type"] == "text" for part in parts):
        return "\n".join(cast("str", part["text"]) for part in parts)
    return parts


def _plain(item: str | dict[str, Any]) -> str | None:
    """Return the text of a part; None for media."""
    if isinstance(item, str):
        return item
    if modality(item) is not None:
        return None
    return item["name"] if item["type"] == TOOL_REFERENCE else item.get(TEXT_FIELDS[item["type"]])


def _part(item: str | dict[str, Any], media_text: str | None) -> Entry | None:
    """Return a content part as passed to a template that expects parts; None if it is omitted."""
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
    """Return tool arguments as an object; empty if they are not one, so that one bad turn does not fail later ones."""
    if isinstance(arguments, str) and arguments:
        try:
            # Python's own parser, as in the engine: it accepts NaN, and integers up to its limit of 4300 digits.
            arguments = json.loads(arguments)
        except ValueError:
            return {}
    return arguments if _is_object(arguments) else {}


def _as_system(entry: Entry) -> Entry:
    if entry["role"] != "developer":
        return entry
    return {key: "system" if key == "role" else value for key, value in entry.items() if key != "tools"}


def _one_system_message(entries: list[Entry]) -> list[Entry]:
    """Merge system messages into one at the front; many templates accept a system message only there."""
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
