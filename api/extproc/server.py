"""The ext-proc gRPC service, on the transport that the machine has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import grpc

from ...configs.listeners import ExtProcTransport
from ...routing.router import Router
from ..errors import ListenError
from ..http2.call import OpenCall
from ..http2.context import Account, Limits
from ..http2.metrics import TransportMetrics
from ..http2.native import has_http2, obstacle
from ..tls.certificates import Certificates
from ..tls.mismatches import OnMismatch, ignore
from .call import ExtProcCall
from .grpc_call import call_handlers
from .health import EXT_PROC_SERVICE, HEALTH_SERVICE, HealthService
from .intake import Intake
from .listener import GrpcListener, reflection
from .messages import MAX_MESSAGE_OVERHEAD_BYTES
from .stream import StreamContext, StreamOptions, StreamReports

if TYPE_CHECKING:
    from ..http2.listener import Http2Listener

EXPIRY_SECONDS = 0.5
"""Time between two looks for uploads that take too long."""

_PROCESS = "Process"

_PROBE_BYTES = 4096
"""Longest message of a probe, which carries the name of a service."""

_MAX_PROBES = 64
"""Probes at once on the listener for them: kubelets and load balancers keep a few each."""


class ExtProcServer:
    """Endpoint picker on one port, with gRPC health beside it.

    Args:
        router: decides where requests go.
        health: answers health checks on the same port; the caller sets its readiness.
        services: further gRPC services on the port, by name; reflection describes them.
        certificates: shown to clients; None for plaintext.
        transport: carries the calls; auto: `http2` if the machine supports it, else `grpc`.
        options: settings of the streams.
        limits: of connections and calls; None: the defaults, for the longest body.
        transport_metrics: counts what `limits` did.
        reports: callbacks of the streams.
        on_mismatch: called for each connection whose peer disagrees about TLS; `grpc` does not notice them.

    Raises:
        ListenError: this machine does not support the configured transport.
    """

    def __init__(
        self,
        router: Router,
        health: HealthService,
        *,
        services: Mapping[str, grpc.GenericRpcHandler] | None = None,
        certificates: Certificates | None = None,
        transport: ExtProcTransport = "auto",
        options: StreamOptions | None = None,
        limits: Limits | None = None,
        transport_metrics: TransportMetrics | None = None,
        reports: StreamReports | None = None,
        on_mismatch: OnMismatch = ignore,
    ) -> None:
        self._health = health
        options = options or StreamOptions()
        self._intake = options.intake
        self._expiry: asyncio.TimerHandle | None = None
        context = StreamContext(options, router, reports or StreamReports())
        self.transport: ExtProcTransport = _usable_transport(transport, with_tls=certificates is not None)
        """Carries the calls."""
        handlers = [health.handler(), *(services or {}).values()]
        if services:
            handlers.append(reflection((*services, HEALTH_SERVICE)))
        self._listener = _make_listener(
            self.transport,
            "server.extProc",
            {_PROCESS: partial(ExtProcCall, context)},
            handlers,
            limits=limits or Limits(message_limit(options.max_body_bytes)),
            account=options.intake,
            metrics=transport_metrics,
            certificates=certificates,
            on_mismatch=on_mismatch,
        )

    async def start(self, host: str, port: int, *, is_shared: bool = False) -> int:
        """Listen on `host:port` (port 0: a free one) and return the port.

        Args:
            host: see `acceptor.bind`.
            port: the same.
            is_shared: the same.
        Raises:
            ListenError: the address is taken or not one of this machine's.
        """
        bound = await self._listener.start(host, port, is_shared=is_shared)
        self._expire()
        return bound

    async def stop(self, grace_s: float) -> None:
        """Take no new requests, and wait at most `grace_s` seconds for those in flight, responses included."""
        self._health.end_watches()
        await self._listener.stop(grace_s)
        if self._expiry is not None:
            self._expiry.cancel()

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        more = False
        try:
            more = self._intake.expire(time.monotonic())
        finally:
            self._expiry = loop.call_later(0 if more else EXPIRY_SECONDS, self._expire)


def message_limit(max_body_bytes: int) -> int:
    """Return the longest message in which a body of that length may come."""
    return max_body_bytes + MAX_MESSAGE_OVERHEAD_BYTES


def health_listener(
    health: HealthService, transport: ExtProcTransport, metrics: TransportMetrics
) -> Http2Listener | GrpcListener:
    """Return a listener for probes alone, whose limits no other listener can use up."""
    limits = Limits(_PROBE_BYTES, max_connections=_MAX_PROBES, max_streams=_MAX_PROBES)
    return _make_listener(
        transport, "server.health", {}, [health.handler()], limits=limits, account=Intake(), metrics=metrics
    )


def _make_listener(
    transport: ExtProcTransport,
    setting: str,
    methods: Mapping[str, OpenCall],
    handlers: list[grpc.GenericRpcHandler],
    *,
    limits: Limits,
    account: Account,
    metrics: TransportMetrics | None,
    certificates: Certificates | None = None,
    on_mismatch: OnMismatch = ignore,
) -> Http2Listener | GrpcListener:
    if transport == "http2":
        from ..http2.listener import Http2Listener  # noqa: PLC0415 - cannot be imported if it was not built

        return Http2Listener(
            setting,
            methods={f"/{EXT_PROC_SERVICE}/{name}": open_call for name, open_call in methods.items()},
            handlers=handlers,
            limits=limits,
            account=account,
            metrics=metrics,
            certificates=certificates,
            on_mismatch=on_mismatch,
        )
    if certificates is not None and certificates.config.restricts_clients:
        raise ListenError(
            "server.tls: minVersion and cipherSuites need libnghttp2; with the transport grpc remove them"
        )
    own = [call_handlers(EXT_PROC_SERVICE, methods, account)] if methods else []
    return GrpcListener(
        setting,
        [*own, *handlers],
        max_message_bytes=limits.max_message_bytes,
        max_streams=limits.max_streams,
        certificates=certificates,
    )


def _usable_transport(transport: ExtProcTransport, *, with_tls: bool) -> ExtProcTransport:
    if transport == "auto":
        return "http2" if has_http2(with_tls=with_tls) else "grpc"
    if transport == "http2" and (missing := obstacle(with_tls=with_tls)) is not None:
        raise ListenError(
            "extProc.transport: http2 needs libnghttp2.so.14 (Debian: libnghttp2-14), for TLS libssl.so.3 (Debian: "
            f"libssl3 or libssl3t64), and kvatlas built where a C++20 compiler is; install them, or set auto: {missing}"
        )
    return transport
