"""The estimate of what reading a body costs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.tokenization.chats.sandbox import MAX_RENDERED_CHARS
from kvatlas.tokenization.model import ChatPrompt, NoPrompt
from kvatlas.tokenization.requests.cost import (
    CONTAINER,
    LIGHT_BYTES,
    LIGHT_COST,
    MAX_JSON_CHARS,
    MAX_LIGHT_BYTES,
    cost_by_library,
    decoding_cost,
    heavy,
    is_light,
)
from kvatlas.tokenization.requests.request import parse_body

LONG = 2 * LIGHT_BYTES


@pytest.mark.parametrize(
    ("body", "cost"),
    [
        pytest.param(b"", 0, id="empty"),
        pytest.param(b"[1,2,3]", CONTAINER + 2, id="list"),
        pytest.param(b'{"a": [[], {}], "b": 1}', 4 * CONTAINER + 2, id="nested"),
        pytest.param(b'"[{,"', 0, id="structure_in_a_text"),
        pytest.param(rb'["\",[", 1]', CONTAINER + 1, id="escaped_quote"),
        pytest.param(rb'["\\", 1]', CONTAINER + 1, id="escaped_backslash"),
        pytest.param(b'"' + rb"\n" * 40 + b'"', 10, id="escapes"),
        pytest.param('"' + "\u00e9" * 80 + '"', 10, id="beyond_ascii"),
        pytest.param(b'["unclosed, [', CONTAINER, id="unclosed"),
        pytest.param(b'"\\', 0, id="ends_in_an_escape"),
    ],
)
def test_cost_counts_what_makes_decoding_slow(body: bytes | str, cost: int) -> None:
    assert decoding_cost(body.encode() if isinstance(body, str) else body) == cost


@given(
    st.recursive(
        st.none() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_estimate_of_the_library_is_never_less(value: object) -> None:
    for body in (json.dumps(value).encode(), json.dumps(value, ensure_ascii=False).encode()):
        assert decoding_cost(body) <= cost_by_library(body)


@pytest.mark.parametrize(
    ("body", "light"),
    [
        pytest.param(b"[" * LIGHT_BYTES, True, id="short"),
        pytest.param(b'"' + b"a" * LONG + b'"', True, id="one_text"),
        pytest.param(b"[" * LONG, False, id="nested"),
        pytest.param(b"[" + b"1," * LIGHT_COST + b" " * LONG, False, id="too_many_values"),
        pytest.param(b'"' + b"a" * MAX_LIGHT_BYTES + b'"', False, id="too_long_a_text"),
    ],
)
def test_body_is_light_if_it_is_short_or_has_few_values(body: bytes, light: bool) -> None:
    assert is_light(body) is light


LONG_TEXT = "a" * (MAX_RENDERED_CHARS + 1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(LONG_TEXT, "too_long", id="text"),
        pytest.param([{"type": "text", "text": LONG_TEXT}], "too_long", id="part"),
        pytest.param([{"type": "image_url", "image_url": {"url": LONG_TEXT}}], None, id="image"),
    ],
)
def test_chat_that_cannot_be_rendered_for_its_length_has_no_prompt(
    content: object, reason: str | None
) -> None:
    assert reason_of({"messages": [{"role": "user", "content": content}]}) == reason


def tool(description: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": "f", "description": description}}


def call(arguments: str) -> dict[str, object]:
    return {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}


HALF = "x" * (MAX_JSON_CHARS // 2 + 1)
USER = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param({"tools": [tool(HALF)], "messages": [USER]}, None, id="tool"),
        pytest.param({"tools": [tool(HALF), tool(HALF)], "messages": [USER]}, "too_long", id="tools"),
        pytest.param({"documents": [{"text": 2 * HALF}], "messages": [USER]}, "too_long", id="document"),
        pytest.param(
            {"messages": [USER, {"role": "assistant", "tool_calls": [call(json.dumps({"a": 2 * HALF}))]}]},
            "too_long",
            id="tool_call",
        ),
    ],
)
def test_chat_with_more_text_beside_its_messages_than_templates_make_json_of_has_no_prompt(
    fields: dict[str, object], reason: str | None
) -> None:
    assert reason_of(fields) == reason


def reason_of(fields: dict[str, object]) -> str | None:
    """Return why a heavy chat has no prompt, None if it has one."""
    body = json.dumps({"model": "m", **fields}).encode()
    prompt = heavy(parse_body("/v1/chat/completions", body), 1_000_000).prompt
    assert isinstance(prompt, NoPrompt | ChatPrompt)
    return prompt.reason if isinstance(prompt, NoPrompt) else None
