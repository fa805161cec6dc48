"""Bodies that pass through the native part: the same replies and the same account as message by message."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("kvatlas.api.http2._native", reason="built without a compiler")

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.replies import MAX_AT_ONCE_BYTES, MAX_CHUNK_BYTES
from kvatlas.routing.outcome import Outcome, Usage, UsageGap
from support.ext_proc import (
    BUFFERED,
    DUPLEX,
    MachineDriver,
    request_body,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
)
from support.http2 import MESSAGE, framed
from support.passing import MODES, ROUTE, Passed, both, chunks, cut

USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}


EVENTS = st.lists(
    st.sampled_from(
        [
            b'data: {"choices":[{"delta":{"content":"a"}}]}',
            b'data: {"choices":[],"usage":null}',
            b'data:{"choices":[],"usage" : null}\r',
            b"data: " + json.dumps({"usage": USAGE}).encode(),
            b'data: {"usage":{"prompt_tokens":9},"message":{"usage":null}}',
            b'data: {"type":"message_start","message":{"usage":{"input_tokens":5,"cache_read_input_tokens":4}}}',
            b'data: {"usage":{"output_tokens":11}}',
            b'data: {"usage":{"prompt',
            b'data: "usage"',
            b": comment",
            b"event: x",
            b"data: [DONE]",
            b"",
            b"\xff\xfe",
        ]
    ),
    max_size=12,
).map(b"\n".join)
PLACES = st.lists(st.integers(0, 5000), max_size=20)


@pytest.mark.parametrize("mode", MODES)
@given(body=EVENTS, places=PLACES, ends=st.booleans(), at_once=st.booleans())
def test_event_stream_has_the_same_account_however_it_is_cut(
    mode: str, body: bytes, places: list[int], ends: bool, at_once: bool
) -> None:
    sent = chunks([b"data: {}\n", *cut(body, places)], ends=ends)

    completion, passed = both(MODES[mode], "text/event-stream", sent, at_once=at_once)

    assert completion.outcome is (Outcome.COMPLETED if ends else Outcome.ABORTED)
    assert passed.n_messages == 1, "the first event comes to Python"


@pytest.mark.parametrize("mode", MODES)
@given(
    body=st.sampled_from([json.dumps({"id": "é", "usage": USAGE}).encode(), b"{", b"", b'{"usage":null}']),
    places=PLACES,
    at_once=st.booleans(),
)
def test_json_has_the_same_account_however_it_is_cut(
    mode: str, body: bytes, places: list[int], at_once: bool
) -> None:
    _, passed = both(MODES[mode], "application/json", chunks(cut(body, places)), at_once=at_once)
    assert passed.n_messages == 0


@given(
    before=EVENTS,
    after=EVENTS,
    places=PLACES,
    kind=st.sampled_from(["text/event-stream", "application/json"]),
)
def test_python_goes_on_after_a_message_that_does_not_pass(
    before: bytes, after: bytes, places: list[int], kind: str
) -> None:
    odd = response_body(after, end=False)
    odd.metadata_context.filter_metadata[
        "x"
    ].SetInParent()  # allowed, and nothing that a gateway sends with a chunk
    sent = [*chunks(cut(before, places), ends=False), odd, *chunks(cut(after, places))]

    _, passed = both(DUPLEX, kind, sent, at_once=True)

    assert passed.n_messages > 0


def test_trailers_end_a_response_that_passes() -> None:
    sent = [*chunks([b'data: {"usage":{"prompt_tokens":3}}'], ends=False), response_trailers()]

    completion, passed = both(DUPLEX, "text/event-stream", sent, at_once=True)

    assert completion.outcome is Outcome.COMPLETED
    assert completion.response.usage == Usage(prompt_tokens=3)
    assert passed.n_messages == 2


@pytest.mark.parametrize("n_bytes", [MAX_CHUNK_BYTES - 1, MAX_CHUNK_BYTES, MAX_CHUNK_BYTES + 1, 300_000])
def test_long_chunks_are_given_back_in_pieces(n_bytes: int) -> None:
    _, passed = both(DUPLEX, "text/plain", chunks([b"x" * n_bytes, b"", b"yz"]), at_once=False)
    assert passed.n_messages == 0


def test_chunk_past_the_length_sent_at_once_comes_to_python() -> None:
    sent = chunks([b"a", b"x" * MAX_AT_ONCE_BYTES, b"b"])
    _, passed = both(DUPLEX, "text/event-stream", sent, at_once=False)
    assert passed.n_messages == 3


def test_line_without_end_is_dropped_and_the_next_one_read() -> None:
    line = b"data: " + b"x" * 200_000
    body = [line] * 8 + [b"\ndata: " + json.dumps({"usage": USAGE}).encode() + b"\n"]

    completion, passed = both(DUPLEX, "text/event-stream", chunks(body), at_once=False)

    assert completion.response.usage == Usage(prompt_tokens=7, cached_tokens=3, output_tokens=2)
    assert passed.n_messages == 1


def test_object_past_its_limit_is_dropped() -> None:
    completion, _ = both(DUPLEX, "application/json", chunks([b"x" * 250_000] * 5), at_once=False)
    assert completion.response.usage is UsageGap.TOO_LONG


def test_held_bytes_of_a_passage_count_and_have_a_limit() -> None:
    passed = Passed(DUPLEX, "application/json")
    server = passed.client.session

    passed.send(*chunks([b"{" * 1000], ends=False))
    assert server.held() >= 1000
    passed.client.may_hold = 1500
    passed.send(*chunks([b"{" * 1000], ends=False))
    passed.leave()

    assert passed.driver.close().response.usage is UsageGap.OVERLOAD
    assert server.held() < 1000


@given(
    message=st.binary(max_size=40), prefix=st.sampled_from([b"", b"\x2a", b"\x2a\x02", b"\x2a\x04\x0a\x02"])
)
@settings(max_examples=300)
def test_bytes_of_any_message_are_taken_as_protobuf_takes_them(message: bytes, prefix: bytes) -> None:
    """What passes is a response body that the official decoder reads in the same way."""
    passed = Passed(DUPLEX, "text/plain")
    events = passed.client.send(passed.stream, framed(prefix + message))
    if any(event[0] == MESSAGE for event in events):
        return
    decoded = pb.ProcessingRequest.FromString(prefix + message)
    assert decoded.WhichOneof("request") == "response_body"
    (reply,) = (pb.ProcessingResponse.FromString(each) for each in passed.replies)
    streamed = reply.response_body.response.body_mutation.streamed_response
    assert (streamed.body, streamed.end_of_stream) == (
        decoded.response_body.body,
        decoded.response_body.end_of_stream,
    )


def test_buffered_gateway_without_a_body_has_nothing_to_pass() -> None:
    driver = MachineDriver(ROUTE)
    driver.send(request_headers(config=BUFFERED), request_body(b"{}", end=True))
    driver.send(response_headers())
    assert driver.machine.passage() is None
