"""A server of gRPC calls on one address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from ..acceptor import Acceptor, ConnectionLimits, Opened, listen
from ..tls.certificates import Certificates
from ..tls.http import server_context
from ..tls.mismatches import OnMismatch, ignore
from .call import Call, OpenCall, Responder
from .connection import Connection
from .context import Account, ConnectionContext, Limits
from .handled_call import HandledCall
from .metrics import TransportMetrics

_CLOSED_BY = {"too_many_connections": "full", "timeout": "handshake"}
"""The acceptor's reasons by the names that this listener's metric has for them."""


class _Method(grpc.HandlerCallDetails):
    """The argument of generic handlers."""

    def __init__(self, path: str) -> None:
        self.method = path
        self.invocation_metadata = ()


class Http2Listener:
    """Serves from `start` until `stop`; call each of the two once.

    Args:
        setting: configuration key of the address, named in errors: `server.extProc`.
        methods: path -> what opens a call to it.
        handlers: services written for `grpc.aio`.
        limits: of connections and calls.
        account: bytes held by all connections.
        metrics: counts what the limits did.
        certificates: shown to clients; None for plaintext.
        on_mismatch: called for each connection whose peer disagrees about TLS.
    """

    def __init__(
        self,
        setting: str,
        *,
        methods: Mapping[str, OpenCall],
        handlers: Sequence[grpc.GenericRpcHandler] = (),
        limits: Limits,
        account: Account,
        metrics: TransportMetrics | None = None,
        certificates: Certificates | None = None,
        on_mismatch: OnMismatch = ignore,
    ) -> None:
        self._setting, self._methods, self._handlers = setting, methods, handlers
        self._context = ConnectionContext(
            self._resolve, limits, account, metrics or TransportMetrics(CollectorRegistry()), on_mismatch
        )
        self._certificates = certificates
        self._acceptor: Acceptor | None = None
        self._connections: dict[Connection, Callable[[], None]] = {}
        """Each with what gives up its place."""
        self._is_empty = asyncio.Event()

    async def start(self, host: str, port: int) -> int:
        """Listen on `host:port` (port 0: a free one) and return the port.

        Raises:
            ListenError: the address is taken or not one of this machine's.
        """
        context = self._context
        tls = None
        if self._certificates is not None:
            tls = server_context(self._certificates, protocol="h2", on_mismatch=context.on_mismatch)
        listening = listen(self._setting, host, port)
        self._acceptor = Acceptor(
            listening,
            ConnectionLimits(context.limits.max_connections, context.limits.handshake_s),
            tls,
            make_protocol=self._connection,
            on_refused=lambda reason: context.metrics.closed(_CLOSED_BY.get(reason, reason)),
        )
        return int(listening.getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, wait at most `grace_s` seconds for those in progress, and cancel the rest."""
        if self._acceptor is None:
            return
        self._acceptor.close()
        await self._acceptor.wait_closed()
        for connection in self._connections:
            connection.drain()
        try:
            async with asyncio.timeout(grace_s):
                await self._closed()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
            await self._closed()

    async def _closed(self) -> None:
        while self._connections:
            self._is_empty.clear()
            await self._is_empty.wait()

    def _connection(self, opened: Opened) -> Connection:
        def enter(connection: Connection) -> None:
            self._connections[connection] = opened(connection)

        return Connection(self._context, on_open=enter, on_lost=self._lost)

    def _lost(self, connection: Connection) -> None:
        self._connections.pop(connection)()
        self._is_empty.set()

    def _resolve(self, path: str) -> OpenCall | None:
        if (opens := self._methods.get(path)) is not None:
            return opens
        for handler in self._handlers:
            if (method := handler.service(_Method(path))) is not None:
                return partial(_handled, method, path)
        return None


def _handled(method: grpc.RpcMethodHandler[Any, Any], path: str, responder: Responder) -> Call:
    return HandledCall(method, responder, path)
