from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from kvatlas.tokenization.chats.conversation import Message
from kvatlas.tokenization.model import ChatPrompt, TextPrompt, TokenPrompt, Truncation
from kvatlas.tokenization.requests.request import parse_body

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
EMBED = "/v1/embeddings"

HELLO = {"role": "user", "content": "hello"}
HELLO_MESSAGE = Message(role="user", content="hello")
NO_IDS: list[list[int]] = [[]]


def parsed(path: str, **fields: Any) -> Any:
    return parse_body(path, json.dumps({"model": "m", **fields}).encode()).prompt


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
        pytest.param(
            TEXT,
            {"prompt": ["a", "bcd", "ef"]},
            TextPrompt("bcd", add_special_tokens=True),
            3,
            id="longest_text",
        ),
        pytest.param(
            TEXT, {"prompt": [[1], [2, 3], [4, 5]]}, TokenPrompt(array("I", [2, 3])), 3, id="longest_ids"
        ),
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
        pytest.param(
            TEXT,
            {"prompt": [1, 2, 3], "truncate_prompt_tokens": 2},
            TokenPrompt(array("I", [2, 3])),
            1,
            id="ids_cut_on_the_left",
        ),
        pytest.param(
            EMBED,
            {"input": [1, 2, 3], "truncate_prompt_tokens": 2},
            TokenPrompt(array("I", [1, 2])),
            1,
            id="embedding_of_ids_cut_on_the_right",
        ),
        pytest.param(
            TEXT,
            {"prompt": "a", "truncate_prompt_tokens": 5},
            TextPrompt("a", add_special_tokens=True, truncation=Truncation(5, "left", spares_added=True)),
            1,
            id="truncated_text",
        ),
        pytest.param(
            TEXT,
            {"prompt": "a", "truncate_prompt_tokens": 5, "truncation_side": "right"},
            TextPrompt("a", add_special_tokens=True, truncation=Truncation(5, "right")),
            1,
            id="truncated_text_on_the_right",
        ),
        pytest.param(
            TEXT,
            {"prompt": "a", "truncate_prompt_tokens": -1},
            TextPrompt("a", add_special_tokens=True),
            1,
            id="truncated_to_context",
        ),
    ],
)
def test_prompt_is_the_longest_one_when_texts_or_ids_are_given(
    path: str, fields: dict[str, Any], prompt: TextPrompt | TokenPrompt, n_prompts: int
) -> None:
    request = parse_body(path, json.dumps({"model": "m", **fields}).encode())
    assert (request.prompt, request.n_prompts) == (prompt, n_prompts)


@pytest.mark.parametrize(
    ("path", "fields", "extent"),
    [
        pytest.param(TEXT, {"prompt": "abc"}, 1.0, id="text"),
        pytest.param(TEXT, {"prompt": [1, 2, 3]}, 1.0, id="ids"),
        pytest.param(TEXT, {"prompt": ["ab", "abcd", "a"]}, 7 / 4, id="texts"),
        pytest.param(TEXT, {"prompt": [[1, 2], [1], [1, 2]]}, 5 / 2, id="lists_of_ids"),
        pytest.param(TEXT, {"prompt": ["", ""]}, 1.0, id="empty"),
        pytest.param(EMBED, {"input": ["ab"] * 3}, 3.0, id="inputs"),
        pytest.param(EMBED, {"input": [[HELLO]] * 4}, 4.0, id="conversations_as_input"),
        pytest.param(f"{CHAT}/batch", {"messages": [[HELLO]] * 5}, 5.0, id="batch"),
        pytest.param("/generate", {"text": ["abcd", "ab"]}, 1.5, id="sglang"),
    ],
)
def test_extent_is_the_length_of_all_prompts(path: str, fields: dict[str, Any], extent: float) -> None:
    assert parse_body(path, json.dumps({"model": "m", **fields}).encode()).extent == extent


def test_chat_has_the_engines_defaults_when_only_messages_are_given() -> None:
    prompt = parsed(CHAT, messages=[HELLO])
    assert prompt == ChatPrompt(messages=(HELLO_MESSAGE,), variables={}, add_generation_prompt=True)
    assert not prompt.continue_final_message
    assert not prompt.add_special_tokens


def test_chat_of_an_embedding_is_not_opened_for_an_answer() -> None:
    prompt = parsed(EMBED, messages=[HELLO])
    assert prompt == ChatPrompt(messages=(HELLO_MESSAGE,), variables={}, add_generation_prompt=False)


def test_conversation_is_the_longest_one_when_a_batch_is_given() -> None:
    short, long = [HELLO], [HELLO, {"role": "assistant", "content": "a"}, HELLO]
    request = parse_body(
        f"{CHAT}/batch", json.dumps({"model": "m", "messages": [short, long, short]}).encode()
    )
    assert isinstance(request.prompt, ChatPrompt)
    assert (len(request.prompt.messages), request.n_prompts) == (3, 3)


@pytest.mark.parametrize(
    ("fields", "n_messages", "n_prompts"),
    [
        pytest.param({"input": [HELLO]}, 1, 1, id="as_input"),
        pytest.param({"messages": [HELLO, HELLO]}, 2, 1, id="as_messages"),
        pytest.param({"input": [[HELLO], [HELLO, HELLO]]}, 2, 2, id="several_as_input"),
        pytest.param({"messages": [[HELLO, HELLO], [HELLO]]}, 2, 2, id="several_as_messages"),
    ],
)
def test_conversation_is_read_when_it_is_to_be_embedded(
    fields: dict[str, Any], n_messages: int, n_prompts: int
) -> None:
    request = parse_body(EMBED, json.dumps({"model": "m", **fields}).encode())
    assert isinstance(request.prompt, ChatPrompt)
    assert (len(request.prompt.messages), request.n_prompts) == (n_messages, n_prompts)
    assert not request.prompt.add_generation_prompt


@pytest.mark.parametrize(
    ("field", "n_choices"),
    [
        pytest.param("4", 4, id="number"),
        pytest.param('"4"', 4, id="text_that_engines_take_for_a_number"),
        pytest.param("4.0", 4, id="whole_float"),
        pytest.param("null", 1, id="null"),
        pytest.param("0", 1, id="zero"),
        pytest.param("-4", 1, id="negative"),
        pytest.param("1.5", 1, id="part"),
        pytest.param("1" + "0" * 400, 1, id="huge"),
        pytest.param("[4]", 1, id="list"),
        pytest.param("{}", 1, id="object"),
        pytest.param("true", 1, id="true"),
        pytest.param('"nan"', 1, id="not_a_number"),
    ],
)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(
            CHAT, '{"model": "m", "messages": [{"role": "user", "content": "a"}], "n": %s}', id="chat"
        ),
        pytest.param(TEXT, '{"model": "m", "prompt": "a", "n": %s}', id="completion"),
        pytest.param(TEXT, '{"model": "m", "prompt_embeds": "a", "n": %s}', id="without_prompt"),
        pytest.param("/generate", '{"text": "a", "sampling_params": {"n": %s}}', id="sglang"),
        pytest.param("/inference/v1/generate", '{"token_ids": [1], "sampling_params": {"n": %s}}', id="vllm"),
    ],
)
def test_choices_are_the_responses_that_engines_make(
    path: str, body: str, field: str, n_choices: int
) -> None:
    assert parse_body(path, (body % field).encode()).n_choices == n_choices


@pytest.mark.parametrize("field", ['[{"n": 4}]', '"n"', "null", "[" * 900 + "]" * 900])
def test_there_is_one_choice_when_parameters_are_not_those_of_one_prompt(field: str) -> None:
    body = '{"text": "a", "sampling_params": ' + field + "}"
    assert parse_body("/generate", body.encode()).n_choices == 1
