from __future__ import annotations

import json
from typing import Any

import pytest

from kvatlas.tokenization.model import TextPrompt
from kvatlas.tokenization.requests.request import parse_body

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
EMBED = "/v1/embeddings"
RESPONSES = "/v1/responses"

HELLO = {"role": "user", "content": "hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
ENCRYPTED: dict[str, Any] = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
NAMELESS: list[dict[str, dict[str, str]]] = [{"function": {}}]


def parsed(path: str, **fields: Any) -> Any:
    return parse_body(path, json.dumps({"model": "m", **fields}).encode()).prompt


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        pytest.param(TEXT, {"prompt": "a", "prompt_embeds": "AAAA"}, "prompt_embeds", id="embeds_and_text"),
        pytest.param(TEXT, {"prompt_embeds": ["AAAA"]}, "prompt_embeds", id="embeds"),
        pytest.param(TEXT, {"prompt": "a", "suffix": "b"}, "altered_prompt", id="suffix"),
        pytest.param(TEXT, {"prompt": "a", "prompt_logprobs": 0}, "prompt_logprobs", id="probabilities"),
        pytest.param(TEXT, {"prompt": "a", "echo": True, "logprobs": 1}, "prompt_logprobs", id="echo"),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user", "content": "a"}], "prompt_logprobs": 1},
            "prompt_logprobs",
            id="probabilities_of_a_chat",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user", "content": "a"}], "echo": True, "top_logprobs": None},
            "prompt_logprobs",
            id="echo_of_a_chat",  # vLLM 0.33 reports 0 cached tokens for it, however often it comes
        ),
        pytest.param(
            "/inference/v1/generate",
            {"token_ids": [1], "sampling_params": {"prompt_logprobs": 1}},
            "prompt_logprobs",
            id="probabilities_of_ids",
        ),
        pytest.param(EMBED, {"input": "a", "padding": "max_length"}, "altered_prompt", id="padded_embedding"),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user", "content": [IMAGE]}], "truncate_prompt_tokens": 5},
            "altered_prompt",
            id="truncated_image",
        ),
        pytest.param(TEXT, {"prompt": "a", "truncate_prompt_tokens": -2}, "malformed", id="truncated_below"),
        pytest.param(TEXT, {"prompt": "a", "add_special_tokens": 3}, "malformed", id="flag_of_wrong_type"),
        pytest.param(CHAT, {"messages": [{"content": "a"}]}, "malformed", id="message_without_role"),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
            "malformed",
            id="part_without_type",
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
            {"messages": [HELLO, {"role": "user", "content": [{"type": "hologram"}]}]},
            "malformed",
            id="part_of_unknown_type",
        ),
        pytest.param(
            CHAT,
            {"messages": [HELLO], "kv_transfer_params": {"prompt_token_ids": ["a"]}},
            "malformed",
            id="reused_ids_of_wrong_type",
        ),
        pytest.param(
            "/inference/v1/generate",
            {"token_ids": [1], "content_parts": [IMAGE]},
            "media",
            id="content_parts",
        ),
        pytest.param("/generate", {"text": "a", "image_data": "data:,"}, "media", id="sglang_image"),
        pytest.param("/generate", {"input_embeds": [[0.5]]}, "prompt_embeds", id="sglang_embeds"),
        pytest.param(
            "/generate", {"text": "a", "session_params": {"id": 1}}, "stored_history", id="sglang_session"
        ),
        pytest.param("/generate", {}, "malformed", id="sglang_nothing"),
        pytest.param("/generate", {"input_ids": [[1], 2]}, "malformed", id="sglang_mixed"),
        pytest.param(
            RESPONSES, {"input": "a", "previous_response_id": "r"}, "stored_history", id="previous_response"
        ),
        pytest.param(
            RESPONSES, {"input": "a", "previous_input_messages": []}, "stored_history", id="previous_messages"
        ),
        pytest.param(
            RESPONSES,
            {"input": [{"type": "function_call", "name": "f"}]},
            "malformed",
            id="function_call_without_arguments",
        ),
        pytest.param(
            RESPONSES,
            {"input": [{"type": "web_search_call", "id": "w"}]},
            "unsupported_item",
            id="web_search",
        ),
        pytest.param(
            RESPONSES,
            {"input": [ENCRYPTED]},
            "malformed",
            id="encrypted_reasoning",
        ),
        pytest.param(
            "/v1/messages",
            {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]},
            "unsupported_item",
            id="anthropic_block",
        ),
        pytest.param(
            "/v1/messages",
            {"messages": [HELLO], "tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "malformed",
            id="anthropic_server_tool",
        ),
        pytest.param(
            "/v1/messages",
            {"messages": [{"role": "system", "content": [{"type": "tool_addition", "tool": {"name": "x"}}]}]},
            "malformed",
            id="anthropic_unknown_tool",
        ),
        pytest.param(
            "/v1/messages",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "tool_use_id": "t",
                                "content": [{"type": "text", "text": 1}],
                            }
                        ],
                    }
                ]
            },
            "malformed",
            id="anthropic_result_of_wrong_type",
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


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_logprobs": None},
        {"echo": True},
        {"echo": True, "logprobs": None},
        {"echo": False, "logprobs": 5},
        {"echo": "yes", "logprobs": 5},
    ],
)
def test_prompt_is_known_when_only_probabilities_of_the_response_are_wanted(fields: dict[str, Any]) -> None:
    assert isinstance(parsed(TEXT, prompt="a", **fields), TextPrompt)


def test_prompts_are_counted_also_when_their_probabilities_are_wanted() -> None:
    body = {"model": "m", "prompt": [[1, 2], [3]], "prompt_logprobs": 1}
    assert parse_body(TEXT, json.dumps(body).encode()).n_prompts == 2
