"""Expected replies of a picker, written by the protocol and independent of the picker's own builders."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from google.protobuf.struct_pb2 import Struct, Value

from kvatlas.api.extproc import ext_proc_pb2 as pb

CHUNK_BYTES = 62_000
ANY_UUID = "any UUID"
"""Stands for any version 4 UUID as a header's value."""
AND_MORE = "..."
"""Ends a refusal with any further text."""

_OVERWRITE = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

Replies = tuple[pb.ProcessingResponse, ...]


def routed(
    destination: str, headers: Mapping[str, str] | None = None, *, removed: Sequence[str] = ()
) -> pb.ProcessingResponse:
    """Return the reply to request headers: the destination, and further headers set or removed."""
    return pb.ProcessingResponse(
        request_headers=pb.HeadersResponse(response=_common(destination, headers or {}, removed)),
        dynamic_metadata=_metadata(destination),
    )


def routed_body(
    destination: str,
    headers: Mapping[str, str] | None = None,
    *,
    body: bytes | None = None,
) -> pb.ProcessingResponse:
    """Return the same as reply to a BUFFERED body, which may be replaced."""
    common = _common(destination, headers or {}, ())
    if body is not None:
        common.body_mutation.body = body
    return pb.ProcessingResponse(
        request_body=pb.BodyResponse(response=common), dynamic_metadata=_metadata(destination)
    )


def request_chunks(body: bytes, *, end: bool = True) -> Replies:
    """Return the request's body in chunks."""
    return tuple(pb.ProcessingResponse(request_body=_streamed(*each)) for each in _pieces(body, end))


def response_chunks(body: bytes, *, end: bool = True) -> Replies:
    """Return the response's body in chunks."""
    return tuple(pb.ProcessingResponse(response_body=_streamed(*each)) for each in _pieces(body, end))


def response_headers_with(headers: Mapping[str, str]) -> pb.ProcessingResponse:
    """Return the reply to response headers, with headers set."""
    mutation = pb.HeaderMutation(set_headers=_options(headers))
    return pb.ProcessingResponse(
        response_headers=pb.HeadersResponse(response=pb.CommonResponse(header_mutation=mutation))
    )


def refused(status: int, text: str, reason: str | None = None) -> pb.ProcessingResponse:
    """Return an immediate response; `text` may end in `AND_MORE`."""
    headers = _options({"x-llm-d-request-dropped-reason": reason}) if reason else None
    return pb.ProcessingResponse(
        immediate_response=pb.ImmediateResponse(
            status=pb.HttpStatus(code=status),
            headers=pb.HeaderMutation(set_headers=headers) if headers else None,
            body=text.encode(),
        )
    )


def headers_without(*names: str) -> pb.ProcessingResponse:
    """Return the reply to headers before the body of a buffered request: it removes these and the client's destination."""
    mutation = pb.HeaderMutation(remove_headers=["x-gateway-destination-endpoint", *names])
    return pb.ProcessingResponse(
        request_headers=pb.HeadersResponse(response=pb.CommonResponse(header_mutation=mutation))
    )


REQUEST_BODY_PASSES = pb.ProcessingResponse(request_body=pb.BodyResponse())
REQUEST_TRAILERS_PASS = pb.ProcessingResponse(request_trailers=pb.TrailersResponse())
RESPONSE_HEADERS_PASS = pb.ProcessingResponse(response_headers=pb.HeadersResponse())
RESPONSE_BODY_PASSES = pb.ProcessingResponse(response_body=pb.BodyResponse())
RESPONSE_TRAILERS_PASS = pb.ProcessingResponse(response_trailers=pb.TrailersResponse())


def comparable(received: pb.ProcessingResponse, expected: pb.ProcessingResponse) -> pb.ProcessingResponse:
    """Return what was received, with parts that `expected` leaves open made equal to it."""
    like = pb.ProcessingResponse()
    like.CopyFrom(received)
    for option in (
        like.request_headers.response.header_mutation.set_headers
        if received.HasField("request_headers")
        else ()
    ):
        if option.header.key == "x-request-id" and _UUID.fullmatch(option.header.raw_value):
            option.header.raw_value = ANY_UUID.encode()
    text = expected.immediate_response.body
    if text.endswith(AND_MORE.encode()) and received.immediate_response.body.startswith(
        text.removesuffix(AND_MORE.encode())
    ):
        like.immediate_response.body = text
    return like


def _common(destination: str, headers: Mapping[str, str], removed: Sequence[str]) -> pb.CommonResponse:
    options = _options({"x-gateway-destination-endpoint": destination, **headers})
    mutation = pb.HeaderMutation(set_headers=options, remove_headers=removed)
    return pb.CommonResponse(header_mutation=mutation, clear_route_cache=True)


def _options(headers: Mapping[str, str]) -> list[pb.HeaderValueOption]:
    return [
        pb.HeaderValueOption(
            header=pb.HeaderValue(key=name, raw_value=value.encode()), append_action=_OVERWRITE
        )
        for name, value in headers.items()
    ]


def _metadata(destination: str) -> Struct:
    picked = Struct(fields={"x-gateway-destination-endpoint": Value(string_value=destination)})
    return Struct(fields={"envoy.lb": Value(struct_value=picked)})


def _pieces(body: bytes, end: bool) -> list[tuple[bytes, bool]]:
    starts = range(0, max(len(body), 1), CHUNK_BYTES)
    return [(body[start : start + CHUNK_BYTES], end and start == starts[-1]) for start in starts]


def _streamed(body: bytes, end: bool) -> pb.BodyResponse:
    chunk = pb.StreamedBodyResponse(body=body, end_of_stream=end)
    return pb.BodyResponse(response=pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=chunk)))
