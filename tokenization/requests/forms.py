"""Forms that every engine demands of a body's fields, checked only if a body could not be decoded as a whole.

A field that few engines have, or may learn, is not checked: the engine reports it.
Source: types of llm-d-router's bodies, where vLLM and SGLang refuse the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from .common import PromptField, TokenId

Check = Callable[[bytes], object]
"""Raises `msgspec.ValidationError`, which names the field, if a field of the body has another form."""


class _Salted(msgspec.Struct):
    cache_salt: str | None = None


class _Part(msgspec.Struct):
    type: str | None = None
    text: str | None = None


class _Message(msgspec.Struct):
    role: str | None = None
    content: str | list[str | _Part] | None = None
    tool_calls: list[Any] | None = None


class _ChatOptions(_Salted):
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class _Chat(_ChatOptions):
    messages: list[_Message | None] = []


class _Batch(_ChatOptions):
    messages: list[list[_Message | None]] = []


class _Completion(_Salted):
    prompt: PromptField | None = None


class _Embedding(_Salted):
    input: str | list[str | TokenId | _Message | list[TokenId | _Message]] | None = None
    messages: list[_Message | list[_Message]] | None = None


class _Ids(_Salted):
    token_ids: list[TokenId] = []


class _Conversation(_Salted):
    items: list[dict[str, Any]] = []


class _Tool(msgspec.Struct):
    name: str | None = None


class _Turn(msgspec.Struct):
    role: str | None = None
    content: str | list[_Part] | None = None


class _Messages(_Salted):
    messages: list[_Turn | None] = []
    system: str | list[_Part] | None = None
    tools: list[_Tool | None] | None = None


def _completion(data: bytes) -> None:
    _check_uniform("prompt", _decode_completion(data).prompt)


def _embedding(data: bytes) -> None:
    _check_uniform("input", _decode_embedding(data).input)


def _check_uniform(name: str, field: str | Sequence[object] | None) -> None:
    if field is not None and not isinstance(field, str) and len({type(each) for each in field}) > 1:
        raise msgspec.ValidationError(f"Expected texts or token ids, got both - at `$.{name}`")


_decode_completion = msgspec.json.Decoder(_Completion).decode
_decode_embedding = msgspec.json.Decoder(_Embedding).decode

CHAT: Check = msgspec.json.Decoder(_Chat).decode
BATCH: Check = msgspec.json.Decoder(_Batch).decode
COMPLETION: Check = _completion
EMBEDDING: Check = _embedding
IDS: Check = msgspec.json.Decoder(_Ids).decode
CONVERSATION: Check = msgspec.json.Decoder(_Conversation).decode
MESSAGES: Check = msgspec.json.Decoder(_Messages).decode
SALTED: Check = msgspec.json.Decoder(_Salted).decode
