"""Errors of the doors, and the one table of HTTP and gRPC status codes.

KVAtlasError
└── ApiError
    ├── AuthError     the token that callers must send cannot be read
    ├── ListenError   an address cannot be listened on
    ├── TlsError      the certificate of a listener cannot be used
    ├── TracingError  spans cannot be sent as the environment says
    └── ExtProcError  an ext-proc stream breaks the protocol
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import grpc

from ..events.errors import KVAtlasError
from ..routing.router import Refusal, RefusalCode


class ApiError(KVAtlasError):
    """A door cannot be opened, or a peer breaks its protocol."""


class AuthError(ApiError):
    """The token that callers must send cannot be read."""


class ListenError(ApiError):
    """An address cannot be listened on."""


class TlsError(ApiError):
    """The certificate of a listener cannot be used."""


class TracingError(ApiError):
    """Spans cannot be sent as the environment says."""


class ExtProcError(ApiError):
    """A peer's ext-proc stream cannot be served.

    `reason` is a short bounded word for counters: `not_protobuf`, `too_large` or `out_of_order`.
    """

    grpc_status: ClassVar[grpc.StatusCode] = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Status(NamedTuple):
    """Status of one refusal code in each protocol."""

    http: int
    grpc: grpc.StatusCode


_STATUS: Mapping[RefusalCode, Status] = {
    RefusalCode.BAD_REQUEST: Status(400, grpc.StatusCode.INVALID_ARGUMENT),
    RefusalCode.REQUEST_TIMEOUT: Status(408, grpc.StatusCode.DEADLINE_EXCEEDED),
    RefusalCode.PRECONDITION_FAILED: Status(412, grpc.StatusCode.FAILED_PRECONDITION),
    RefusalCode.PAYLOAD_TOO_LARGE: Status(413, grpc.StatusCode.RESOURCE_EXHAUSTED),
    RefusalCode.RESOURCE_EXHAUSTED: Status(429, grpc.StatusCode.RESOURCE_EXHAUSTED),
    RefusalCode.HEADERS_TOO_LARGE: Status(431, grpc.StatusCode.INVALID_ARGUMENT),
    RefusalCode.INTERNAL: Status(500, grpc.StatusCode.INTERNAL),
    RefusalCode.SERVICE_UNAVAILABLE: Status(503, grpc.StatusCode.UNAVAILABLE),
}


def status_of(code: RefusalCode) -> Status:
    """Return the HTTP and gRPC status of a refusal."""
    return _STATUS[code]


_HTTP_OF_GRPC: Mapping[str, int] = {
    "0": 200, "1": 499, "3": 400, "4": 504, "5": 404, "6": 409, "7": 403, "8": 429, "9": 400, "10": 409, "11": 400, "12": 501,
    "14": 503, "16": 401,
}  # fmt: skip


def http_status(grpc_status: str) -> int:
    """Return the HTTP status that stands for the header `grpc-status`; 500 for one that has no other."""
    return _HTTP_OF_GRPC.get(grpc_status, 500)


def refusal_text(refusal: Refusal) -> str:
    """Return the text for the client, in the form of endpoint pickers: `inference error: <Code> - <message>`."""
    return f"inference error: {refusal.code.value} - {refusal.message}"


def place_of(error: Exception) -> str:
    """Return the traceback of an error for the log, without its text, which may quote the prompt."""
    return "".join(traceback.format_tb(error.__traceback__))
