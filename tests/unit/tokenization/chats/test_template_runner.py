from __future__ import annotations

import io

import msgspec
import pytest

from kvatlas.tokenization.chats.chat import ChatTemplate, ForeignChat
from kvatlas.tokenization.chats.conversation import Message
from kvatlas.tokenization.chats.template_runner import RenderResult, read_frame, render_request, write_frame
from kvatlas.tokenization.model import ChatPrompt


@pytest.mark.parametrize("data", [b"", b"a", b"ab" * 40_000])
def test_frame_is_read_as_it_was_written(data: bytes) -> None:
    stream = io.BytesIO()
    write_frame(stream, data)
    write_frame(stream, b"next")
    stream.seek(0)
    assert [read_frame(stream) for _ in range(3)] == [data, b"next", None]


@pytest.mark.parametrize("n_bytes", range(7))
def test_nothing_is_read_when_the_stream_ends_within_a_frame(n_bytes: int) -> None:
    stream = io.BytesIO()
    write_frame(stream, b"abc")
    assert read_frame(io.BytesIO(stream.getvalue()[:n_bytes])) is None


def encoded(template: str, tools: object = None) -> bytes:
    chat = ChatPrompt(messages=(Message(role="user", content="hi"),), tools=tools, template=template)
    return msgspec.json.encode(ForeignChat(chat, {"bos_token": "<s>"}, content_parts=None))


@pytest.mark.parametrize(
    ("request_bytes", "result"),
    [
        pytest.param(
            encoded("{{ bos_token }}{{ messages[0].content }}"), RenderResult(text=b"<s>hi"), id="text"
        ),
        pytest.param(
            encoded("{{ 1 + 'a' }}"),
            RenderResult(error="chat template raised TypeError in line 1"),
            id="failing_template",
        ),
        pytest.param(
            encoded("").replace(b'"tools":null', b'"tools":' + b"[" * 5_000 + b"]" * 5_000),
            RenderResult(error="chat cannot be rendered within its limits: RecursionError"),
            id="nested_too_deeply",
        ),
    ],
)
def test_result_has_the_text_or_the_error_of_the_chat(request_bytes: bytes, result: RenderResult) -> None:
    assert render_request(request_bytes, ChatTemplate) == result


def test_template_is_compiled_by_the_given_function() -> None:
    compiled: list[str] = []

    def compile_one(source: str) -> ChatTemplate:
        compiled.append(source)
        return ChatTemplate(source)

    assert render_request(encoded("hello"), compile_one).text == b"hello"
    assert set(compiled) == {"hello"}
