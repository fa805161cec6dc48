"""Bodies with fields that no engine takes. Source: asked of the reference picker, which refuses them too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvatlas.tokenization.errors import BodyFormatError, PromptMissingError
from kvatlas.tokenization.model import NoPrompt, TextPrompt
from kvatlas.tokenization.requests.halves import MAX_BYTES, MAX_HALVES
from kvatlas.tokenization.requests.request import parse_body

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
EMBED = "/v1/embeddings"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
GENERATE = "/inference/v1/generate"
CONVERSATIONS = "/v1/conversations"
IMAGES = "/v1/images/generations"

HELLO = {"role": "user", "content": "hello"}


EMPTY: dict[str, Any] = {}


def said(content: object, **more: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, **more}]}


def parsed(path: str, fields: dict[str, Any]) -> Any:
    return parse_body(path, json.dumps({"model": "m", **fields}).encode())


@pytest.mark.parametrize(
    ("path", "fields", "where"),
    [
        pytest.param(CHAT, {"messages": ["hi"]}, r"messages\[", id="message_as_text"),
        pytest.param(CHAT, said(5), r"messages\[0\]\.content", id="content_as_number"),
        pytest.param(CHAT, said({}), "content", id="content_as_object"),
        pytest.param(CHAT, said([5]), "content", id="part_as_number"),
        pytest.param(CHAT, said([{"type": 5, "text": "a"}]), "type", id="type_as_number"),
        pytest.param(CHAT, said([{"type": "text", "text": 5}]), "text", id="text_as_number"),
        pytest.param(CHAT, said("a", role=1), "role", id="role_as_number"),
        pytest.param(CHAT, said("a", tool_calls="x"), "tool_calls", id="calls_as_text"),
        pytest.param(CHAT, said("a") | {"tools": "x"}, "tools", id="tools_as_text"),
        pytest.param(CHAT, said("a") | {"documents": "x"}, "documents", id="documents_as_text"),
        pytest.param(CHAT, said("a") | {"chat_template": 5}, "chat_template", id="template_as_number"),
        pytest.param(CHAT, said("a") | {"chat_template_kwargs": ["x"]}, "kwargs", id="variables_as_list"),
        pytest.param(CHAT, said("a") | {"add_generation_prompt": "x"}, "generation", id="flag_as_text"),
        pytest.param(CHAT, said("a") | {"cache_salt": 5}, "cache_salt", id="salt_of_a_chat"),
        pytest.param(f"{CHAT}/batch", {"messages": [[5]]}, "messages", id="batch"),
        pytest.param(TEXT, {"prompt": [-1, 2]}, "prompt", id="negative_id"),
        pytest.param(TEXT, {"prompt": [2**32]}, "prompt", id="huge_id"),
        pytest.param(TEXT, {"prompt": [1.5]}, "prompt", id="fraction"),
        pytest.param(TEXT, {"prompt": [None]}, "prompt", id="null"),
        pytest.param(TEXT, {"prompt": [1, "a"]}, "prompt", id="id_and_text"),
        pytest.param(TEXT, {"prompt": ["a", 1]}, "prompt", id="text_and_id"),
        pytest.param(TEXT, {"prompt": [["a"]]}, "prompt", id="list_of_texts_in_a_list"),
        pytest.param(TEXT, {"prompt": "a", "cache_salt": 5}, "cache_salt", id="salt"),
        pytest.param(EMBED, {"input": ["a", 5]}, "input", id="embedded_text_and_id"),
        pytest.param(EMBED, {"input": [-1]}, "input", id="embedded_negative_id"),
        pytest.param(RESPONSES, {"input": "a", "cache_salt": 5}, "cache_salt", id="salt_of_a_response"),
        pytest.param(GENERATE, {"token_ids": [-1]}, "token_ids", id="ids_of_the_engine"),
        pytest.param(GENERATE, {"token_ids": ["a"]}, "token_ids", id="texts_for_ids"),
        pytest.param(MESSAGES, {"messages": [HELLO], "system": 5}, "system", id="system_as_number"),
        pytest.param(MESSAGES, {"messages": [HELLO], "system": [5]}, "system", id="system_part_as_number"),
        pytest.param(MESSAGES, said(5), "content", id="anthropic_content_as_number"),
        pytest.param(MESSAGES, said("a", role=5), "role", id="anthropic_role_as_number"),
        pytest.param(MESSAGES, said("a") | {"tools": [{"name": 5}]}, "name", id="anthropic_tool_name"),
        pytest.param(CONVERSATIONS, {"items": [5]}, "items", id="item_as_number"),
    ],
)
def test_body_format_error_is_raised_when_no_engine_takes_a_field(
    path: str, fields: dict[str, Any], where: str
) -> None:
    with pytest.raises(BodyFormatError, match=rf"^(invalid|error parsing) [\w ]+ request: .*{where}"):
        parsed(path, fields)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        pytest.param(CHAT, {"messages": [None]}, id="null_for_a_message"),
        pytest.param(CHAT, {"messages": [EMPTY]}, id="empty_message"),
        pytest.param(CHAT, said([EMPTY]), id="empty_part"),
        pytest.param(CHAT, said([{"type": "image_url", "image_url": "x"}]), id="image_as_text"),
        pytest.param(CHAT, said("a", tool_calls=[5]), id="call_as_number"),
        pytest.param(CHAT, said("a") | {"tools": [5]}, id="tool_as_number"),
        pytest.param(CHAT, said("a") | {"documents": [5]}, id="document_as_number"),
        pytest.param(CHAT, said("a") | {"reasoning_effort": 5}, id="field_that_engines_may_learn"),
        pytest.param(TEXT, {"prompt": "a", "suffix": 5}, id="suffix_as_number"),
        pytest.param(RESPONSES, {"input": 5}, id="input_as_number"),
        pytest.param(RESPONSES, {"input": {"a": 1}}, id="input_as_object"),
        pytest.param(RESPONSES, {"input": "a", "tools": 5}, id="tools_of_a_response"),
        pytest.param(MESSAGES, {"messages": [{"role": "user"}]}, id="anthropic_without_content"),
        pytest.param(MESSAGES, {"messages": [HELLO], "thinking": 5}, id="thinking_as_number"),
    ],
)
def test_body_is_routed_when_some_engine_may_take_it(path: str, fields: dict[str, Any]) -> None:
    assert parsed(path, fields).model == "m"


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        pytest.param(CONVERSATIONS, {}, "conversations request: must have items", id="no_items"),
        pytest.param(
            CONVERSATIONS, {"items": []}, "conversations request: must have items", id="empty_items"
        ),
        pytest.param(CONVERSATIONS, {"items": "x"}, "conversations request", id="items_as_text"),
        pytest.param(IMAGES, {}, "images generations request: must have prompt", id="no_image_prompt"),
        pytest.param(IMAGES, {"prompt": ""}, "images generations request", id="empty_image_prompt"),
        pytest.param(IMAGES, {"prompt": 5}, "images generations request", id="image_prompt_as_number"),
        pytest.param(CHAT, {"model": 5}, "chat completions request", id="neither_messages_nor_model"),
    ],
)
def test_missing_prompt_is_told_before_a_missing_model(
    path: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(PromptMissingError, match=f"^invalid {message}"):
        parsed(path, fields)


@pytest.mark.parametrize(
    ("path", "fields"),
    [(CONVERSATIONS, {"items": [{"type": "message"}]}), (IMAGES, {"prompt": "a cat"})],
)
def test_body_has_no_prompt_for_the_cache_when_the_engine_generates_no_text(
    path: str, fields: dict[str, Any]
) -> None:
    request = parsed(path, fields)

    assert isinstance(request.prompt, NoPrompt)
    assert request.prompt.reason == "no_generation"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        pytest.param(r"\ud800", "\ufffd", id="first_half"),
        pytest.param(r"a\udc00b", "a\ufffdb", id="second_half"),
        pytest.param(r"\ud800\u0041", "\ufffdA", id="half_before_a_letter"),
        pytest.param(r"\ud83d\ude00\ud800", "😀\ufffd", id="pair_and_half"),
        pytest.param(r"\\ud800\udc00", "\\ud800\ufffd", id="half_after_a_backslash"),
    ],
)
def test_half_of_a_surrogate_pair_is_read_as_replacement_character(written: str, text: str) -> None:
    body = f'{{"model":"m","prompt":"{written}"}}'.encode()

    request = parse_body(TEXT, body)

    assert isinstance(request.prompt, TextPrompt)
    assert request.prompt.text == text
    assert request.raw is not None
    assert json.loads(request.raw.body)["prompt"] == text  # an engine's tokenizer gets the text of the ids


@pytest.mark.parametrize(
    ("path", "field"),
    [
        pytest.param(CHAT, b'"messages":[{"role":"user","content":"\xff"}]', id="chat"),
        pytest.param(EMBED, b'"input":"\xff"', id="embedding"),
        pytest.param(RESPONSES, b'"input":"a","cache_salt":"\xff"', id="salt"),
    ],
)
def test_text_that_is_not_unicode_is_refused_when_another_field_has_a_wrong_type(
    path: str, field: bytes
) -> None:
    with pytest.raises(BodyFormatError, match="invalid UTF-8"):
        parse_body(path, b'{"model":"m","echo":1,"padding":1,"reasoning":1,' + field + b"}")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(r"\ud800" * (MAX_HALVES + 1), id="many"),
        pytest.param("a" * MAX_BYTES + r"\ud800", id="far_behind"),
    ],
)
def test_halves_are_refused_when_reading_them_takes_long(text: str) -> None:
    with pytest.raises(BodyFormatError, match="bodyMap"):
        parse_body(TEXT, f'{{"model":"m","prompt":"{text}"}}'.encode())
