"""Requests of vLLM's gRPC service: prompts, refusals in the reference's words, and hostile messages."""

from __future__ import annotations

import contextlib
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.indexer.prefix import MediaSpan
from kvatlas.tokenization.errors import RequestError
from kvatlas.tokenization.model import NoPrefixReason, NoPrompt, TextPrompt, TokenPrompt
from kvatlas.tokenization.requests.protobuf import MAX_FIELDS
from kvatlas.tokenization.requests.vllm_grpc import vllm_request
from support.protobuf import content, frame, number, packed, tokenized

IDS = (0, 1, 127, 128, 151_643, 2**32 - 1)


def place(offset: int, length: int) -> bytes:
    return content(5, number(1, offset) + number(2, length))


@pytest.mark.parametrize(
    ("message", "prompt"),
    [
        pytest.param(tokenized(*IDS), TokenPrompt(array("I", IDS)), id="token_ids"),
        pytest.param(content(2, b""), TokenPrompt(array("I")), id="no_ids"),
        pytest.param(content(3, b"hi"), TextPrompt("hi", add_special_tokens=True), id="text"),
        pytest.param(
            tokenized(1) + content(3, b"hi"),
            TextPrompt("hi", add_special_tokens=True),
            id="last_input_counts",
        ),
        pytest.param(
            content(2, number(2, 5) + packed(2, 6, 7)) + content(2, number(2, 8)),
            TokenPrompt(array("I", (5, 6, 7, 8))),
            id="ids_in_parts",
        ),
        pytest.param(
            tokenized(*range(9))
            + content(7, place(5, 2) + place(1, 3) + content(6, b"a") + content(6, b"b")),
            TokenPrompt(array("I", range(9)), (MediaSpan("b", 1, 3), MediaSpan("a", 5, 2))),
            id="media",
        ),
        pytest.param(
            tokenized(*range(9))
            + content(11, place(1, 3) + content(6, b"video"))
            + content(7, place(5, 2) + content(6, b"image")),
            TokenPrompt(array("I", range(9)), (MediaSpan("video", 1, 3), MediaSpan("image", 5, 2))),
            id="media_of_several_kinds",
        ),
        pytest.param(
            tokenized(1, 2) + content(4, number(8, 16) + number(27, 2**64 - 1)),
            TokenPrompt(array("I", (1, 2))),
            id="not_truncated",
        ),
    ],
)
def test_prompt_is_that_of_the_message(message: bytes, prompt: object) -> None:
    assert vllm_request("Generate", frame(message)).prompt == prompt


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(frame(tokenized(1), flag=1), NoPrefixReason.COMPRESSED, id="compressed"),
        pytest.param(
            frame(tokenized(1) + content(4, number(27, 5))), NoPrefixReason.ALTERED_PROMPT, id="truncated"
        ),
        pytest.param(
            frame(tokenized(1) + content(4, number(23, 0))),
            NoPrefixReason.PROMPT_LOGPROBS,
            id="probabilities",
        ),
        pytest.param(
            frame(tokenized(1) + content(7, place(0, 1))), NoPrefixReason.MEDIA, id="media_without_hash"
        ),
        pytest.param(
            frame(tokenized(1, 2) + content(10, content(1, b""))),
            NoPrefixReason.MEDIA,
            id="media_of_the_engine",
        ),
        pytest.param(
            frame(tokenized(1, 2) + content(7, place(0, 1) + content(6, b"a")) + content(11, place(1, 1))),
            NoPrefixReason.MEDIA,
            id="media_of_another_kind_without_hash",
        ),
        pytest.param(
            frame(tokenized(1) + content(7, place(0, 2) + content(6, b"a"))),
            NoPrefixReason.MALFORMED,
            id="media_outside_of_the_ids",
        ),
        pytest.param(frame(tokenized(*range(11))), NoPrefixReason.TOO_COMPLEX, id="too_many_ids"),
        pytest.param(
            frame(tokenized(1) + number(9, 0) * MAX_FIELDS), NoPrefixReason.TOO_COMPLEX, id="too_many_fields"
        ),
        pytest.param(
            frame(content(7, content(5, number(1, 1) * 900)) * 3 + tokenized(1)),
            NoPrefixReason.TOO_COMPLEX,
            id="too_many_fields_together",
        ),
    ],
)
def test_prompt_is_missing_for_a_reason(body: bytes, reason: NoPrefixReason) -> None:
    prompt = vllm_request("Generate", body, max_cost=10).prompt
    assert isinstance(prompt, NoPrompt)
    assert prompt.reason is reason


@pytest.mark.parametrize(
    ("method", "body", "text"),
    [
        pytest.param("Generate", b"", "invalid or unsupported gRPC payload: ", id="empty"),
        pytest.param("Generate", frame(tokenized(1))[:-1], "invalid or unsupported gRPC payload: ", id="cut"),
        pytest.param("Generate", frame(b"", flag=7), "invalid or unsupported gRPC payload: ", id="bad_flag"),
        pytest.param("Generate", frame(content(1, b"id")), "not supported request inputType", id="no_input"),
        pytest.param("Embed", frame(content(3, b"t")), "missing tokenized input in EmbedRequest", id="embed"),
        pytest.param("Generate", frame(b"\xff\xff"), "unmarshaling GenerateRequest: ", id="no_message"),
        pytest.param("Generate", frame(content(3, b"\xff")), "unmarshaling GenerateRequest: ", id="no_utf8"),
        pytest.param("Embed", frame(b"\x0b"), "unmarshaling EmbedRequest: ", id="group"),
        pytest.param(
            "Embed", frame(content(2, content(2, b"\xff\xff\xff\xff\xff\x01"))), "unmarshaling", id="large_id"
        ),
    ],
)
def test_message_that_no_engine_can_read_is_refused(method: str, body: bytes, text: str) -> None:
    with pytest.raises(RequestError, match=f"^{text}"):
        vllm_request(method, body)


def test_stream_is_that_of_the_message_and_nobody_names_a_model() -> None:
    request = vllm_request("Generate", frame(tokenized(1) + number(5, 1)))
    assert (request.stream, request.model, request.raw) == (True, "", None)


@pytest.mark.parametrize(
    ("parameters", "n_choices"),
    [
        pytest.param(b"", 1, id="absent"),
        pytest.param(number(15, 0), 1, id="default"),
        pytest.param(number(27, 2**64 - 1) + number(15, 4), 4, id="several"),
        pytest.param(number(15, 2**40), 1, id="absurd"),
        pytest.param(content(15, b"4"), 1, id="no_number"),
    ],
)
def test_choices_are_those_of_the_parameters(parameters: bytes, n_choices: int) -> None:
    request = vllm_request("Generate", frame(tokenized(1) + content(4, parameters)))
    assert request.n_choices == n_choices


@given(body=st.binary(max_size=64) | st.binary(max_size=64).map(frame))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(RequestError):
        vllm_request("Generate", body)
