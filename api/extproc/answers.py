"""Serialized ProcessingResponses: everything this picker says to Envoy."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.struct_pb2 import Struct, Value

from ..errors import refusal_text, status_of
from ..routing import Refusal
from . import ext_proc_pb2 as pb
from .headers import DESTINATION_HEADER, LB_NAMESPACE, REQUEST_ID_HEADER

MAX_CHUNK_BYTES = 62_000
"""Largest piece of a body in one message; Envoy advises at most 64 KB, the reference picker sends this."""

DROPPED_REASON_HEADER = "x-llm-d-request-dropped-reason"

_OVERWRITE = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD

REQUEST_HEADERS_UNCHANGED = pb.ProcessingResponse(request_headers=pb.HeadersResponse()).SerializeToString()
REQUEST_BODY_UNCHANGED = pb.ProcessingResponse(request_body=pb.BodyResponse()).SerializeToString()
REQUEST_TRAILERS_UNCHANGED = pb.ProcessingResponse(request_trailers=pb.TrailersResponse()).SerializeToString()
RESPONSE_HEADERS_UNCHANGED = pb.ProcessingResponse(response_headers=pb.HeadersResponse()).SerializeToString()
RESPONSE_BODY_UNCHANGED = pb.ProcessingResponse(response_body=pb.BodyResponse()).SerializeToString()
RESPONSE_TRAILERS_UNCHANGED = pb.ProcessingResponse(
    response_trailers=pb.TrailersResponse()
).SerializeToString()


def destination_on_headers(destination: str, new_request_id: str | None) -> bytes:
    """The request's headers go on with the destination, and with a request id where the client sent none."""
    return pb.ProcessingResponse(
        request_headers=pb.HeadersResponse(response=_with_destination(destination, new_request_id)),
        dynamic_metadata=_metadata(destination),
    ).SerializeToString()


def destination_on_body(destination: str, new_request_id: str | None) -> bytes:
    """The same as the answer to a BUFFERED body, which itself stays as it is."""
    return pb.ProcessingResponse(
        request_body=pb.BodyResponse(response=_with_destination(destination, new_request_id)),
        dynamic_metadata=_metadata(destination),
    ).SerializeToString()


def destination_on_trailers(destination: str) -> bytes:
    """The same as the answer to trailers, where headers can no longer be changed and metadata alone routes."""
    return pb.ProcessingResponse(
        request_trailers=pb.TrailersResponse(), dynamic_metadata=_metadata(destination)
    ).SerializeToString()


def request_body_chunks(body: bytes, *, end_of_stream: bool) -> list[bytes]:
    """The request body given back to Envoy; only the last chunk ends the stream, and only if `end_of_stream`."""
    if not body:
        return [_request_chunk(b"", end_of_stream=True)] if end_of_stream else []
    starts = range(0, len(body), MAX_CHUNK_BYTES)
    return [
        _request_chunk(
            body[start : start + MAX_CHUNK_BYTES], end_of_stream=end_of_stream and start == starts[-1]
        )
        for start in starts
    ]


def response_headers_with(headers: Mapping[str, str]) -> bytes:
    """The response's headers go on with some set."""
    mutation = pb.HeaderMutation(set_headers=[_set(name, value) for name, value in headers.items()])
    return pb.ProcessingResponse(
        response_headers=pb.HeadersResponse(response=pb.CommonResponse(header_mutation=mutation))
    ).SerializeToString()


def response_body_chunk(body: bytes, *, end_of_stream: bool) -> bytes:
    """One chunk of the response given back to Envoy."""
    return pb.ProcessingResponse(
        response_body=pb.BodyResponse(response=_streamed(body, end_of_stream=end_of_stream))
    ).SerializeToString()


def refused(refusal: Refusal) -> bytes:
    """The answer Envoy gives the client in place of an engine's."""
    reason = refusal.dropped_reason
    return pb.ProcessingResponse(
        immediate_response=pb.ImmediateResponse(
            status=pb.HttpStatus(code=status_of(refusal.code).http),
            headers=pb.HeaderMutation(set_headers=[_set(DROPPED_REASON_HEADER, reason)]) if reason else None,
            body=refusal_text(refusal).encode(),
        )
    ).SerializeToString()


def _with_destination(destination: str, new_request_id: str | None) -> pb.CommonResponse:
    headers = [_set(DESTINATION_HEADER, destination)]
    if new_request_id is not None:
        headers.append(_set(REQUEST_ID_HEADER, new_request_id))
    return pb.CommonResponse(header_mutation=pb.HeaderMutation(set_headers=headers), clear_route_cache=True)


def _set(name: str, value: str) -> pb.HeaderValueOption:
    return pb.HeaderValueOption(
        header=pb.HeaderValue(key=name, raw_value=value.encode()), append_action=_OVERWRITE
    )


def _metadata(destination: str) -> Struct:
    picked = Struct(fields={DESTINATION_HEADER: Value(string_value=destination)})
    return Struct(fields={LB_NAMESPACE: Value(struct_value=picked)})


def _request_chunk(body: bytes, *, end_of_stream: bool) -> bytes:
    return pb.ProcessingResponse(
        request_body=pb.BodyResponse(response=_streamed(body, end_of_stream=end_of_stream))
    ).SerializeToString()


def _streamed(body: bytes, *, end_of_stream: bool) -> pb.CommonResponse:
    chunk = pb.StreamedBodyResponse(body=body, end_of_stream=end_of_stream)
    return pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=chunk))
