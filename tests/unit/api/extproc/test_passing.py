"""Bodies that pass through the native part: the same replies and the same account as message by message."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("kvatlas.api.http2._native", reason="built without a compiler")

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.messages import read_message
from kvatlas.api.extproc.replies import MAX_AT_ONCE_BYTES, MAX_CHUNK_BYTES
from kvatlas.routing.outcome import Completion, Outcome, Usage, UsageGap
from support.ext_proc import (
    BUFFERED,
    DUPLEX,
    MachineDriver,
    make_route,
    messages,
    request_body,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
)
from support.http2 import ENDED, GONE, MESSAGE, PASSED, Client, framed, session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvatlas.api.extproc.stream import Step

ROUTE = make_route("10.0.0.1:8000")
STREAMED = pb.ProtocolConfiguration(
    request_body_mode=pb.ProcessingMode.BUFFERED, response_body_mode=pb.ProcessingMode.STREAMED
)
MODES = {"duplex": DUPLEX, "streamed": STREAMED}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}


class Passed:
    """A stream whose response passes through a session as soon as its headers have come.

    Attributes:
        driver: of the machine, which has the reports.
        replies: what the gateway got since.
        n_messages: messages of the response that came to Python.
    """

    def __init__(self, config: pb.ProtocolConfiguration, content_type: str) -> None:
        self.driver = begun(config, content_type)
        self.client = Client(session(max_message_bytes=8 << 20))
        self.stream = self.client.open()
        self.client.pump()
        self.n_messages = 0
        passage = self.driver.machine.passage()
        assert passage is not None
        self.client.session.pass_messages(self.stream, passage)

    @property
    def replies(self) -> list[bytes]:
        self.client.pump()
        answer = self.client.results.get(self.stream)
        return answer.messages if answer is not None else []

    def send(self, *sent: pb.ProcessingRequest, at_once: bool = True, ends: bool = False) -> None:
        data = [framed(each.SerializeToString()) for each in sent]
        for piece in [b"".join(data)] if at_once else data:
            self._take(self.client.send(self.stream, piece))
        if ends:
            self._take(self.client.send(self.stream, b"", ends=True))

    def leave(self) -> None:
        if report := self.client.session.leave(self.stream):
            self._act(self.driver.machine.passed(report, now=self.driver.now))

    def _take(self, events: Sequence[object]) -> None:
        for event in events:
            kind, stream, *rest = cast("tuple[int, int, bytes]", event)
            assert stream == self.stream
            if kind == PASSED:
                self._act(self.driver.machine.passed(rest[0], now=self.driver.now))
            elif kind == MESSAGE:
                self.n_messages += 1
                self._act(self.driver.machine.receive(read_message(rest[0]), now=self.driver.now))
            else:
                assert kind in (ENDED, GONE)

    def _act(self, step: Step) -> None:
        if step.begun is not None:
            self.driver.begun.append(step.begun)
        if step.completion is not None:
            self.driver.completions.append(step.completion)
        for reply in messages(step.replies):
            self.client.session.send(self.stream, reply)


def begun(config: pb.ProtocolConfiguration, content_type: str) -> MachineDriver:
    """Return a stream whose response's headers have come."""
    driver = MachineDriver(ROUTE)
    driver.send(request_headers(config=config), request_body(b"{}", end=True))
    driver.send(response_headers(("content-type", content_type)))
    driver.replies.clear()
    return driver


def both(
    config: pb.ProtocolConfiguration,
    content_type: str,
    sent: Sequence[pb.ProcessingRequest],
    *,
    at_once: bool,
) -> tuple[Completion, Passed]:
    """Send a response in both ways and return how it passed; all of it must be equal."""
    driver, passed = begun(config, content_type), Passed(config, content_type)
    driver.send(*sent)
    passed.send(*sent, at_once=at_once)
    assert passed.replies == [each.SerializeToString() for each in driver.replies]
    passed.leave()
    assert passed.driver.begun == driver.begun
    completion = driver.close()
    assert passed.driver.close() == completion
    assert passed.driver.intake.n_bytes == 0
    return completion, passed


def cut(body: bytes, places: Sequence[int]) -> list[bytes]:
    """Return the pieces of a body."""
    ends = sorted({place % (len(body) + 1) for place in places})
    return [body[start:end] for start, end in zip([0, *ends], [*ends, len(body)], strict=True)]


def chunks(pieces: Sequence[bytes], *, ends: bool = True) -> list[pb.ProcessingRequest]:
    """Return the messages of a body."""
    return [
        response_body(piece, end=ends and number == len(pieces) - 1) for number, piece in enumerate(pieces)
    ]


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
    sent = chunks(cut(body, places), ends=ends)

    completion, passed = both(MODES[mode], "text/event-stream", sent, at_once=at_once)

    assert completion.outcome is (Outcome.COMPLETED if ends else Outcome.ABORTED)
    assert passed.n_messages == 0


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
    assert passed.n_messages == 1


@pytest.mark.parametrize("n_bytes", [MAX_CHUNK_BYTES - 1, MAX_CHUNK_BYTES, MAX_CHUNK_BYTES + 1, 300_000])
def test_long_chunks_are_given_back_in_pieces(n_bytes: int) -> None:
    _, passed = both(DUPLEX, "text/plain", chunks([b"x" * n_bytes, b"", b"yz"]), at_once=False)
    assert passed.n_messages == 0


def test_chunk_past_the_length_sent_at_once_comes_to_python() -> None:
    sent = chunks([b"a", b"x" * MAX_AT_ONCE_BYTES, b"b"])
    _, passed = both(DUPLEX, "text/event-stream", sent, at_once=False)
    assert passed.n_messages == 2


def test_line_without_end_is_dropped_and_the_next_one_read() -> None:
    line = b"data: " + b"x" * 200_000
    body = [line] * 8 + [b"\ndata: " + json.dumps({"usage": USAGE}).encode() + b"\n"]

    completion, passed = both(DUPLEX, "text/event-stream", chunks(body), at_once=False)

    assert completion.response.usage == Usage(prompt_tokens=7, cached_tokens=3, output_tokens=2)
    assert passed.n_messages == 0


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
