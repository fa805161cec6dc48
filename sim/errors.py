"""Errors of the simulated fleet and the demo.

KVAtlasError
└── SimError
    ├── EngineStoppedError   a simulated engine ended while a request was in it
    ├── RequestRefusedError  a request that a real server would answer with a 4xx status
    ├── DemoError            a part of the demo did not start, or died
    ├── TraceError           a trace that cannot be replayed
    └── ReplayError          a replay that was asked for and cannot be done
"""

from __future__ import annotations

from ..events.errors import KVAtlasError


class SimError(KVAtlasError):
    """Something is wrong in the simulation."""


class EngineStoppedError(SimError):
    """The engine ended before it answered the request."""


class RequestRefusedError(SimError):
    """A request that a real server would refuse.

    Attributes:
        status: HTTP status of the answer.
        kind: the answer's `error.type`, as vLLM names it.
        param: request field at fault, or None.
    """

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param


class DemoError(SimError):
    """A part of the demo did not start, or died."""


class TraceError(SimError):
    """A trace that cannot be replayed; says where and why."""


class ReplayError(SimError):
    """A replay that cannot be done as it was asked for."""
