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
from ..http2.native import has_http2
from ..tls.certificates import Certificates
from ..tls.mismatches import OnMismatch, ignore
from .call import MAX_MESSAGE_OVERHEAD_BYTES, ExtProcCall
from .grpc_call import call_handlers
from .health import EXT_PROC_SERVICE, HEALTH_SERVICE, HealthService
from .listener import GrpcListener, reflection
from .stream import StreamContext, StreamOptions, StreamReports

if TYPE_CHECKING:
    from ..http2.listener import Http2Listener

EXPIRY_SECONDS = 0.5
"""Time between two looks for uploads that take too long."""

_PROCESS = "Process"


class ExtProcServer:
    """Endpoint picker on one port, with gRPC health beside it.

    Args:
        router: decides where requests go.
        health: answers health checks on the same port; the caller sets its readiness.
        services: further gRPC services on the port, by name; reflection describes them.
        certificates: shown to clients; None for plaintext.
        transport: carries the calls; auto: `http2` if the machine supports it, else `grpc`.
        options: settings of the streams.
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
        reports: StreamReports | None = None,
        on_mismatch: OnMismatch = ignore,
    ) -> None:
        self._health, self._on_mismatch = health, on_mismatch
        options = options or StreamOptions()
        self._intake = options.intake
        self._expiry: asyncio.TimerHandle | None = None
        context = StreamContext(options, router, reports or StreamReports())
        self.transport: ExtProcTransport = _usable_transport(transport)
        """Carries the calls."""
        handlers = [health.handler(), *(services or {}).values()]
        if services:
            handlers.append(reflection((*services, HEALTH_SERVICE)))
        self._listener = self._make_listener(
            partial(ExtProcCall, context),
            handlers,
            max_message_bytes=options.max_body_bytes + MAX_MESSAGE_OVERHEAD_BYTES,
            certificates=certificates,
        )

    async def start(self, host: str, port: int) -> int:
        """Listen on `host:port` (port 0: a free one) and return the port.

        Raises:
            ListenError: the address is taken or not one of this machine's.
        """
        bound = await self._listener.start(host, port)
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

    def _make_listener(
        self,
        open_call: OpenCall,
        handlers: list[grpc.GenericRpcHandler],
        *,
        max_message_bytes: int,
        certificates: Certificates | None,
    ) -> Http2Listener | GrpcListener:
        if self.transport == "http2":
            from ..http2.listener import Http2Listener  # noqa: PLC0415 - cannot be imported if it was not built

            return Http2Listener(
                "server.extProc",
                methods={f"/{EXT_PROC_SERVICE}/{_PROCESS}": open_call},
                handlers=handlers,
                max_message_bytes=max_message_bytes,
                certificates=certificates,
                on_mismatch=self._on_mismatch,
            )
        return GrpcListener(
            "server.extProc",
            (call_handlers(EXT_PROC_SERVICE, {_PROCESS: open_call}), *handlers),
            max_message_bytes=max_message_bytes,
            certificates=certificates,
        )


def _usable_transport(transport: ExtProcTransport) -> ExtProcTransport:
    if transport == "auto":
        return "http2" if has_http2() else "grpc"
    if transport == "http2" and not has_http2():
        raise ListenError(
            "extProc.transport: http2 needs libnghttp2.so.14 (Debian: libnghttp2-14) and kvatlas built where a C++20 "
            "compiler is; install them, or set auto"
        )
    return transport
