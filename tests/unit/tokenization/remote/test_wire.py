from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from kvatlas.indexer.prefix import MediaSpan
from kvatlas.tokenization.errors import RemoteError
from kvatlas.tokenization.model import (
    ChatPrompt,
    NoPrefixReason,
    NoPrompt,
    ParsedRequest,
    RawRequest,
    TextPrompt,
    TokenPrompt,
    Truncation,
)
from kvatlas.tokenization.remote.wire import RemoteApi, RemoteRequest, read_response, remote_request
from kvatlas.tokenization.requests.request import parse_body

CHAT = "/v1/chat/completions"
HELLO = {"role": "user", "content": "hello"}
NOTHING: dict[str, Any] = {}
RENDER, TOKENIZE = RemoteApi.RENDER, RemoteApi.TOKENIZE


def engine_request(api: RemoteApi, path: str, **fields: Any) -> tuple[str, Any] | None:
    """Return path and decoded body of the engine request for an HTTP request."""
    found = remote_request(api, parse_body(path, json.dumps({"model": "m", **fields}).encode()))
    return None if found is None else (found.path, json.loads(found.body))


@pytest.mark.parametrize(
    ("api", "path", "fields", "wanted"),
    [
        pytest.param(
            RENDER,
            "/x/v1/chat/completions?a=1",
            {"messages": [HELLO], "stream": True, "temperature": 1, "tool_choice": "none", "odd": 1},
            (
                f"{CHAT}/render",
                {"model": "m", "messages": [HELLO], "tool_choice": "none", "odd": 1, "mm_payload": "none"},
            ),
            id="chat",
        ),
        pytest.param(
            RENDER,
            CHAT,
            {"messages": [HELLO], "mm_payload": "tensors"},
            (f"{CHAT}/render", {"model": "m", "messages": [HELLO], "mm_payload": "none"}),
            id="chat_that_wants_media",
        ),
        pytest.param(
            RENDER,
            "/v1/responses",
            {"input": [{"type": "web_search_call"}], "max_output_tokens": 4},
            (
                "/v1/responses/render",
                {
                    "model": "m",
                    "input": [{"type": "web_search_call"}],
                    "max_output_tokens": 4,
                    "mm_payload": "none",
                },
            ),
            id="response_with_unknown_item",
        ),
        pytest.param(
            RENDER,
            "/v1/messages",
            {"messages": [HELLO], "max_tokens": 4},
            (
                "/v1/messages/render",
                {"model": "m", "messages": [HELLO], "max_tokens": 4, "mm_payload": "none"},
            ),
            id="anthropic",
        ),
        pytest.param(
            RENDER,
            "/v1/embeddings",
            {"input": ["a", "bc"]},
            ("/v1/completions/render", {"model": "m", "prompt": "bc", "add_special_tokens": True}),
            id="longest_text",
        ),
        pytest.param(
            RENDER,
            "/v1/completions",
            {"prompt": "a", "truncate_prompt_tokens": 3, "add_special_tokens": False},
            (
                "/v1/completions/render",
                {"model": "m", "prompt": "a", "add_special_tokens": False, "truncate_prompt_tokens": 3},
            ),
            id="truncated_text",
        ),
        pytest.param(
            RENDER,
            "/v1/completions",
            {"prompt": "a", "truncate_prompt_tokens": 3, "truncation_side": "right"},
            (
                "/v1/completions/render",
                {
                    "model": "m",
                    "prompt": "a",
                    "add_special_tokens": True,
                    "truncate_prompt_tokens": 3,
                    "truncation_side": "right",
                },
            ),
            id="text_truncated_on_the_right",
        ),
        pytest.param(
            TOKENIZE,
            "/v1/completions",
            {"prompt": "a"},
            ("/tokenize", {"model": "m", "prompt": "a", "add_special_tokens": True}),
            id="text_by_tokenize",
        ),
        pytest.param(
            TOKENIZE,
            CHAT,
            {
                "messages": [HELLO],
                "reasoning_effort": "none",
                "documents": [{"text": "d"}],
                "chat_template_kwargs": {"x": 1, "tools": ["t"]},
                "stream": True,
            },
            (
                "/tokenize",
                {
                    "model": "m",
                    "messages": [HELLO],
                    "reasoning_effort": "none",
                    "documents": [{"text": "d"}],
                    "chat_template_kwargs": {
                        "x": 1,
                        "tools": ["t"],
                        "enable_thinking": False,
                        "reasoning_effort": "none",
                        "documents": [{"text": "d"}],
                    },
                },
            ),
            id="chat_by_tokenize",
        ),
        pytest.param(
            TOKENIZE,
            CHAT,
            {"messages": [HELLO, {**HELLO, "reasoning_content": "x"}, {**HELLO, "reasoning": "y"}]},
            (
                "/tokenize",
                {
                    "model": "m",
                    "messages": [
                        HELLO,
                        {**HELLO, "reasoning": "x"},
                        {**HELLO, "reasoning": "y"},
                    ],
                    "chat_template_kwargs": NOTHING,
                },
            ),
            id="reasoning_by_tokenize",
        ),
    ],
)
def test_engine_request_has_the_fields_that_affect_the_prompt(
    api: RemoteApi, path: str, fields: dict[str, Any], wanted: tuple[str, Any]
) -> None:
    assert engine_request(api, path, **fields) == wanted


@pytest.mark.parametrize(
    ("api", "path", "fields"),
    [
        pytest.param(RENDER, "/v1/completions", {"prompt": [1]}, id="ids"),
        pytest.param(RENDER, "/v1/embeddings", {"messages": [HELLO]}, id="embedded_chat"),
        pytest.param(RENDER, f"{CHAT}/batch", {"messages": [[HELLO]]}, id="batch"),
        pytest.param(RENDER, "/metrics", {}, id="unknown_path"),
        pytest.param(
            RENDER,
            "/v1/messages",
            {"messages": [HELLO], "thinking": {"type": "disabled"}},
            id="anthropic_with_thinking_disabled",
        ),
        pytest.param(TOKENIZE, "/v1/responses", {"input": "a"}, id="response_by_tokenize"),
        pytest.param(TOKENIZE, "/v1/messages", {"messages": [HELLO]}, id="anthropic_by_tokenize"),
        pytest.param(
            TOKENIZE,
            "/v1/completions",
            {"prompt": "a", "truncate_prompt_tokens": 3},
            id="truncated_by_tokenize",
        ),
        pytest.param(
            TOKENIZE,
            CHAT,
            {"messages": [HELLO], "truncate_prompt_tokens": 3},
            id="truncated_chat_by_tokenize",
        ),
        pytest.param(TOKENIZE, CHAT, {"messages": [{"content": "a"}]}, id="malformed_chat_by_tokenize"),
    ],
)
def test_there_is_no_engine_request_when_the_api_cannot_return_the_ids(
    api: RemoteApi, path: str, fields: dict[str, Any]
) -> None:
    assert engine_request(api, path, **fields) is None


def test_there_is_no_engine_request_when_the_text_is_not_unicode() -> None:
    request = ParsedRequest(model="m", prompt=TextPrompt("\ud800", add_special_tokens=True))
    assert remote_request(RENDER, request) is None


@pytest.mark.parametrize(
    ("api", "field"),
    [
        pytest.param(RENDER, b'"\xff":1', id="name"),
        pytest.param(TOKENIZE, b'"messages":[{"role":"user","reasoning_content":"a","x":"\xff"}]', id="text"),
        pytest.param(
            TOKENIZE, b'"messages":[{"role":"user","reasoning_content":"a","x":1e999}]', id="number"
        ),
    ],
)
def test_there_is_no_engine_request_when_a_skipped_field_cannot_be_read(api: RemoteApi, field: bytes) -> None:
    request = parse_body(CHAT, b'{"model":"m","messages":[{"role":"user","content":"a"}],' + field + b"}")
    assert isinstance(request.prompt, ChatPrompt)

    assert remote_request(api, request) is None


@pytest.mark.parametrize("api", RemoteApi)
def test_engine_gets_replacement_character_when_the_text_has_half_of_a_surrogate_pair(api: RemoteApi) -> None:
    body = rb'{"model":"m","messages":[{"role":"user","content":"a\ud800"}]}'

    found = remote_request(api, parse_body(CHAT, body))

    assert found is not None
    assert json.loads(found.body)["messages"] == [{"role": "user", "content": "a\ufffd"}]


def test_model_is_left_out_when_the_request_names_none() -> None:
    truncation = Truncation(3, "left", spares_added=True)
    prompt = TextPrompt("a", add_special_tokens=True, truncation=truncation)
    found = remote_request(RENDER, ParsedRequest(model="", prompt=prompt))
    assert found is not None
    assert "model" not in json.loads(found.body)


def test_digests_differ_by_path_and_body() -> None:
    paths = (f"{CHAT}/render", "/v1/completions/render")
    questions = [RemoteRequest(path, body) for path in paths for body in (b"x", b"y")]
    assert len({each.digest for each in questions}) == 4
    assert RemoteRequest("/a", b"x").digest == RemoteRequest("/a", b"x").digest


def test_engine_request_is_made_when_only_the_engine_may_support_the_body() -> None:
    raw = RawRequest("/v1/responses", b'{"input": "a"}')
    request = ParsedRequest(model="m", prompt=NoPrompt(NoPrefixReason.UNSUPPORTED_ITEM, "x"), raw=raw)
    assert remote_request(RENDER, request) is not None
    assert remote_request(TOKENIZE, request) is None


MEDIA = {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": 1, "length": 2}]}}


@pytest.mark.parametrize(
    ("path", "answer", "prompt"),
    [
        pytest.param(
            f"{CHAT}/render",
            {"token_ids": [1, 2], "features": None, "more": 1},
            TokenPrompt(array("I", [1, 2])),
            id="chat",
        ),
        pytest.param(
            "/v1/completions/render", [{"token_ids": [3]}], TokenPrompt(array("I", [3])), id="completion"
        ),
        pytest.param(
            "/v1/messages/render",
            {"token_ids": [1, 2, 3], "features": MEDIA},
            TokenPrompt(array("I", [1, 2, 3]), (MediaSpan("a", 1, 2),)),
            id="media",
        ),
        pytest.param("/tokenize", {"tokens": [4], "count": 1}, TokenPrompt(array("I", [4])), id="tokenize"),
    ],
)
def test_ids_and_media_are_read_from_a_response(path: str, answer: object, prompt: TokenPrompt) -> None:
    assert read_response(path, json.dumps(answer).encode()) == prompt


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        pytest.param("/tokenize", b"", id="empty"),
        pytest.param("/tokenize", b"\xff", id="bytes"),
        pytest.param("/tokenize", b'{"tokens": [[1]]}', id="lists_of_ids"),
        pytest.param("/tokenize", b'{"more": ' + b"[" * 100_000, id="nested_deeply"),
        pytest.param(f"{CHAT}/render", b'{"features": ' + b'{"a": ' * 100_000, id="nested_deeply_render"),
        pytest.param("/tokenize", b'{"tokens": [-1]}', id="negative_id"),
        pytest.param("/v1/completions/render", b"[]", id="no_prompt"),
        pytest.param("/v1/completions/render", b'{"token_ids": [1]}', id="no_list"),
        pytest.param(f"{CHAT}/render", b'{"token_ids": []}', id="no_ids"),
        pytest.param(
            f"{CHAT}/render", json.dumps({"token_ids": [1], "features": MEDIA}).encode(), id="media_outside"
        ),
    ],
)
def test_remote_error_is_raised_when_a_response_is_malformed(path: str, answer: bytes) -> None:
    with pytest.raises(RemoteError) as raised:
        read_response(path, answer)
    assert raised.value.outcome == "malformed"
