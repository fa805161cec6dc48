"""`grpc.health.v1.Health`, for probes of Kubernetes and health checks of Envoy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

HEALTH_SERVICE = "grpc.health.v1.Health"
EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
LIVENESS = "liveness"

_messages: Any = health_pb2
"""List is newer than the oldest supported library, and the type stubs lack its messages."""

ELECTED = ("", LIVENESS, "readiness", EXT_PROC_SERVICE)
"""Names that exist if replicas elect a leader."""

_LISTED = (*ELECTED, "inference-extension")
"""Names that charts and gateways query."""


class HealthService:
    """Readiness of the process, for every listener with `handler()`.

    `liveness` is SERVING as long as the process responds. Every other name, also an unknown one, returns readiness:
    charts probe different names for one and for several replicas, and a probe of an unknown service must not restart
    a good process. If replicas elect a leader, only the names of `ELECTED` return readiness, and any other is
    SERVICE_UNKNOWN. Source: the reference, in both.

    Use it from the event loop's thread only.

    Args:
        elects: whether readiness depends on being the leader of several replicas.

    Attributes:
        is_used: whether a gateway has checked: it sends requests here as long as the status is SERVING.
    """

    def __init__(self, *, ready: bool = False, elects: bool = False) -> None:
        self.is_used = False
        self._ready, self._elects = ready, elects
        self._changed = asyncio.Event()
        self._n_closings = 0

    @property
    def ready(self) -> bool:
        """Whether requests should be sent here; every watcher is notified of a change."""
        return self._ready

    @ready.setter
    def ready(self, ready: bool) -> None:
        self._ready = ready
        self._wake_watchers()

    def end_watches(self) -> None:
        """End the open Watch calls, which would otherwise delay a stop for its whole grace period."""
        self._n_closings += 1
        self._wake_watchers()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service, for a server."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Check": grpc.unary_unary_rpc_method_handler(
                self._check, HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(
                self._watch, HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
            ),
        }
        if hasattr(_messages, "HealthListResponse"):
            methods["List"] = grpc.unary_unary_rpc_method_handler(
                self._list,
                _messages.HealthListRequest.FromString,
                _messages.HealthListResponse.SerializeToString,
            )
        return grpc.method_handlers_generic_handler(HEALTH_SERVICE, methods)

    def _wake_watchers(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _status(self, service: str) -> HealthCheckResponse:
        if self._elects and service not in ELECTED:
            return HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        serving = self._ready or service == LIVENESS
        return HealthCheckResponse(
            status=HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
        )

    async def _check(self, request: HealthCheckRequest, _context: object) -> HealthCheckResponse:
        self.is_used |= request.service == EXT_PROC_SERVICE
        return self._status(request.service)

    async def _list(self, _request: object, _context: object) -> object:
        listed = ELECTED if self._elects else _LISTED
        return _messages.HealthListResponse(statuses={service: self._status(service) for service in listed})

    async def _watch(
        self, request: HealthCheckRequest, _context: object
    ) -> AsyncIterator[HealthCheckResponse]:
        self.is_used |= request.service == EXT_PROC_SERVICE
        n_closings = self._n_closings
        sent: HealthCheckResponse | None = None
        while self._n_closings == n_closings:
            changed = self._changed
            status = self._status(request.service)
            if status != sent:
                sent = status
                yield status
            await changed.wait()
