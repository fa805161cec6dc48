from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from kvatlas.tokenization.errors import BodyFormatError, ModelMissingError, PromptMissingError
from kvatlas.tokenization.model import (
    ChatPrompt,
    NoPrefixReason,
    NoPrompt,
    RawRequest,
    TextPrompt,
    TokenPrompt,
)
from kvatlas.tokenization.requests.request import direct_request, parse_body

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
EMBED = "/v1/embeddings"
RESPONSES = "/v1/responses"

HELLO = {"role": "user", "content": "hello"}
DEEP = b"[" * 100_000


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
        pytest.param("/v1/chat/completions/batch", ChatPrompt, id="batch"),
        pytest.param("/v1/messages", ChatPrompt, id="anthropic"),
        pytest.param("/api/v1/messages/", ChatPrompt, id="anthropic_prefix"),
        pytest.param("/threads/1/messages", NoPrompt, id="other_messages"),
        pytest.param("/inference/v1/generate", TokenPrompt, id="vllm"),
        pytest.param("/generate", TextPrompt, id="sglang"),
        pytest.param("/regenerate", NoPrompt, id="other"),
        pytest.param("/", NoPrompt, id="root"),
        pytest.param("", NoPrompt, id="empty"),
    ],
)
def test_api_is_found_by_the_longest_suffix_of_the_path(path: str, kind: type) -> None:
    messages: list[Any] = [[HELLO]] if "batch" in path else [HELLO]
    assert type(parsed(path, prompt="a", input="a", messages=messages, token_ids=[1], text="a")) is kind


@pytest.mark.parametrize(
    "path",
    [
        "/tokenize",
        "/v1/detokenize",
        "/v1/chat/completions/render",
        "/v1/messages/count_tokens",
        "/render/?x=1",
    ],
)
def test_reason_is_no_generation_when_the_path_needs_no_model(path: str) -> None:
    request = parse_body(path, b"no model")
    assert request.prompt == NoPrompt(
        NoPrefixReason.NO_GENERATION, "the engine does not run the model for this path"
    )


@pytest.mark.parametrize(
    ("body", "model"),
    [
        pytest.param(b"", "", id="empty"),
        pytest.param(b"not json", "", id="no_json"),
        pytest.param(b"[1]", "", id="no_object"),
        pytest.param(b'{"model": 1}', "", id="no_text"),
        pytest.param(b'{"model": "\xff"}', "", id="no_utf_8"),
        pytest.param(b'{"model": "%b"}' % (b"x" * 600), "", id="too_long"),
        pytest.param(b'{"a": ' + b"[" * 5000, "", id="nested_too_deeply"),
        pytest.param(b'{"query": "x", "documents": ["a"], "model": "ranker"}', "ranker", id="model"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/score?x=1", "/v1/models"])
def test_body_is_read_for_its_model_alone_when_the_path_is_unknown(
    path: str, body: bytes, model: str
) -> None:
    request = parse_body(path, body)
    assert (request.model, request.prompt) == (
        model,
        NoPrompt(NoPrefixReason.UNKNOWN_PATH, "the path does not belong to a known API"),
    )


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
def test_body_format_error_is_raised_when_the_body_is_not_a_json_object(
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
    "/v1/messages": "invalid messages request: must have valid messages field",
    "/v1/chat/completions/batch": "invalid chat completions request: must have valid messages field",
    "/inference/v1/generate": "invalid generate request: must have token_ids field",
}


@pytest.mark.parametrize(("path", "message"), NO_PROMPT.items())
@pytest.mark.parametrize("value", [None, 3, {}, True])
def test_prompt_missing_error_is_raised_when_the_prompts_field_has_no_prompt(
    path: str, message: str, value: object
) -> None:
    with pytest.raises(PromptMissingError, match=f"^{message}$"):
        parsed(path)
    if path == RESPONSES and value is not None:
        return  # its input may be anything
    with pytest.raises(PromptMissingError, match=f"^{message}$"):
        parsed(path, prompt=value, input=value, messages=value)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (CHAT, "messages"),
        (f"{CHAT}/batch", "messages"),
        (TEXT, "prompt"),
        (EMBED, "input"),
        (EMBED, "messages"),
        (EMBED, "several"),
        ("/v1/messages", "messages"),
        ("/inference/v1/generate", "token_ids"),
    ],
)
@pytest.mark.parametrize("value", ["", []])
def test_prompt_missing_error_is_raised_when_the_prompt_is_empty(
    path: str, field: str, value: object
) -> None:
    fields: dict[str, object] = {"input": [HELLO], "messages": [[]]} if field == "several" else {field: value}
    with pytest.raises(PromptMissingError, match=f"^{NO_PROMPT[path]}$"):
        parsed(path, **fields)


def test_prompt_missing_error_is_raised_when_messages_are_a_text() -> None:
    with pytest.raises(PromptMissingError, match=f"^{NO_PROMPT[CHAT]}$"):
        parsed(CHAT, messages="hello")


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        pytest.param("/openai/x/chat/completions/?a=1", "/v1/chat/completions", id="chat"),
        pytest.param("/generate", "/generate", id="sglang"),
    ],
)
def test_raw_request_has_the_engines_own_path(path: str, raw: str) -> None:
    body = json.dumps({"model": "m", "messages": [HELLO], "text": "a"}).encode()
    assert parse_body(path, body).raw == RawRequest(raw, body)


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


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        pytest.param(
            {"text": "a", "messages": [HELLO], "token_ids": [1, 2]}, TokenPrompt(array("I", [1, 2])), id="ids"
        ),
        pytest.param({"text": "a", "messages": [HELLO]}, parsed(CHAT, messages=[HELLO]), id="messages"),
        pytest.param({"text": "a"}, TextPrompt("a", add_special_tokens=True), id="text"),
        pytest.param(
            {"text": "a", "messages": []}, TextPrompt("a", add_special_tokens=True), id="no_message"
        ),
        pytest.param({"token_ids": []}, TokenPrompt(array("I")), id="no_ids"),
    ],
)
def test_direct_request_prefers_ids_then_messages_then_text(
    fields: dict[str, Any], prompt: TokenPrompt | TextPrompt | ChatPrompt
) -> None:
    request = direct_request(model="m", cache_salt="s", **fields)
    assert (request.model, request.prompt, request.cache_salt) == ("m", prompt, "s")


@pytest.mark.parametrize(
    ("model", "content", "body"),
    [
        pytest.param("m", "a", b'{"model":"m","messages":[{"role":"user","content":"a"}]}', id="chat"),
        pytest.param("", "a", b'{"messages":[{"role":"user","content":"a"}]}', id="without_model"),
        pytest.param("m", "\ud800", None, id="no_unicode"),
    ],
)
def test_direct_chat_has_the_body_a_client_would_send(model: str, content: str, body: bytes | None) -> None:
    request = direct_request(model=model, messages=[{"role": "user", "content": content}])
    assert request.raw == (body and RawRequest(CHAT, body))


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
def test_prompt_missing_error_is_raised_when_a_direct_request_has_the_wrong_form(
    given_: dict[str, Any], message: str
) -> None:
    with pytest.raises(PromptMissingError, match=message):
        direct_request(model="m", **given_)
