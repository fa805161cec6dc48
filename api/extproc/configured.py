"""The ext-proc server of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import grpc
from prometheus_client import CollectorRegistry

from ...configs.listeners import ExtProcConfig
from ...routing.outcome import Completion, ResponseBegun
from ...routing.router import Router
from ..tls.certificates import Certificates
from .dialect import DIALECTS
from .health import HealthService
from .intake import Intake
from .metrics import StreamMetrics
from .server import ExtProcServer


def make_ext_proc(
    config: ExtProcConfig,
    router: Router,
    health: HealthService,
    registry: CollectorRegistry,
    *,
    services: Mapping[str, grpc.GenericRpcHandler],
    certificates: Certificates | None,
    on_begun: Callable[[ResponseBegun], None],
    on_complete: Callable[[Completion], None],
) -> ExtProcServer:
    """A server that counts what its streams come to.

    Args:
        config: limits and dialect.
        router: decides where requests go.
        health: answered on the same port.
        registry: where its metrics are shown.
        services: as of `ExtProcServer`.
        certificates: as of `ExtProcServer`.
        on_begun: as of `ExtProcServer`.
        on_complete: as of `ExtProcServer`, called after the request was counted.
    """
    intake = Intake(max_requests=config.max_pending_requests, max_bytes=config.max_held_bytes)
    counted = StreamMetrics(registry, intake)

    def completed(completion: Completion) -> None:
        counted.completed(completion)
        on_complete(completion)

    return ExtProcServer(
        router,
        health,
        services=services,
        certificates=certificates,
        intake=intake,
        dialect=DIALECTS[config.compat](),
        max_body_bytes=config.max_body_bytes,
        read_usage=config.read_usage,
        transport=config.transport,
        on_error=counted.failed,
        on_begun=on_begun,
        on_complete=completed,
    )
