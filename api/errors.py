"""Errors of the process, and the one table of HTTP and gRPC status codes.

KVAtlasError
└── ApiError
    ├── AuthError        the token that callers must bring cannot be read
    ├── AskError         a running process cannot be asked
    ├── AlreadyRegisteredError  an instance or rank is there already, as something else
    ├── NotRegisteredError      no such instance or rank was registered
    ├── ConfigRefusedError      a configuration cannot be put in force while the process runs
    ├── ListenError      an address cannot be listened on
    ├── PluginLoadError  another package's plugin cannot be used
    ├── RecorderError    the secret of recorded block ids cannot be used
    ├── SchedulingError  the configuration's plugins and profiles make no profile
    ├── TlsError         the certificate of a listener cannot be used
    └── ExtProcError     an ext-proc stream says what the protocol does not allow
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import grpc

from ..configs.errors import Problem
from ..events.errors import KVAtlasError
from .routing import Refusal, RefusalCode


class ApiError(KVAtlasError):
    """Something is wrong in the process around the index."""


class AuthError(ApiError):
    """The token that callers must bring cannot be read."""


class AskError(ApiError):
    """A running process cannot be asked: nobody answers, or something else than kvatlas does."""


class AlreadyRegisteredError(ApiError):
    """An instance or rank is there already, as something else."""


class NotRegisteredError(ApiError):
    """No such instance or rank was registered."""


class ConfigRefusedError(ApiError):
    """A configuration cannot be put in force while the process runs; the one before stays."""


class ListenError(ApiError):
    """An address cannot be listened on."""


class PluginLoadError(ApiError):
    """Another package's plugin cannot be used."""


class RecorderError(ApiError):
    """The secret of recorded block ids cannot be used."""


class SchedulingError(ApiError):
    """The configuration's plugins and profiles make no profile; `problems` has every reason."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)


class TlsError(ApiError):
    """The certificate of a listener cannot be used."""


class ExtProcError(ApiError):
    """A peer's ext-proc stream cannot be served.

    `reason` is a short bounded word for counters: `not_protobuf` or `out_of_order`.
    """

    grpc_status: ClassVar[grpc.StatusCode] = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Status(NamedTuple):
    """How one refusal code reads in each protocol."""

    http: int
    grpc: grpc.StatusCode


_STATUS: Mapping[RefusalCode, Status] = {
    RefusalCode.BAD_REQUEST: Status(400, grpc.StatusCode.INVALID_ARGUMENT),
    RefusalCode.PRECONDITION_FAILED: Status(412, grpc.StatusCode.FAILED_PRECONDITION),
    RefusalCode.PAYLOAD_TOO_LARGE: Status(413, grpc.StatusCode.RESOURCE_EXHAUSTED),
    RefusalCode.RESOURCE_EXHAUSTED: Status(429, grpc.StatusCode.RESOURCE_EXHAUSTED),
    RefusalCode.INTERNAL: Status(500, grpc.StatusCode.INTERNAL),
    RefusalCode.SERVICE_UNAVAILABLE: Status(503, grpc.StatusCode.UNAVAILABLE),
}


def status_of(code: RefusalCode) -> Status:
    """HTTP and gRPC status of a refusal."""
    return _STATUS[code]


def refusal_text(refusal: Refusal) -> str:
    """What the client reads, in the form endpoint pickers use: `inference error: <Code> - <message>`."""
    return f"inference error: {refusal.code.value} - {refusal.message}"


def place_of(error: Exception) -> str:
    """Where an error was raised, for the log: without its text, which may quote the prompt."""
    return "".join(traceback.format_tb(error.__traceback__))
