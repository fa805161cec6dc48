"""Token counts out of answers; the ids are the numbers of the protocol cases."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.api.extproc.intake import Intake
from kvatlas.api.extproc.usage import FREE_LINE_BYTES, MAX_EVENTS_BYTES, MAX_HELD_BYTES, usage_reader
from kvatlas.routing.outcome import Usage, UsageGap

JSON, EVENTS = "application/json", "text/event-stream"
CHAT = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
CACHED = CHAT | {"prompt_tokens_details": {"cached_tokens": 8}}
TOLD = Usage(prompt_tokens=11, cached_tokens=8, output_tokens=7)


def read(*chunks: bytes, kind: str = JSON, encoding: str = "", max_bytes: int = 10**9) -> Usage | UsageGap:
    """Read the usage of a response in these chunks."""
    reader = usage_reader(
        content_type=kind, content_encoding=encoding, budget=Intake(max_bytes=max_bytes).share()
    )
    for chunk in chunks:
        reader.feed(chunk)
    return reader.end()


def event(data: dict[str, Any], *, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(data).encode() + b"\n\n"


def token(text: str) -> bytes:
    return event({"object": "chat.completion.chunk", "choices": [{"delta": {"content": text}}]})


DONE = b"data: [DONE]\n\n"
CHAT_STREAM = (
    token("one") + token(' "usage": {"prompt_tokens": 99} ') + event({"choices": [], "usage": CACHED}) + DONE
)
ANTHROPIC_STREAM = b"".join(
    (
        event({"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 1, "cache_read_input_tokens": 8}}},
              name="message_start"),
        event({"type": "content_block_delta", "delta": {"text": "usage"}}, name="content_block_delta"),
        event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}},
              name="message_delta"),
        event({"type": "message_stop"}, name="message_stop"),
    )
)  # fmt: skip
RESPONSES_STREAM = b"".join(
    (
        event({"type": "response.created", "response": {"status": "in_progress", "usage": None}}),
        event({"type": "response.output_text.delta", "delta": "usage"}),
        event(
            {
                "type": "response.completed",
                "response": {
                    "output": [{"content": [{"text": "x"}]}],
                    "usage": {
                        "input_tokens": 11,
                        "input_tokens_details": {"cached_tokens": 8},
                        "output_tokens": 7,
                    },
                },
            }
        ),
    )
)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param({"choices": [], "usage": CACHED}, TOLD, id="P5_chat"),
        pytest.param({"usage": CHAT}, Usage(11, None, 7), id="P5_without_details"),
        pytest.param({"usage": CHAT | {"prompt_tokens_details": None}}, Usage(11, None, 7), id="P5_details_null"),
        pytest.param({"usage": {"prompt_tokens": 4, "total_tokens": 4}}, Usage(4), id="P5_embeddings"),
        pytest.param(
            {"usage": {"input_tokens": 11, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 8}}},
            TOLD,
            id="P5_responses",
        ),
        pytest.param(
            {"type": "message", "content": [], "usage": {"input_tokens": 11, "output_tokens": 7}},
            Usage(11, None, 7),
            id="P5_anthropic",
        ),
        pytest.param(
            {"usage": {"input_tokens": 1, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 2, "output_tokens": 7}},
            TOLD,
            id="P5_anthropic_with_cache",
        ),
        pytest.param(
            {"usage": {"prompt_tokens": "11", "completion_tokens": 7.0, "prompt_tokens_details": {"cached_tokens": "8"}}},
            TOLD,
            id="P5_strings_and_floats",
        ),
        pytest.param(
            {"usage": {"prompt_tokens": -1, "completion_tokens": "many", "prompt_tokens_details": [8]}},
            Usage(),
            id="nonsense_is_not_told",
        ),
        pytest.param({"usage": {"prompt_tokens": 1e300, "completion_tokens": "9" * 500}}, Usage(), id="absurd"),
        pytest.param({"message": "no", "response": 3, "usage": CACHED}, TOLD, id="other_fields_of_those_names"),
        pytest.param({"choices": []}, UsageGap.ABSENT, id="P7_absent"),
        pytest.param({"usage": None}, UsageGap.ABSENT, id="P7_null"),
        pytest.param([1, 2], UsageGap.ABSENT, id="no_object"),
    ],
)  # fmt: skip
def test_json_answer_tells_its_usage(body: object, told: Usage | UsageGap) -> None:
    data = json.dumps(body).encode()

    assert read(data) == told
    assert read(*(data[i : i + 1] for i in range(len(data)))) == told


@pytest.mark.parametrize("body", [b"", b"no healthy upstream", b'{"usage": ', b'{"usage":' + b"[" * 100_000])
def test_json_answer_that_is_not_json_tells_so(body: bytes) -> None:
    assert read(body) is UsageGap.MALFORMED  # P3


@pytest.mark.parametrize(
    ("stream", "told", "n_events"),
    [
        pytest.param(CHAT_STREAM, TOLD, 3, id="P6_chat"),
        pytest.param(CHAT_STREAM.replace(b"\n", b"\r\n"), TOLD, 3, id="P6_line_ends_of_two_bytes"),
        pytest.param(CHAT_STREAM.replace(b"data: ", b"data:"), TOLD, 3, id="P6_no_blank"),
        pytest.param(CHAT_STREAM[: -len(DONE) - 2], TOLD, 3, id="P6_end_without_line_end"),
        pytest.param(
            event({"usage": {"prompt_tokens": 11, "completion_tokens": 1}}) + event({"usage": CACHED}) + DONE,
            TOLD,
            2,
            id="P6_usage_in_every_event",
        ),
        pytest.param(ANTHROPIC_STREAM, TOLD, 4, id="P6_anthropic_start_and_delta"),
        pytest.param(RESPONSES_STREAM, TOLD, 3, id="P6_responses_completed"),
        pytest.param(token("a") + token("usage") + DONE, UsageGap.ABSENT, 2, id="P7_not_asked_for"),
        pytest.param(b'data: {"usage": {\n\n' + DONE, UsageGap.MALFORMED, 1, id="broken_event"),
        pytest.param(b'data: {"usage": {\n\n' + CHAT_STREAM, TOLD, 4, id="broken_event_costs_itself"),
        pytest.param(b': "usage"\nid: 1\n\n', UsageGap.ABSENT, 0, id="comments_and_other_fields"),
        pytest.param(b"", UsageGap.ABSENT, 0, id="empty"),
    ],
)
def test_event_stream_tells_its_usage_however_it_is_cut(
    stream: bytes, told: Usage | UsageGap, n_events: int
) -> None:
    for size in (1, 7, len(stream) or 1):
        reader = usage_reader(content_type=EVENTS, content_encoding="", budget=Intake().share())
        for start in range(0, len(stream), size):
            reader.feed(stream[start : start + size])

        assert reader.end() == told
        assert reader.n_events == n_events  # P8


@given(st.sampled_from([CHAT_STREAM, ANTHROPIC_STREAM, RESPONSES_STREAM]), st.data())
def test_event_stream_tells_the_same_cut_anywhere(stream: bytes, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]

    assert read(*pieces, kind=EVENTS) == TOLD


@given(st.lists(st.binary(max_size=300) | st.sampled_from([b"data: ", b'"usage"', b"{", b"}", b"\n", b":"])))
def test_any_bytes_are_survived(chunks: list[bytes]) -> None:
    for kind in (JSON, EVENTS):
        assert isinstance(read(*chunks, kind=kind), Usage | UsageGap)


@pytest.mark.parametrize(
    ("kind", "encoding", "gap"),
    [
        pytest.param(JSON, "gzip", UsageGap.ENCODED, id="gzip"),
        pytest.param(EVENTS, "br", UsageGap.ENCODED, id="brotli_stream"),
        pytest.param("text/plain", "", UsageGap.OTHER_TYPE, id="P3_text"),
        pytest.param("", "", UsageGap.OTHER_TYPE, id="no_type"),
    ],
)
def test_answer_that_cannot_be_read_is_ignored(kind: str, encoding: str, gap: UsageGap) -> None:
    assert read(json.dumps({"usage": CHAT}).encode(), kind=kind, encoding=encoding) is gap


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "Application/JSON", "application/problem+json"]
)
def test_json_is_known_by_its_media_type(kind: str) -> None:
    assert read(b'{"usage": {"prompt_tokens": 1}}', kind=kind, encoding="identity") == Usage(1)


def test_json_answer_too_long_to_hold_is_ignored() -> None:
    chunk = b'{"usage": {"prompt_tokens": 1}}'.ljust(MAX_HELD_BYTES)

    assert read(chunk) == Usage(1)
    assert read(chunk, b" ", b" ") is UsageGap.TOO_LONG


def test_json_answer_without_room_is_ignored_and_its_room_given_back() -> None:
    intake = Intake(max_bytes=10)
    share = intake.share()
    reader = usage_reader(content_type=JSON, content_encoding="", budget=share)

    for chunk in (b"x" * 8, b"x" * 8, b"x"):
        reader.feed(chunk)

    assert reader.end() is UsageGap.OVERLOAD
    share.release()
    assert intake.n_bytes == 0


def test_piece_of_events_too_long_to_read_at_once_costs_itself() -> None:
    piece = b'data: {"usage": {"prompt_tokens": 1}}\n\n' * (MAX_EVENTS_BYTES // 30)

    assert read(piece, b'"}\n\n', DONE, kind=EVENTS) is UsageGap.TOO_LONG
    assert read(piece, b'"}\n\n', CHAT_STREAM, kind=EVENTS) == TOLD


@pytest.mark.parametrize("size", [1_000, 250_000])
def test_line_too_long_to_hold_costs_itself(size: int) -> None:
    line = b'data: {"usage": ' + b"x" * MAX_HELD_BYTES + b"\n\n"
    pieces = [line[start : start + size] for start in range(0, len(line), size)]

    assert read(*pieces, DONE, kind=EVENTS) is UsageGap.TOO_LONG
    assert read(*pieces, CHAT_STREAM, kind=EVENTS) == TOLD


@pytest.mark.parametrize(
    ("length", "max_bytes", "expected"),
    [
        pytest.param(FREE_LINE_BYTES, 0, TOLD, id="ordinary_line_needs_no_room"),
        pytest.param(100_000, 100_000, TOLD, id="room"),
        pytest.param(100_000, 50_000, UsageGap.OVERLOAD, id="no_room"),
    ],
)
def test_line_that_does_not_end_is_held_within_the_budget(
    length: int, max_bytes: int, expected: Usage | UsageGap
) -> None:
    line = event({"usage": CACHED, "x": ""}).rstrip()
    line = line[:-2] + b"x" * (length - len(line)) + line[-2:]
    pieces = [line[start : start + 1000] for start in range(0, length, 1000)]

    assert read(*pieces, *pieces, b"\n", kind=EVENTS, max_bytes=0) is UsageGap.OVERLOAD
    assert read(*pieces, b"\n", *pieces, b"\n", kind=EVENTS, max_bytes=max_bytes) == expected
