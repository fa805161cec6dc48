from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from kvatlas.api.tokenization.conversation import Message
from kvatlas.api.tokenization.errors import (
    BodyFormatError,
    ModelMissingError,
    PromptMissingError,
)
from kvatlas.api.tokenization.model import ChatPrompt, NoPrefixReason, NoPrompt, TextPrompt, TokenPrompt
from kvatlas.api.tokenization.request import direct_prompt, parse_body

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
EMBED = "/v1/embeddings"
RESPONSES = "/v1/responses"

HELLO = {"role": "user", "content": "hello"}
HELLO_MESSAGE = Message(role="user", content="hello")
DEEP = b"[" * 100_000
NO_IDS: list[list[int]] = [[]]
NAMELESS: list[dict[str, dict[str, str]]] = [{"function": {}}]


def parsed(path: str, **fields: Any) -> Any:
    return parse_body(path, json.dumps({"model": "m", **fields}).encode()).prompt


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        pytest.param("/v1/chat/completions", ChatPrompt, id="chat"),
        pytest.param("/v1/completions", TextPrompt, id="text"),
        pytest.param("/v1/embeddings", TextPrompt, id="embedding"),
        pytest.param("/v1/responses", ChatPrompt, id="responses"),
        pytest.param("/v1/chat/completions?stream=1", ChatPrompt, id="query"),
        pytest.param("/v1/chat/completions//", ChatPrompt, id="slashes_at_the_end"),
        pytest.param("/v1/chat/completions/?a=/completions", ChatPrompt, id="slash_and_query"),
        pytest.param("/openai/deployments/x/chat/completions", ChatPrompt, id="prefix"),
        pytest.param("/completions", TextPrompt, id="bare"),
        pytest.param("/v1/incompletions", NoPrompt, id="part_of_a_word"),
        pytest.param("/v1/completions/render", NoPrompt, id="suffix"),
        pytest.param("/generate", NoPrompt, id="other"),
        pytest.param("/", NoPrompt, id="root"),
        pytest.param("", NoPrompt, id="empty"),
    ],
)
def test_api_is_found_by_the_longest_suffix_of_the_path(path: str, kind: type) -> None:
    assert type(parsed(path, prompt="a", input="a", messages=[HELLO])) is kind


@pytest.mark.parametrize("body", [b"", b"not json", b'{"a": 1}'])
def test_body_is_not_read_when_the_path_is_unknown(body: bytes) -> None:
    request = parse_body("/v1/models", body)
    assert (request.model, request.prompt) == (
        "",
        NoPrompt(NoPrefixReason.UNKNOWN_PATH, "the path is no known API"),
    )


@pytest.mark.parametrize(
    ("path", "fields", "prompt", "n_prompts"),
    [
        pytest.param(TEXT, {"prompt": "a"}, TextPrompt("a", add_special_tokens=True), 1, id="text"),
        pytest.param(
            TEXT,
            {"prompt": "a", "add_special_tokens": False},
            TextPrompt("a", add_special_tokens=False),
            1,
            id="text_as_it_is",
        ),
        pytest.param(TEXT, {"prompt": ["a", "b"]}, TextPrompt("a", add_special_tokens=True), 2, id="texts"),
        pytest.param(TEXT, {"prompt": [7]}, TokenPrompt(array("I", [7])), 1, id="ids"),
        pytest.param(
            TEXT, {"prompt": [[2**32 - 1], [8]]}, TokenPrompt(array("I", [2**32 - 1])), 2, id="lists_of_ids"
        ),
        pytest.param(TEXT, {"prompt": NO_IDS}, TokenPrompt(array("I")), 1, id="no_ids"),
        pytest.param(EMBED, {"input": "a"}, TextPrompt("a", add_special_tokens=True), 1, id="embedding"),
        pytest.param(
            EMBED,
            {"input": ["a"], "add_special_tokens": False},
            TextPrompt("a", add_special_tokens=False),
            1,
            id="embedding_as_it_is",
        ),
        pytest.param(EMBED, {"input": [7, 8]}, TokenPrompt(array("I", [7, 8])), 1, id="embedding_of_ids"),
    ],
)
def test_prompt_is_the_first_one_when_texts_or_ids_are_given(
    path: str, fields: dict[str, Any], prompt: TextPrompt | TokenPrompt, n_prompts: int
) -> None:
    request = parse_body(path, json.dumps({"model": "m", **fields}).encode())
    assert (request.prompt, request.n_prompts) == (prompt, n_prompts)


def test_chat_has_the_engines_defaults_when_only_messages_are_given() -> None:
    prompt = parsed(CHAT, messages=[HELLO])
    assert prompt == ChatPrompt(messages=(HELLO_MESSAGE,), variables={}, add_generation_prompt=True)
    assert not prompt.continue_final_message
    assert not prompt.add_special_tokens


def test_chat_of_an_embedding_is_not_opened_for_an_answer() -> None:
    prompt = parsed(EMBED, messages=[HELLO])
    assert prompt == ChatPrompt(messages=(HELLO_MESSAGE,), variables={}, add_generation_prompt=False)


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        pytest.param(TEXT, {"prompt": "a", "prompt_embeds": "AAAA"}, "prompt_embeds", id="embeds_and_text"),
        pytest.param(TEXT, {"prompt_embeds": ["AAAA"]}, "prompt_embeds", id="embeds"),
        pytest.param(TEXT, {"prompt": "a", "suffix": "b"}, "altered_prompt", id="suffix"),
        pytest.param(
            TEXT, {"prompt": "a", "truncate_prompt_tokens": 5}, "altered_prompt", id="truncated_text"
        ),
        pytest.param(
            CHAT, {"messages": [HELLO], "truncate_prompt_tokens": -1}, "altered_prompt", id="truncated_chat"
        ),
        pytest.param(
            EMBED, {"input": "a", "truncate_prompt_tokens": 5}, "altered_prompt", id="truncated_embedding"
        ),
        pytest.param(TEXT, {"prompt": [1, "a"]}, "malformed", id="ids_and_text"),
        pytest.param(TEXT, {"prompt": [-1]}, "malformed", id="negative_id"),
        pytest.param(TEXT, {"prompt": [2**32]}, "malformed", id="huge_id"),
        pytest.param(TEXT, {"prompt": [1.5]}, "malformed", id="fraction"),
        pytest.param(TEXT, {"prompt": [True]}, "malformed", id="flag"),
        pytest.param(TEXT, {"prompt": "a", "add_special_tokens": 3}, "malformed", id="flag_of_wrong_type"),
        pytest.param(TEXT, {"prompt": "a", "cache_salt": 3}, "malformed", id="salt_of_wrong_type"),
        pytest.param(CHAT, {"messages": ["a"]}, "malformed", id="message_of_wrong_type"),
        pytest.param(CHAT, {"messages": [{"content": "a"}]}, "malformed", id="message_without_role"),
        pytest.param(
            CHAT, {"messages": [{"role": "user", "content": 1}]}, "malformed", id="content_of_wrong_type"
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
            "malformed",
            id="part_without_type",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": ["text"], "text": "a"}]}]},
            "malformed",
            id="part_type_of_wrong_type",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "malformed",
            id="part_without_text",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]},
            "malformed",
            id="tool_call_of_other_type",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "assistant", "tool_calls": [{"function": "f"}]}]},
            "malformed",
            id="tool_call_without_function",
        ),
        pytest.param(CHAT, {"messages": [HELLO], "tools": NAMELESS}, "malformed", id="tool_without_name"),
        pytest.param(
            CHAT,
            {"messages": [HELLO, {"role": "user", "content": [{"type": "input_audio"}]}]},
            "media",
            id="audio",
        ),
        pytest.param(
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
            "media",
            id="image",
        ),
        pytest.param(
            RESPONSES, {"input": "a", "previous_response_id": "r"}, "stored_history", id="previous_response"
        ),
        pytest.param(
            RESPONSES, {"input": "a", "previous_input_messages": []}, "stored_history", id="previous_messages"
        ),
        pytest.param(
            RESPONSES,
            {"input": [{"type": "function_call", "name": "f"}]},
            "unsupported_item",
            id="function_call",
        ),
        pytest.param(RESPONSES, {"input": [{"content": "a"}]}, "unsupported_item", id="item_without_role"),
        pytest.param(RESPONSES, {"input": [3]}, "malformed", id="item_of_wrong_type"),
    ],
)
def test_reason_is_given_when_a_body_has_no_text_that_could_be_tokenized(
    path: str, fields: dict[str, Any], reason: str
) -> None:
    prompt = parsed(path, **fields)
    assert prompt.reason == reason


@pytest.mark.parametrize("path", [CHAT, TEXT, EMBED, RESPONSES])
@pytest.mark.parametrize(
    ("body", "detail"),
    [
        pytest.param(b"no healthy upstream", "JSON is malformed", id="text"),
        pytest.param(b"", "truncated", id="empty"),
        pytest.param(b'{"model": "m", "prompt": "a', "truncated", id="cut"),
        pytest.param(b'{"model": "m"} {}', "trailing", id="trailing"),
        pytest.param(b'["model"]', "not a JSON object", id="list"),
        pytest.param(b"null", "not a JSON object", id="null"),
        pytest.param(b'{"model": "\xff"}', "invalid UTF-8", id="bytes_in_model"),
        pytest.param(b'{"x": ' + DEEP, "nested too deeply", id="nested_in_unknown_field"),
        pytest.param(b'{"model": "m", "messages": ' + DEEP, "nested too deeply", id="nested_in_known_field"),
    ],
)
def test_body_format_error_is_raised_when_the_body_is_no_json_object(
    path: str, body: bytes, detail: str
) -> None:
    with pytest.raises(BodyFormatError, match=f"^error unmarshaling request bodyMap: .*{detail}"):
        parse_body(path, body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(TEXT, b'{"model": "m", "prompt": "\xff"}', id="text"),
        pytest.param(CHAT, b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}', id="chat"),
        pytest.param(TEXT, b'{"model": "m", "prompt": "a", "cache_salt": "\xff"}', id="salt"),
    ],
)
def test_body_format_error_is_raised_when_text_is_not_utf8(path: str, body: bytes) -> None:
    with pytest.raises(BodyFormatError, match="invalid UTF-8"):
        parse_body(path, body)


@pytest.mark.parametrize("path", [CHAT, TEXT, EMBED, RESPONSES])
@pytest.mark.parametrize("model", ["", '"model": null,', '"model": "",', '"model": 3,', '"model": ["m"],'])
def test_model_missing_error_is_raised_when_no_model_is_named(path: str, model: str) -> None:
    body = (
        "{" + model + '"prompt": "hello world", "input": "a", "messages": [{"role": "user", "content": "a"}]}'
    )
    with pytest.raises(ModelMissingError, match=r"^model not found in request body$"):
        parse_body(path, body.encode())


NO_PROMPT = {
    CHAT: "invalid chat completions request: must have valid messages field",
    TEXT: "invalid completions request: must have prompt field",
    EMBED: "invalid embeddings request: must have input field",
    RESPONSES: "invalid responses request: must have input field",
}


@pytest.mark.parametrize(("path", "message"), NO_PROMPT.items())
@pytest.mark.parametrize("value", [None, 3, {}, True])
def test_prompt_missing_error_is_raised_when_the_prompts_field_has_no_prompt(
    path: str, message: str, value: object
) -> None:
    with pytest.raises(PromptMissingError, match=f"^{message}$"):
        parsed(path)
    with pytest.raises(PromptMissingError, match=f"^{message}$"):
        parsed(path, prompt=value, input=value, messages=value)


@pytest.mark.parametrize(("path", "field"), [(CHAT, "messages"), (TEXT, "prompt"), (EMBED, "input")])
@pytest.mark.parametrize("value", ["", []])
def test_prompt_missing_error_is_raised_when_the_prompt_is_empty(
    path: str, field: str, value: object
) -> None:
    with pytest.raises(PromptMissingError, match=f"^{NO_PROMPT[path]}$"):
        parsed(path, **{field: value})


def test_prompt_missing_error_is_raised_when_messages_are_a_text() -> None:
    with pytest.raises(PromptMissingError, match=f"^{NO_PROMPT[CHAT]}$"):
        parsed(CHAT, messages="hello")


@pytest.mark.parametrize(
    ("fields", "stream", "salt"),
    [
        pytest.param({}, False, None, id="absent"),
        pytest.param({"stream": True, "cache_salt": "s"}, True, "s", id="given"),
        pytest.param({"stream": None, "cache_salt": None}, False, None, id="null"),
        pytest.param({"stream": "true", "cache_salt": ""}, False, None, id="wrong_type_and_empty"),
    ],
)
def test_stream_and_salt_are_read(fields: dict[str, Any], stream: bool, salt: str | None) -> None:
    request = parse_body(TEXT, json.dumps({"model": "m", "prompt": "a", **fields}).encode())
    assert (request.stream, request.cache_salt) == (stream, salt)
    assert isinstance(request.prompt, TextPrompt)


def test_direct_prompt_prefers_ids_then_messages_then_text() -> None:
    assert direct_prompt(text="a", messages=[HELLO], token_ids=[1, 2]) == TokenPrompt(array("I", [1, 2]))
    assert direct_prompt(text="a", messages=[HELLO]) == parsed(CHAT, messages=[HELLO])
    assert direct_prompt(text="a") == TextPrompt("a", add_special_tokens=True)
    assert direct_prompt(token_ids=[]) == TokenPrompt(array("I"))


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        pytest.param({}, "must have one of prompt, messages and token_ids", id="nothing"),
        pytest.param({"text": ""}, "must have one of", id="empty_text"),
        pytest.param({"messages": []}, "must have one of", id="no_message"),
        pytest.param({"messages": [{"role": 1}]}, r"\$\[0\]\.role", id="role"),
        pytest.param({"token_ids": [1, "a"]}, r"\$\[1\]", id="id"),
        pytest.param({"token_ids": [-1]}, ">= 0", id="negative_id"),
        pytest.param({"token_ids": "abc"}, "Expected `array`", id="ids_as_text"),
    ],
)
def test_prompt_missing_error_is_raised_when_a_direct_prompt_has_the_wrong_form(
    given_: dict[str, Any], message: str
) -> None:
    with pytest.raises(PromptMissingError, match=message):
        direct_prompt(**given_)
