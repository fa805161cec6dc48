"""The endpoint picker's side of one ext-proc stream, without I/O.

A stream carries one HTTP request and its response. The request phase is answered in one of three ways, told by
`protocol_config.request_body_mode` on the stream's first message:

    mode          request_headers      request_body                  request_trailers
    DUPLEX        collected            collected; at the end routed  collected body routed
    BUFFERED      answered unchanged   routed                        routed when no body came before
    HEADERS_ONLY  routed               answered unchanged            answered unchanged

In DUPLEX the answers are the headers with the destination, then the whole body again, then the trailers. Headers that
end the stream (no body) are routed at once in every mode. The response phase is passed through message by message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from ..errors import ExtProcError
from ..routing import Refusal, RefusalCode, Route, RoutingRequest
from . import answers
from . import ext_proc_pb2 as pb
from .headers import REQUEST_ID_HEADER, is_event_stream, read_headers, read_served, read_subset

DEFAULT_MAX_BODY_BYTES = 64 * 1024 * 1024
"""Bounds what one stream can hold. A prompt of 1 M tokens has about 4 MB of text; the rest is room for images."""


class Outcome(Enum):
    """How a stream ended; `value` is the word in metrics.

    ROUTED: the request was routed and the gateway does not show its response to the picker.
    ABORTED: the client or the gateway went away first, or the stream broke the protocol.
    """

    COMPLETED = "completed"
    ROUTED = "routed"
    REFUSED = "refused"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished stream: what was decided on it, if anything, and how it ended.

    Attributes:
        request_id: `x-request-id`, empty when the stream showed no request headers.
        route: where the request went, None when it was refused or never routed.
        outcome: how the stream ended.
        served: address of the endpoint whose response came, None when the gateway did not tell.
    """

    request_id: str
    route: Route | None
    outcome: Outcome
    served: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerBegun:
    """The first bytes of an answer's body came.

    Attributes:
        route: where the request went.
        is_first_token: whether they are the model's first token: a streamed answer without error, shown as it comes.
        served: address of the endpoint whose answer it is, None when the gateway did not tell.
    """

    route: Route
    is_first_token: bool
    served: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """What to do after one message, in this order.

    Attributes:
        begun: an answer that began with the message.
        replies: serialized ProcessingResponses to send.
        route: a request to route; its answer goes to `routed` before the next message is read.
        end: whether the stream is over.
    """

    replies: tuple[bytes, ...] = ()
    route: RoutingRequest | None = None
    end: bool = False
    begun: AnswerBegun | None = None


class _Mode(Enum):
    DUPLEX = auto()
    BUFFERED = auto()
    HEADERS_ONLY = auto()


class _Phase(Enum):
    """Where the request is. The response phase needs no order: Envoy may answer a request by itself at any time."""

    HEADERS = auto()
    BODY = auto()
    ROUTING = auto()
    ANSWERED = auto()


class _Answer(Enum):
    """What the request is answered with, once routed; the first message named carries the destination."""

    HEADERS = auto()
    HEADERS_BODY = auto()
    HEADERS_BODY_TRAILERS = auto()
    BODY = auto()
    TRAILERS = auto()


_NONE = pb.ProcessingMode.NONE
_FULL_DUPLEX_STREAMED = pb.ProcessingMode.FULL_DUPLEX_STREAMED
_SHOWN_AS_IT_COMES = (_FULL_DUPLEX_STREAMED, pb.ProcessingMode.STREAMED)
_MODES = {_FULL_DUPLEX_STREAMED: _Mode.DUPLEX, pb.ProcessingMode.BUFFERED: _Mode.BUFFERED}
_NOTHING = Step()
_REQUEST_HEADERS_UNCHANGED = Step(replies=(answers.REQUEST_HEADERS_UNCHANGED,))
_REQUEST_BODY_UNCHANGED = Step(replies=(answers.REQUEST_BODY_UNCHANGED,))
_REQUEST_TRAILERS_UNCHANGED = Step(replies=(answers.REQUEST_TRAILERS_UNCHANGED,))
_RESPONSE_HEADERS_UNCHANGED = Step(replies=(answers.RESPONSE_HEADERS_UNCHANGED,))
_RESPONSE_BODY_UNCHANGED = Step(replies=(answers.RESPONSE_BODY_UNCHANGED,))
_RESPONSE_TRAILERS_UNCHANGED = Step(replies=(answers.RESPONSE_TRAILERS_UNCHANGED,))


class ExtProcMachine:
    """State of one stream.

    Args:
        new_request_id: makes the id of a request that came without `x-request-id`.
        max_body_bytes: a longer request body is refused.
    Cost: the request body is held until it is routed; afterwards a message costs its own answer.
    """

    def __init__(
        self, *, new_request_id: Callable[[], str], max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    ) -> None:
        self._new_request_id = new_request_id
        self._max_body_bytes = max_body_bytes
        self._mode: _Mode | None = None
        self._response_mode = _FULL_DUPLEX_STREAMED
        self._phase = _Phase.HEADERS
        self._headers: dict[str, str] = {}
        self._request_id = ""
        self._generated_id: str | None = None
        self._subset: frozenset[str] | None = None
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._body = b""
        self._answer = _Answer.HEADERS
        self._route: Route | None = None
        self._refused = False
        self._response_begun = False
        self._response_ended = False
        self._body_begun = False
        self._is_event_stream = False
        self._served: str | None = None

    def receive(self, message: pb.ProcessingRequest) -> Step:
        """What to do about the next message.

        Raises:
            ExtProcError: the message has no place here; the stream cannot go on.
        """
        if self._mode is None:
            self._mode = self._configure(message)
        kind = message.WhichOneof("request")
        match kind:
            case "response_body":
                return self._response_body(message.response_body)
            case "response_headers":
                self._served = read_served(message)
                return self._response_headers(message.response_headers)
            case "response_trailers":
                self._response_begun = self._response_ended = True
                return _RESPONSE_TRAILERS_UNCHANGED
            case "request_headers":
                self._read_subset(message)
                return self._request_headers(message.request_headers)
            case "request_body":
                self._read_subset(message)
                return self._request_body(message.request_body)
            case "request_trailers":
                self._read_subset(message)
                return self._request_trailers()
            case None:
                raise ExtProcError("out_of_order", "a message without headers, body or trailers")
            case _:
                assert_never(kind)

    def routed(self, answer: Route | Refusal) -> Step:
        """What to do with the answer to the request that the last step asked to route."""
        self._phase = _Phase.ANSWERED
        match answer:
            case Refusal():
                self._refused = True
                return Step(replies=(answers.refused(answer),), end=True)
            case Route():
                self._route = answer
                replies = self._replies(",".join(answer.addresses))
                self._body = b""
                return Step(replies=replies)

    def completion(self) -> Completion:
        """How the stream ended, asked once nothing more is read from it."""
        if self._refused:
            outcome = Outcome.REFUSED
        elif self._response_ended:
            outcome = Outcome.COMPLETED
        elif self._route is not None and not self._response_begun and self._response_mode == _NONE:
            outcome = Outcome.ROUTED
        else:
            outcome = Outcome.ABORTED
        return Completion(self._request_id, self._route, outcome, self._served)

    def _configure(self, message: pb.ProcessingRequest) -> _Mode:
        """Takes the modes from the first message.

        Gateways that do not send `protocol_config` are served as DUPLEX, because it is the one mode the endpoint
        picker protocol defines and the one that reference pickers assume.
        """
        if not message.HasField("protocol_config"):
            return _Mode.DUPLEX
        self._response_mode = message.protocol_config.response_body_mode
        return _MODES.get(message.protocol_config.request_body_mode, _Mode.HEADERS_ONLY)

    def _read_subset(self, message: pb.ProcessingRequest) -> None:
        if message.HasField("metadata_context"):
            subset = read_subset(message.metadata_context)
            self._subset = self._subset if subset is None else subset

    def _request_headers(self, message: pb.HttpHeaders) -> Step:
        if self._phase is not _Phase.HEADERS:
            raise ExtProcError("out_of_order", "request_headers came twice on one stream")
        self._phase = _Phase.BODY
        self._headers = read_headers(message.headers)
        self._request_id = self._headers.get(REQUEST_ID_HEADER, "")
        if not self._request_id:
            self._request_id = self._generated_id = self._new_request_id()
        if message.end_of_stream or self._mode is _Mode.HEADERS_ONLY:
            return self._ask(_Answer.HEADERS)
        return _REQUEST_HEADERS_UNCHANGED if self._mode is _Mode.BUFFERED else _NOTHING

    def _request_body(self, message: pb.HttpBody) -> Step:
        if self._phase is _Phase.ANSWERED and self._mode is _Mode.HEADERS_ONLY:
            return _REQUEST_BODY_UNCHANGED
        self._expect_body("request_body")
        body = message.body  # each access copies
        self._size_bytes += len(body)
        if self._size_bytes > self._max_body_bytes:
            self._chunks.clear()
            text = (
                f"request body is larger than {self._max_body_bytes} bytes, the limit of this endpoint picker"
            )
            return self.routed(Refusal(RefusalCode.PAYLOAD_TOO_LARGE, text))
        if body:
            self._chunks.append(body)
        if self._mode is _Mode.BUFFERED:
            return self._ask(_Answer.BODY)
        return self._ask(_Answer.HEADERS_BODY) if message.end_of_stream else _NOTHING

    def _request_trailers(self) -> Step:
        if self._phase is _Phase.ANSWERED and self._mode is not _Mode.DUPLEX:
            return _REQUEST_TRAILERS_UNCHANGED
        self._expect_body("request_trailers")
        return self._ask(_Answer.TRAILERS if self._mode is _Mode.BUFFERED else _Answer.HEADERS_BODY_TRAILERS)

    def _expect_body(self, kind: str) -> None:
        if self._phase is _Phase.HEADERS:
            raise ExtProcError(
                "out_of_order",
                f"{kind} came before request_headers; set processing_mode.request_header_mode to SEND in Envoy's "
                "ext_proc filter",
            )
        if self._phase is not _Phase.BODY:
            raise ExtProcError("out_of_order", f"{kind} came after the end of the request")

    def _ask(self, answer: _Answer) -> Step:
        self._phase = _Phase.ROUTING
        self._answer = answer
        self._body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        headers, self._headers = self._headers, {}
        return Step(
            route=RoutingRequest(
                path=headers.get(":path", ""),
                body=self._body,
                has_body=bool(self._body),
                headers=headers,
                subset=self._subset,
                request_id=self._request_id,
            )
        )

    def _replies(self, destination: str) -> tuple[bytes, ...]:
        match self._answer:
            case _Answer.HEADERS:
                return (answers.destination_on_headers(destination, self._generated_id),)
            case _Answer.HEADERS_BODY:
                return (
                    answers.destination_on_headers(destination, self._generated_id),
                    *answers.request_body_chunks(self._body, end_of_stream=True),
                )
            case _Answer.HEADERS_BODY_TRAILERS:
                return (
                    answers.destination_on_headers(destination, self._generated_id),
                    *answers.request_body_chunks(self._body, end_of_stream=False),
                    answers.REQUEST_TRAILERS_UNCHANGED,
                )
            case _Answer.BODY:
                return (answers.destination_on_body(destination, self._generated_id),)
            case _Answer.TRAILERS:
                return (answers.destination_on_trailers(destination),)

    def _response_headers(self, message: pb.HttpHeaders) -> Step:
        self._response_begun = True
        self._response_ended = message.end_of_stream or self._response_mode == _NONE
        if self._route is None:
            return _RESPONSE_HEADERS_UNCHANGED
        headers = read_headers(message.headers)
        self._is_event_stream = headers.get(":status") == "200" and is_event_stream(headers)
        if self._route.response_headers:
            return Step(replies=(answers.response_headers_with(self._route.response_headers),))
        return _RESPONSE_HEADERS_UNCHANGED

    def _response_body(self, message: pb.HttpBody) -> Step:
        self._response_begun = True
        end = self._response_ended = message.end_of_stream
        body = message.body
        begun = self._begun() if body and not self._body_begun else None
        if self._response_mode == _FULL_DUPLEX_STREAMED:
            return Step(replies=(answers.response_body_chunk(body, end_of_stream=end),), begun=begun)
        return (
            Step(replies=(answers.RESPONSE_BODY_UNCHANGED,), begun=begun)
            if begun
            else _RESPONSE_BODY_UNCHANGED
        )

    def _begun(self) -> AnswerBegun | None:
        self._body_begun = True
        if self._route is None:
            return None
        is_first_token = self._is_event_stream and self._response_mode in _SHOWN_AS_IT_COMES
        return AnswerBegun(self._route, is_first_token, self._served)
