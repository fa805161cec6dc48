from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from kvatlas.tokenization.chats.conversation import Message
from kvatlas.tokenization.encoding.byte_form import MAX_BYTES, byte_form, estimated_tokens
from kvatlas.tokenization.encoding.media_tokens import MediaTokens
from kvatlas.tokenization.model import ChatPrompt, TextPrompt

USER = Message(role="user", content="hello")
ANSWER = Message(role="assistant", content="hi")


CALL = Message(role="user", content="hello", tool_calls=[{"function": {"name": "f"}}])


def image(url: str) -> Message:
    part: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
    return Message(role="user", content=["see", part])


def form_of(prompt: TextPrompt | ChatPrompt) -> bytes | None:
    return byte_form(prompt, MediaTokens())


def test_bytes_are_those_of_the_text_when_the_prompt_is_one() -> None:
    assert form_of(TextPrompt("é", add_special_tokens=True)) == "é".encode()


@pytest.mark.parametrize("last", [pytest.param(USER, id="text"), pytest.param(image("data:,a"), id="image")])
def test_bytes_extend_the_last_ones_when_a_conversation_continues(last: Message) -> None:
    one = form_of(ChatPrompt(messages=(USER, ANSWER, last), tools=[{"name": "f"}]))
    two = form_of(ChatPrompt(messages=(USER, ANSWER, last, ANSWER, USER), tools=[{"name": "f"}]))
    assert one is not None
    assert two is not None
    assert two.startswith(one)
    assert len(two) > len(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({"messages": (USER,)}, {"messages": (ANSWER,)}, id="role"),
        pytest.param({"messages": (USER,)}, {"messages": (USER,), "tools": [{"name": "f"}]}, id="tools"),
        pytest.param({"messages": (USER,)}, {"messages": (CALL,)}, id="tool_calls"),
        pytest.param({"messages": (USER,)}, {"messages": (USER,), "documents": ["d"]}, id="documents"),
        pytest.param({"messages": (image("data:,a"),)}, {"messages": (image("data:,b"),)}, id="image"),
    ],
)
def test_bytes_differ_when_prompts_do(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert form_of(ChatPrompt(**one)) != form_of(ChatPrompt(**other))


def test_media_take_few_bytes_however_large_they_are() -> None:
    whole = form_of(ChatPrompt(messages=(image("data:," + "x" * 1_000_000),)))
    assert whole is not None
    assert len(whole) == 4 * (estimated_tokens(len("usersee")) + 640 * 360 // 1024)


def test_bytes_are_bounded_when_images_claim_to_be_huge() -> None:
    head = b"\x89PNG\r\n\x1a\n" + bytes(8) + b"\xff" * 8
    huge = image("data:image/png;base64," + b64encode(head).decode())
    one, two = (form_of(ChatPrompt(messages=(USER, *[huge] * n, ANSWER))) for n in (1, 2))
    assert one is not None
    assert one == two
    assert len(one) == MAX_BYTES


@pytest.mark.parametrize(
    ("prompt", "n_bytes"),
    [
        pytest.param(TextPrompt("x" * 101, add_special_tokens=True), 101, id="text"),
        pytest.param(TextPrompt("日" * 100, add_special_tokens=True), 300, id="bytes_not_letters"),
        pytest.param(ChatPrompt(messages=(USER, ANSWER)), len("userhelloassistanthi"), id="roles_and_texts"),
        pytest.param(
            ChatPrompt(messages=(Message(role="user", content=[{"type": "text", "text": "hello"}]),)),
            len("userhello"),
            id="parts",
        ),
    ],
)
def test_bytes_of_a_prompt_are_those_that_the_reference_counts(
    prompt: TextPrompt | ChatPrompt, n_bytes: int
) -> None:
    form = form_of(prompt)
    assert form is not None
    assert len(form) == n_bytes


def test_chat_has_the_bytes_of_its_roles_and_texts_in_a_row() -> None:
    assert form_of(ChatPrompt(messages=(USER, ANSWER))) == b"userhelloassistanthi"


@pytest.mark.parametrize(
    ("n_bytes", "n_tokens"),
    [
        (0, 0),
        (1, 1),
        (4, 1),
        (5, 2),
        (400_000, 100_000),
        (MAX_BYTES, 2_097_152),
        (MAX_BYTES + 1, 2_097_152),
        (10**12, 2_097_152),
    ],
)
def test_estimate_is_a_token_for_each_four_bytes(n_bytes: int, n_tokens: int) -> None:
    assert estimated_tokens(n_bytes) == n_tokens


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param(TextPrompt("\ud800", add_special_tokens=True), id="text"),
        pytest.param(ChatPrompt(messages=(Message(role="user", content="\ud800"),)), id="chat"),
    ],
)
def test_there_are_no_bytes_when_the_text_is_not_unicode(prompt: TextPrompt | ChatPrompt) -> None:
    assert form_of(prompt) is None
