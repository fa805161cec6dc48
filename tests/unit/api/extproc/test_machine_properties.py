"""Whatever Envoy may send, the request body comes back as it was and the stream is answered in order."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Value
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.api.errors import ExtProcError
from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.dialect import LlmD, Proposal
from kvatlas.api.extproc.intake import Intake
from kvatlas.routing.router import ModelRewrite, Refusal, RefusalCode, Route
from support.ext_proc import (
    MachineDriver,
    kind_of,
    make_route,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
    streamed,
    subset_hint,
)

DUPLEX = pb.ProcessingMode.FULL_DUPLEX_STREAMED
BODY_MODES = st.sampled_from(pb.ProcessingMode.BodySendMode.keys())
ROUTE = make_route("10.0.0.1:8000")
ANSWERS = st.sampled_from([ROUTE, Refusal(RefusalCode.SERVICE_UNAVAILABLE, "none")])
BODIES = st.one_of(st.binary(max_size=200), st.integers(61_990, 190_000).map(bytes))


@dataclass(frozen=True)
class Stream:
    """A legal stream: the modes, and both phases cut into messages."""

    config: pb.ProtocolConfiguration | None
    request: list[pb.ProcessingRequest]
    request_body: bytes
    response: list[pb.ProcessingRequest]

    @property
    def duplex_request(self) -> bool:
        return self.config is None or self.config.request_body_mode == DUPLEX

    @property
    def duplex_response(self) -> bool:
        return self.config is None or self.config.response_body_mode == DUPLEX


@st.composite
def cuts(draw: st.DrawFn, body: bytes) -> list[bytes]:
    """Cut the body into one to five pieces, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(body)), max_size=4)))
    return [body[start:end] for start, end in zip([0, *places], [*places, len(body)], strict=True)]


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Streams in any mode, with any legal way to end the request and the response."""
    config = draw(
        st.none()
        | st.builds(pb.ProtocolConfiguration, request_body_mode=BODY_MODES, response_body_mode=BODY_MODES)
    )
    body = draw(BODIES)
    buffered = config is not None and config.request_body_mode == pb.ProcessingMode.BUFFERED
    pieces = [body] if buffered else draw(cuts(body))
    ending = draw(st.sampled_from(["headers", "body", "trailers"]))
    if ending == "headers":
        body, pieces = b"", []
    request = [request_headers(end=ending == "headers", config=config)]
    request += [
        request_body(piece, end=ending == "body" and i + 1 == len(pieces)) for i, piece in enumerate(pieces)
    ]
    if ending == "trailers":
        request.append(request_trailers())
    answer = draw(cuts(draw(BODIES)))
    trailers = draw(st.booleans())
    response = [response_headers()]
    response += [
        response_body(piece, end=not trailers and i + 1 == len(answer)) for i, piece in enumerate(answer)
    ]
    if trailers:
        response.append(response_trailers())
    return Stream(config, request, body, response)


@given(streams(), ANSWERS)
def test_request_is_answered_in_order_with_its_own_body(stream: Stream, answer: Route | Refusal) -> None:
    driver = MachineDriver(answer)

    for message in stream.request:
        if not driver.ended:
            driver.send(message)

    assert len(driver.requests) == 1
    if isinstance(answer, Refusal):
        assert driver.ended
        assert kind_of(driver.replies[-1]) == "immediate_response"
    elif stream.duplex_request:
        assert driver.requests[0].body == stream.request_body
        expect_whole_request(driver, stream)
    else:
        asked = [message.WhichOneof("request") for message in stream.request]
        assert [kind_of(reply) for reply in driver.replies] == asked


@given(streams(), st.integers(0, 1), st.integers(0, 100_000))
def test_request_past_a_limit_goes_on_whole(stream: Stream, max_requests: int, max_bytes: int) -> None:
    driver = MachineDriver(ROUTE, intake=Intake(max_requests=max_requests, max_bytes=max_bytes))

    driver.send(*stream.request)

    assert len(driver.requests) == 1
    if stream.duplex_request:
        expect_whole_request(driver, stream)
    else:
        asked = [message.WhichOneof("request") for message in stream.request]
        assert [kind_of(reply) for reply in driver.replies] == asked
    assert (driver.intake.n_requests, driver.intake.n_bytes) == (0, 0)


def expect_whole_request(driver: MachineDriver, stream: Stream) -> None:
    kinds = [kind_of(reply) for reply in driver.replies]
    assert kinds == sorted(kinds, key=["request_headers", "request_body", "request_trailers"].index)
    assert kinds[0] == "request_headers"
    chunks = streamed(driver.replies, "request_body")
    assert b"".join(chunk for chunk, _ in chunks) == stream.request_body
    n_ends = sum(end for _, end in chunks)
    assert n_ends == any(message.request_body.end_of_stream for message in stream.request)
    assert not n_ends or chunks[-1][1]


@given(streams())
def test_response_is_passed_message_by_message(stream: Stream) -> None:
    driver = MachineDriver(ROUTE)
    driver.send(*stream.request)

    for message in stream.response:
        replies = driver.send(message)
        assert {kind_of(reply) for reply in replies} == {message.WhichOneof("request")}
        if message.HasField("response_body") and stream.duplex_response:
            body = message.response_body
            chunks = streamed(replies, "response_body")
            assert b"".join(chunk for chunk, _ in chunks) == body.body
            assert [end for _, end in chunks] == [False] * (len(chunks) - 1) + [body.end_of_stream]


METADATA = st.none() | st.builds(
    subset_hint,
    st.lists(st.text(max_size=20), max_size=3) | st.builds(Value, string_value=st.text(max_size=20)),
)
HEADERS = st.tuples(
    st.sampled_from(
        ["content-type", ":status", "x-request-id", "X-Llm-D-Inference-Objective", "traceparent", ""]
    ),
    st.sampled_from(["application/json", "text/event-stream", "200", "", "x" * 100_000])
    | st.text(max_size=9),
)
PIECES = st.binary(max_size=50) | st.sampled_from(
    [b'data: {"usage":{"prompt_tokens":1}}\n\n', b'{"usage":', b"x" * 70_000]
)
MESSAGES = st.one_of(
    st.builds(request_headers, HEADERS, HEADERS, end=st.booleans(), metadata=METADATA),
    st.builds(request_body, PIECES, end=st.booleans(), metadata=METADATA),
    st.builds(request_trailers),
    st.builds(response_headers, HEADERS, HEADERS, end=st.booleans()),
    st.builds(response_body, PIECES, end=st.booleans()),
    st.builds(response_trailers),
    st.builds(pb.ProcessingRequest),
)
CONVERSATIONS = st.builds(
    MachineDriver,
    st.sampled_from(
        [
            ROUTE,
            make_route("a:1", rewrite=ModelRewrite(b'{"model":"t"}', "m", "t")),
            Refusal(RefusalCode.INTERNAL, "no"),
        ]
    ),
    max_body_bytes=st.sampled_from([10, 1_000_000]),
    intake=st.builds(Intake, max_requests=st.integers(0, 1), max_bytes=st.sampled_from([0, 60, 10**9])),
    dialect=st.sampled_from([Proposal(), LlmD()]),
)
CONFIGS = st.none() | st.builds(
    pb.ProtocolConfiguration, request_body_mode=BODY_MODES, response_body_mode=BODY_MODES
)


def feed(driver: MachineDriver, messages: list[pb.ProcessingRequest]) -> None:
    """Send messages as a server does: until the stream is over or fails."""
    for message in messages:
        if not driver.ended:
            try:
                driver.send(message)
            except ExtProcError:
                return


def expect_sound_end(driver: MachineDriver) -> None:
    completion = driver.close()  # exactly one is told
    assert driver.machine.close(now=driver.now) is None
    assert len(driver.requests) <= 1
    assert completion.route in (None, driver.answer)
    assert (driver.intake.n_requests, driver.intake.n_bytes) == (0, 0)


@given(CONVERSATIONS, CONFIGS, st.lists(MESSAGES, max_size=9))
def test_any_order_of_messages_is_answered_or_an_error(
    driver: MachineDriver, config: pb.ProtocolConfiguration | None, messages: list[pb.ProcessingRequest]
) -> None:
    if messages and config is not None:
        messages[0].protocol_config.CopyFrom(config)

    feed(driver, messages)

    expect_sound_end(driver)


@given(CONVERSATIONS, st.lists(st.tuples(MESSAGES, st.integers(0, 200), st.binary(max_size=3)), max_size=5))
def test_broken_messages_are_refused_or_read(
    driver: MachineDriver, broken: list[tuple[pb.ProcessingRequest, int, bytes]]
) -> None:
    messages: list[pb.ProcessingRequest] = []
    for message, cut, tail in broken:
        with suppress(DecodeError):
            messages.append(pb.ProcessingRequest.FromString(message.SerializeToString()[:cut] + tail))

    feed(driver, messages)

    expect_sound_end(driver)
