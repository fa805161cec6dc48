"""Errors of the simulated fleet and the demo.

KVAtlasError
└── SimError
    ├── EngineStoppedError   a simulated engine stopped while it had a request
    ├── KvLoadError          KV state that an engine waited for did not arrive
    ├── RequestRefusedError  a request that a real server would reject
    ├── DemoError            a part of the demo did not start, or exited
    ├── CompareError         options of a comparison that cannot be used
    ├── ListenError          an address on which no server can listen
    ├── OutputError          a file or folder for results that cannot be written
    ├── TraceError           a trace that cannot be replayed
    └── ReplayError          replay options that cannot be used
"""

from __future__ import annotations

from ..events.errors import KVAtlasError


class SimError(KVAtlasError):
    """A failure of the simulation."""


class EngineStoppedError(SimError):
    """An engine that stopped before it completed a request."""


class KvLoadError(SimError):
    """KV state that did not arrive from another server."""


class RequestRefusedError(SimError):
    """A request that a real server would reject.

    Attributes:
        status: HTTP status of the response.
        kind: the response's `error.type`, as in vLLM.
        param: the invalid request field, or None.
    """

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param


class DemoError(SimError):
    """A part of the demo that did not start, or exited."""


class CompareError(SimError):
    """Options of a comparison that cannot be used."""


class ListenError(SimError):
    """An address on which no simulated server can listen, or more servers than this process may have sockets for."""


class OutputError(SimError):
    """A file or folder for results that cannot be written; the message names the option."""


class TraceError(SimError):
    """A trace that cannot be replayed; the message says where and why."""


class ReplayError(SimError):
    """Replay options that cannot be used."""
