"""Messages of a recorded `send` or `respond`, as the recording's gateway sent them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct

from kvatlas.api.extproc import ext_proc_pb2 as pb
from support.ext_proc import header_map
from support.replay.recordings import Json

_USAGE = {"usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}}
PLAIN_ANSWER: Json = {"chunks": [_USAGE]}
"""What the engine answers if the recording does not say."""

_SLICE_BYTES = 16384


@dataclass(frozen=True)
class Sent:
    """What goes out on a stream for one step.

    Attributes:
        messages: in their order.
        headers: name -> value, as sent.
        body: the whole body; empty without one.
        is_ended: whether the last message ends the request or response.
    """

    messages: list[pb.ProcessingRequest]
    headers: Mapping[str, str]
    body: bytes
    is_ended: bool = True
    has_trailers: bool = False
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])


def request(send: Json, request_id: str) -> Sent:
    """Return the messages of a recorded request."""
    body = _bytes(send["body"], send.get("fill")) if send["body"] is not None else b""
    given: dict[str, str | None] = send.get("headers", {})
    has_body = send["body"] is not None or send.get("no_body") is False
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":authority": "gateway.example",
        ":path": send.get("path", "/v1/completions"),
        "content-type": "application/json",
        "x-request-id": request_id,
    }
    if send["body"] is not None:
        headers["content-length"] = str(len(body))
    headers = {name: value for name, value in (headers | given).items() if value is not None}
    mode = pb.ProcessingMode.BodySendMode.Value(send.get("mode", "FULL_DUPLEX_STREAMED"))
    first = pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(headers=header_map(list(headers.items())), end_of_stream=not has_body),
        protocol_config=pb.ProtocolConfiguration(request_body_mode=mode, response_body_mode=mode),
    )
    messages, last = [first], send.get("last", "empty")
    if has_body and not send.get("headers_only"):
        is_buffered = mode == pb.ProcessingMode.BUFFERED
        size, last = (len(body) or 1, "data") if is_buffered else (send.get("slice", _SLICE_BYTES), last)
        messages += (
            pb.ProcessingRequest(request_body=each)
            for each in _pieces([body], size, last, send.get("no_body"))
        )
        if last == "trailers":
            trailers = header_map(list(send["trailers"].items()))
            messages.append(pb.ProcessingRequest(request_trailers=pb.HttpTrailers(trailers=trailers)))
    metadata = {name: _struct(value) for name, value in send.get("metadata", {}).items()}
    for message in messages if metadata else ():
        message.metadata_context.CopyFrom(pb.Metadata(filter_metadata=metadata))
    is_ended = not has_body or (last != "none" and not send.get("headers_only"))
    return Sent(messages, headers, body, is_ended, last == "trailers")


def response(respond: Json) -> Sent:
    """Return the messages of a recorded response."""
    said: list[object] = (PLAIN_ANSWER | respond)["chunks"]
    chunks = [_bytes(each) for each in said]
    last = respond.get("last", "data")
    kind = respond.get("content_type", "application/json")
    headers = {":status": str(respond.get("status", 200)), "content-type": kind, **respond.get("headers", {})}
    is_bare = not chunks and last != "none"
    first = pb.HttpHeaders(headers=header_map(list(headers.items())), end_of_stream=is_bare)
    messages = [] if respond.get("no_headers") else [pb.ProcessingRequest(response_headers=first)]
    messages += (
        pb.ProcessingRequest(response_body=each) for each in (_pieces(chunks, None, last) if chunks else ())
    )
    if last == "trailers":
        trailers = header_map(list(respond.get("trailers", {}).items()))
        messages.append(pb.ProcessingRequest(response_trailers=pb.HttpTrailers(trailers=trailers)))
    return Sent(messages, headers, b"".join(chunks), last != "none", last == "trailers")


def _pieces(
    chunks: list[bytes], size: int | None, last: str, no_body: bool | None = None
) -> Iterator[pb.HttpBody]:
    """Yield the messages of a body: its chunks, cut into pieces of `size` bytes, and an empty one where that ends it."""
    pieces = (
        [chunk[start : start + size] for chunk in chunks for start in range(0, len(chunk), size)]
        if size is not None
        else chunks
    )
    if no_body is False:
        pieces = []
    for number, piece in enumerate(pieces):
        yield pb.HttpBody(body=piece, end_of_stream=last == "data" and number == len(pieces) - 1)
    if last == "empty" or not pieces:
        yield pb.HttpBody(end_of_stream=last in ("empty", "data"))


def _bytes(body: object, fill: Json | None = None) -> bytes:
    text = body if isinstance(body, str) else json.dumps(body)
    if fill is not None:
        text = text.replace("@FILL@", fill["word"] * fill["times"])
    return text.encode()


def _struct(value: Json) -> Struct:
    return ParseDict(value, Struct())
