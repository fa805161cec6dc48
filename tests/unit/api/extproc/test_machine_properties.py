"""Whatever Envoy may send, the request body comes back as it was and the stream is answered in order."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from kvatlas.api.errors import ExtProcError
from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.routing import Refusal, RefusalCode, Route
from support.ext_proc import (
    Conversation,
    kind_of,
    make_route,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
    streamed,
)

DUPLEX = pb.ProcessingMode.FULL_DUPLEX_STREAMED
BODY_MODES = st.sampled_from(pb.ProcessingMode.BodySendMode.keys())
ANSWERS = st.sampled_from([make_route("10.0.0.1:8000"), Refusal(RefusalCode.SERVICE_UNAVAILABLE, "none")])
BODIES = st.one_of(st.binary(max_size=200), st.integers(61_990, 190_000).map(lambda n: b"x" * n))


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
    """The body in one to five pieces, empty ones among them."""
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
    talk = Conversation(answer)

    for message in stream.request:
        if not talk.ended:
            talk.say(message)

    assert len(talk.asked) == 1
    if isinstance(answer, Refusal):
        assert talk.ended
        assert kind_of(talk.replies[-1]) == "immediate_response"
    elif stream.duplex_request:
        assert talk.asked[0].body == stream.request_body
        kinds = [kind_of(reply) for reply in talk.replies]
        assert kinds == sorted(kinds, key=["request_headers", "request_body", "request_trailers"].index)
        assert kinds[0] == "request_headers"
        chunks = streamed(talk.replies, "request_body")
        assert b"".join(chunk for chunk, _ in chunks) == stream.request_body
        n_ends = sum(end for _, end in chunks)
        assert n_ends == any(message.request_body.end_of_stream for message in stream.request)
        assert not n_ends or chunks[-1][1]
    else:
        asked = [message.WhichOneof("request") for message in stream.request]
        assert [kind_of(reply) for reply in talk.replies] == asked


@given(streams())
def test_response_is_passed_message_by_message(stream: Stream) -> None:
    talk = Conversation(make_route("10.0.0.1:8000"))
    talk.say(*stream.request)

    for message in stream.response:
        (reply,) = talk.say(message)
        assert kind_of(reply) == message.WhichOneof("request")
        if message.HasField("response_body") and stream.duplex_response:
            body = message.response_body
            assert streamed([reply], "response_body") == [(body.body, body.end_of_stream)]


@given(
    st.lists(
        st.sampled_from(
            [
                request_headers(),
                request_headers(end=True),
                request_body(b"x"),
                request_body(b"x", end=True),
                request_trailers(),
                response_headers(),
                response_body(b"x", end=True),
                response_trailers(),
                pb.ProcessingRequest(),
            ]
        ),
        max_size=8,
    ),
    BODY_MODES,
    ANSWERS,
)
def test_any_order_of_messages_is_answered_or_an_error(
    messages: list[pb.ProcessingRequest], mode: str, answer: Route | Refusal
) -> None:
    talk = Conversation(answer)
    config = pb.ProtocolConfiguration(request_body_mode=pb.ProcessingMode.BodySendMode.Value(mode))

    for index, message in enumerate(messages):
        sent = pb.ProcessingRequest()
        sent.CopyFrom(message)
        if index == 0:
            sent.protocol_config.CopyFrom(config)
        try:
            talk.say(sent)
        except ExtProcError:
            break

    assert len(talk.asked) <= 1
    assert talk.machine.completion().route in (None, answer)
