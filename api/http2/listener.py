"""A server of gRPC calls on one address."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from ..errors import ListenError
from ..tls.certificates import Certificates
from ..tls.http import server_context
from ..tls.mismatches import OnMismatch, ignore
from .call import Call, OpenCall, Responder
from .connection import Connection
from .context import Account, ConnectionContext, Limits
from .handled_call import HandledCall
from .liveness import GREETING_S
from .metrics import TransportMetrics


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
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._is_empty = asyncio.Event()

    async def start(self, host: str, port: int) -> int:
        """Listen on `host:port` (port 0: a free one) and return the port.

        Raises:
            ListenError: the address is taken or not one of this machine's.
        """
        tls: dict[str, Any] = {}
        if self._certificates is not None:
            on_mismatch = self._context.on_mismatch
            tls["ssl"] = server_context(self._certificates, protocol="h2", on_mismatch=on_mismatch)
            tls["ssl_handshake_timeout"] = GREETING_S
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._connection, host, port, **tls)
        except OSError as error:
            raise ListenError(
                f"{self._setting}: cannot listen on {host}:{port}: in use, or not an address of this machine; "
                f"stop what listens there, or set {self._setting} to another HOST:PORT"
            ) from error
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, wait at most `grace_s` seconds for those in progress, and cancel the rest."""
        if self._server is None:
            return
        self._server.close()
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

    def _connection(self) -> Connection:
        return Connection(self._context, on_open=self._opened, on_lost=self._lost)

    def _opened(self, connection: Connection) -> None:
        """Close the connection without calls that was silent for the longest time if there are too many."""
        self._connections.add(connection)
        if len(self._connections) > self._context.limits.max_connections:
            idle = (each for each in self._connections if not each.calls and each is not connection)
            victim = min(idle, key=lambda each: each.active_at, default=connection)
            self._connections.discard(victim)
            victim.close("full")

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
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
