from __future__ import annotations

import pytest

from kvatlas.sim.errors import RequestRefusedError
from kvatlas.sim.openai import ResponseFormat, parse_generate, usage


def make_form(*, chat: bool) -> ResponseFormat:
    return ResponseFormat(chat=chat, request_id="7", model="m", created=5, finish_reason="stop")


def test_absent_fields_have_the_api_defaults() -> None:
    fields = parse_generate(b'{"model": "m", "prompt": "a", "unknown": 1}')

    assert (fields.model, fields.max_tokens, fields.stream, fields.stream_options) == ("m", None, False, None)


@pytest.mark.parametrize(
    "body", [b"", b"[1", b"[]", b"\xff{}", b'{"stream": 1}', b'{"n": 3}', b'{"max_tokens": -1}']
)
def test_bad_body_is_refused(body: bytes) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        parse_generate(body)

    assert refused.value.status == 400


def test_chat_answers_have_the_form_of_vllm() -> None:
    form = make_form(chat=True)
    counts = usage(prompt_tokens=4, completion_tokens=2, cached_tokens=3)

    assert form.opening() == {
        "id": "chatcmpl-7",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
    }
    assert form.whole("hi", counts)["usage"] == counts
    assert form.closing(counts)["choices"] == []


def test_completion_pieces_end_with_a_reason() -> None:
    form = make_form(chat=False)

    choices = [form.piece("a", last=last)["choices"] for last in (False, True)]

    assert form.opening() is None
    assert choices == [
        [{"index": 0, "text": "a", "logprobs": None, "finish_reason": reason}] for reason in (None, "stop")
    ]
    assert form.whole("a", {})["object"] == "text_completion"
