from __future__ import annotations

from typing import Any

import pytest

from kvatlas.tokenization.chats.conversation import Message
from kvatlas.tokenization.encoding.byte_form import prompt_bytes
from kvatlas.tokenization.model import ChatPrompt, TextPrompt

USER = Message(role="user", content="hello")
ANSWER = Message(role="assistant", content="hi")


def image(url: str) -> Message:
    part: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
    return Message(role="user", content=["see", part])


def test_bytes_are_those_of_the_text_when_the_prompt_is_one() -> None:
    assert prompt_bytes(TextPrompt("é", add_special_tokens=True)) == "é".encode()


@pytest.mark.parametrize("last", [pytest.param(USER, id="text"), pytest.param(image("data:,a"), id="image")])
def test_bytes_extend_the_last_ones_when_a_conversation_continues(last: Message) -> None:
    one = prompt_bytes(ChatPrompt(messages=(USER, ANSWER, last), tools=[{"name": "f"}]))
    two = prompt_bytes(ChatPrompt(messages=(USER, ANSWER, last, ANSWER, USER), tools=[{"name": "f"}]))
    assert one is not None
    assert two is not None
    assert two.startswith(one)
    assert len(two) > len(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({"messages": (USER,)}, {"messages": (ANSWER,)}, id="role"),
        pytest.param({"messages": (USER,)}, {"messages": (USER,), "tools": []}, id="tools"),
        pytest.param({"messages": (USER,)}, {"messages": (USER,), "documents": ["d"]}, id="documents"),
        pytest.param({"messages": (image("data:,a"),)}, {"messages": (image("data:,b"),)}, id="image"),
    ],
)
def test_bytes_differ_when_prompts_do(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert prompt_bytes(ChatPrompt(**one)) != prompt_bytes(ChatPrompt(**other))


def test_media_take_few_bytes_however_large_they_are() -> None:
    whole = prompt_bytes(ChatPrompt(messages=(image("data:," + "x" * 1_000_000),)))
    assert whole is not None
    assert len(whole) < 300


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param(TextPrompt("\ud800", add_special_tokens=True), id="text"),
        pytest.param(ChatPrompt(messages=(Message(role="user", content="\ud800"),)), id="chat"),
    ],
)
def test_there_are_no_bytes_when_the_text_is_not_unicode(prompt: TextPrompt | ChatPrompt) -> None:
    assert prompt_bytes(prompt) is None
