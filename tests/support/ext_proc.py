"""Builders of ext-proc messages as Envoy sends them, and readers of the picker's replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.struct_pb2 import ListValue, Struct, Value

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.dialect import Dialect, Proposal
from kvatlas.api.extproc.intake import Intake
from kvatlas.api.extproc.machine import ExtProcMachine
from kvatlas.api.extproc.messages import read_message
from kvatlas.api.extproc.replies import LongReply, Replies
from kvatlas.api.extproc.stream import Step, StreamOptions
from kvatlas.routing.outcome import Completion, ResponseBegun, ResponseNamed
from kvatlas.routing.router import (
    ModelRewrite,
    Overload,
    Route,
    Router,
    RoutingRequest,
    RoutingResult,
)
from kvatlas.scorers.core.model import Candidate
from kvatlas.tokenization.eventual import Eventual, Known
from support.rating import routed_to

DUPLEX = pb.ProtocolConfiguration(
    request_body_mode=pb.ProcessingMode.FULL_DUPLEX_STREAMED,
    response_body_mode=pb.ProcessingMode.FULL_DUPLEX_STREAMED,
)
BUFFERED = pb.ProtocolConfiguration(
    request_body_mode=pb.ProcessingMode.BUFFERED, response_body_mode=pb.ProcessingMode.NONE
)

CHAT_HEADERS = (
    (":method", "POST"),
    (":path", "/v1/chat/completions"),
    ("content-type", "application/json"),
    ("x-request-id", "id-1"),
)


def header_map(headers: Sequence[tuple[str, str]]) -> pb.HeaderMap:
    """Return headers with their values in `raw_value`, as Envoy sends them."""
    return pb.HeaderMap(headers=[pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in headers])


def request_headers(
    *more: tuple[str, str],
    end: bool = False,
    config: pb.ProtocolConfiguration | None = None,
    metadata: pb.Metadata | None = None,
) -> pb.ProcessingRequest:
    """Return the first message of a stream; `more` are headers beside those of a chat request."""
    return pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(headers=header_map((*CHAT_HEADERS, *more)), end_of_stream=end),
        protocol_config=config,
        metadata_context=metadata,
    )


def request_body(
    body: bytes = b"", *, end: bool = False, metadata: pb.Metadata | None = None
) -> pb.ProcessingRequest:
    """Return one chunk of the request."""
    return pb.ProcessingRequest(
        request_body=pb.HttpBody(body=body, end_of_stream=end), metadata_context=metadata
    )


def request_trailers() -> pb.ProcessingRequest:
    """Return the end of a request with trailers."""
    return pb.ProcessingRequest(request_trailers=pb.HttpTrailers())


def response_headers(
    *more: tuple[str, str],
    status: str = "200",
    end: bool = False,
    config: pb.ProtocolConfiguration | None = None,
    metadata: pb.Metadata | None = None,
) -> pb.ProcessingRequest:
    """Return the start of an engine's response; `more` are headers beside its status."""
    headers = header_map([(":status", status), *more])
    return pb.ProcessingRequest(
        response_headers=pb.HttpHeaders(headers=headers, end_of_stream=end),
        protocol_config=config,
        metadata_context=metadata,
    )


def response_body(body: bytes = b"", *, end: bool = False) -> pb.ProcessingRequest:
    """Return one chunk of the response."""
    return pb.ProcessingRequest(response_body=pb.HttpBody(body=body, end_of_stream=end))


def response_trailers() -> pb.ProcessingRequest:
    """Return the end of a response with trailers."""
    return pb.ProcessingRequest(response_trailers=pb.HttpTrailers())


def metadata_of(namespace: str, key: str, value: Value) -> pb.Metadata:
    """Return dynamic metadata with one value."""
    return pb.Metadata(filter_metadata={namespace: Struct(fields={key: value})})


def subset_hint(value: Value | Sequence[str]) -> pb.Metadata:
    """Return the subset hint, from any protobuf value or as the protocol's list of strings."""
    if not isinstance(value, Value):
        value = Value(list_value=ListValue(values=[Value(string_value=address) for address in value]))
    return metadata_of("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", value)


def make_route(*addresses: str, rewrite: ModelRewrite | None = None) -> Route:
    """Return a route to `addresses` with an empty decision."""
    decision = routed_to(*(Candidate(address, address) for address in addresses))
    return Route(addresses, decision, rewrite=rewrite)


class FixedRouter(Router):
    """Returns one result for every request, and keeps the requests."""

    def __init__(self, answer: RoutingResult) -> None:
        self.answer = answer
        self.requests: list[RoutingRequest] = []

    def route(self, request: RoutingRequest) -> Eventual[RoutingResult]:
        """Return the fixed result at once."""
        self.requests.append(request)
        return Known(self.answer)


def kind_of(response: pb.ProcessingResponse) -> str:
    """Return the kind of a reply, as the protocol names it."""
    kind = response.WhichOneof("response")
    assert kind is not None
    return kind


def set_headers(response: pb.ProcessingResponse) -> dict[str, str]:
    """Return the headers that a reply sets."""
    return {
        option.header.key: option.header.raw_value.decode()
        for option in _common(response).header_mutation.set_headers
    }


def removed_headers(response: pb.ProcessingResponse) -> list[str]:
    """Return the request headers that a reply removes."""
    return list(_common(response).header_mutation.remove_headers)


def metadata_destination(response: pb.ProcessingResponse) -> str:
    """Return the destination in a reply's dynamic metadata, empty without one."""
    namespace = response.dynamic_metadata.fields["envoy.lb"].struct_value
    return namespace.fields["x-gateway-destination-endpoint"].string_value


def messages(replies: Replies) -> list[bytes]:
    """Return the messages of replies, the long ones too."""
    return [
        message
        for reply in replies
        for message in (reply.messages if isinstance(reply, LongReply) else (reply,))
    ]


def streamed(responses: Sequence[pb.ProcessingResponse], kind: str) -> list[tuple[bytes, bool]]:
    """Return (body, end of stream) of every streamed chunk among the replies of one kind."""
    chunks: list[tuple[bytes, bool]] = []
    for response in responses:
        if kind_of(response) == kind:
            common = response.request_body if kind == "request_body" else response.response_body
            mutation = common.response.body_mutation
            assert mutation.HasField("streamed_response"), response
            chunks.append((mutation.streamed_response.body, mutation.streamed_response.end_of_stream))
    return chunks


def _common(response: pb.ProcessingResponse) -> pb.CommonResponse:
    match response.WhichOneof("response"):
        case "request_headers":
            return response.request_headers.response
        case "request_body":
            return response.request_body.response
        case "response_headers":
            return response.response_headers.response
        case kind:
            raise AssertionError(f"{kind} carries no headers")


class MachineDriver:
    """Drives one machine message by message; every request is routed at once, with the result `answer`.

    `now` is the time of the next message, for tests to move; `settings` are further ones of `StreamOptions`.
    """

    def __init__(
        self,
        answer: RoutingResult,
        *,
        request_id: str = "generated-id",
        max_body_bytes: int = 1_000_000,
        intake: Intake | None = None,
        dialect: Dialect | None = None,
        read_usage: bool = True,
        **settings: Any,
    ) -> None:
        self.intake = intake or Intake()
        self.revoked: list[Overload] = []
        self.machine = ExtProcMachine(
            StreamOptions(
                new_request_id=lambda: request_id,
                dialect=dialect or Proposal(),
                intake=self.intake,
                max_body_bytes=max_body_bytes,
                read_usage=read_usage,
                **settings,
            ),
            self.revoked.append,
        )
        self.answer = answer
        self.now = 0.0
        self.requests: list[RoutingRequest] = []
        self.replies: list[pb.ProcessingResponse] = []
        self.begun: list[ResponseBegun] = []
        self.named: list[ResponseNamed] = []
        self.completions: list[Completion] = []
        self.ended = False

    def send(self, *messages: pb.ProcessingRequest) -> list[pb.ProcessingResponse]:
        """Send `messages`, and return the replies."""
        received: list[pb.ProcessingResponse] = []
        for message in messages:
            step = self.machine.receive(read_message(message.SerializeToString()), now=self.now)
            received += self._carried_out(step)
        return received

    def carry_out_revocation(self) -> list[pb.ProcessingResponse]:
        """Do what the intake called for, and return the replies."""
        return self._carried_out(self.machine.revoked(self.revoked.pop()))

    def _carried_out(self, step: Step) -> list[pb.ProcessingResponse]:
        if step.begun is not None:
            self.begun.append(step.begun)
        if step.named is not None:
            self.named.append(step.named)
        if step.route is not None:
            assert not step.replies
            self.requests.append(step.route)
            step = self.machine.routed(self.answer, now=self.now)
        if step.completion is not None:
            self.completions.append(step.completion)
        received = [pb.ProcessingResponse.FromString(reply) for reply in messages(step.replies)]
        self.ended = step.end
        self.replies.extend(received)
        return received

    def close(self) -> Completion:
        """End the stream, and return its one completion, reported before or now."""
        last = self.machine.close(now=self.now)
        if last is not None:
            self.completions.append(last)
        (completion,) = self.completions
        return completion
