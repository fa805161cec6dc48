"""The ext-proc server of a configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import grpc
from prometheus_client import CollectorRegistry

from ...configs.listeners import ExtProcConfig
from ...routing.router import Router
from ..http2.context import Limits, Times
from ..http2.metrics import TransportMetrics
from ..tls.certificates import Certificates
from ..tls.mismatches import OnMismatch
from .dialect import DIALECTS
from .health import HealthService
from .intake import Intake
from .metrics import StreamMetrics
from .server import ExtProcServer, message_limit
from .stream import StreamOptions, StreamReports

MAX_THREADS = 8
"""Threads for connections unless configured."""


def make_ext_proc(
    config: ExtProcConfig,
    router: Router,
    health: HealthService,
    registry: CollectorRegistry,
    *,
    services: Mapping[str, grpc.GenericRpcHandler],
    certificates: Certificates | None,
    max_connections: int,
    n_threads: int,
    transport_metrics: TransportMetrics,
    reports: StreamReports,
    on_mismatch: OnMismatch,
) -> ExtProcServer:
    """Return a server that counts how its streams end.

    Args:
        config: limits, dialect and transport.
        router: decides where requests go.
        health: answers health checks on the same port.
        registry: shows the metrics.
        services: see `ExtProcServer`.
        certificates: see `ExtProcServer`.
        max_connections: as configured, or as many as the process has descriptors for.
        n_threads: see `thread_count`.
        transport_metrics: see `ExtProcServer`.
        reports: further callbacks; each is called after its event was counted.
        on_mismatch: see `ExtProcServer`.
    """
    limits = Limits(
        config.max_message_bytes or message_limit(config.max_body_bytes),
        max_connections=max_connections,
        max_streams=config.max_streams,
        # All requests that wait for an answer may be given up at once: their clients had the same time limit.
        max_early_ends=config.max_pending_requests,
        times=Times(gather_s=config.gather),
        n_threads=n_threads,
    )
    intake = Intake(
        max_requests=config.max_pending_requests,
        max_bytes=config.max_held_bytes,
        max_seconds=config.request_timeout,
    )
    return ExtProcServer(
        router,
        health,
        services=services,
        certificates=certificates,
        transport=config.transport,
        options=StreamOptions(
            dialect=DIALECTS[config.compat](),
            intake=intake,
            max_body_bytes=config.max_body_bytes,
            read_usage=config.read_usage,
            use_subset=config.use_subset,
            emit_scores=config.emit_scores,
            max_sent_bytes=config.max_sent_message_bytes,
        ),
        limits=limits,
        transport_metrics=transport_metrics,
        reports=StreamMetrics(registry, intake).counted(reports),
        on_mismatch=on_mismatch,
    )


def thread_count(configured: int | Literal["auto"], *, n_processes: int) -> int:
    """Return the threads for connections: of a process's part of the cores, all but the one that decides."""
    if configured != "auto":
        return configured
    n_cores = len(os.sched_getaffinity(0)) // n_processes
    return max(1, min(MAX_THREADS, n_cores - 1))
