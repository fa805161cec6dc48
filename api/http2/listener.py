"""A server of gRPC calls on one address."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from ...configs.listeners import CIPHER_SUITES
from ..accepting import Accepting
from ..acceptor import listen
from ..errors import ApiError, ListenError, TlsError
from ..tls.certificates import Certificates
from ..tls.identity import Identity
from ..tls.mismatches import OnMismatch, ignore
from ..tls.restrictions import VERSIONS, cipher_list
from ._native import Server
from .call import Call, OpenCall, Responder
from .calls import Calls
from .context import Account, Limits, ServerContext
from .handled_call import HandledCall
from .metrics import TransportMetrics

log = logging.getLogger(__name__)


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
        self._context = ServerContext(
            self._resolve, limits, account, metrics or TransportMetrics(CollectorRegistry()), on_mismatch
        )
        self._certificates = certificates
        self._identity: Identity | None = None
        self._accepting: Accepting | None = None
        self._server: Server | None = None
        self._calls: Calls | None = None

    async def start(self, host: str, port: int, *, is_shared: bool = False) -> int:
        """Listen on `host:port` (port 0: a free one) and return the port.

        Args:
            host: see `acceptor.bind`.
            port: the same.
            is_shared: the same.
        Raises:
            ListenError: the address is taken or not one of this machine's, or no thread can be started.
            TlsError: OpenSSL refuses the certificate.
        """
        listening = listen(self._setting, host, port, is_shared=is_shared)
        try:
            self._server = self._started()
        except ApiError:
            listening.close()
            raise
        self._calls = Calls(self._server, self._context)
        self._calls.start()
        self._accepting = Accepting(listening, on_accepted=self._accepted, on_shortage=self._server.shed)
        return int(listening.getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, wait at most `grace_s` seconds for those in progress, and cancel the rest."""
        if (
            self._accepting is None
            or self._server is None
            or self._calls is None
            or not self._accepting.is_open
        ):
            return
        self._accepting.close()
        self._server.drain()
        try:
            async with asyncio.timeout(grace_s):
                await self._calls.is_empty.wait()
        except TimeoutError:
            self._server.abort_all()
            await self._calls.is_empty.wait()
        self._server.stop()
        self._calls.stop()

    def _started(self) -> Server:
        """Return a native server whose threads run."""
        limits = self._context.limits
        try:
            server = Server(
                threads=limits.n_threads,
                max_streams=limits.max_streams,
                max_message_bytes=limits.max_message_bytes,
                max_early_ends=limits.max_early_ends,
                spare_bytes=self._context.account.n_spare_bytes,
                max_connections=limits.max_connections,
                fair_streams=limits.fair_streams,
                times=astuple(limits.times),
            )
        except RuntimeError as error:
            raise ListenError(
                f"{self._setting}: the {limits.n_threads} threads of connections cannot be started: {error}; "
                "raise the limit of the process's threads (pids.max, ulimit -u), file descriptors or memory"
            ) from None
        try:
            self._renew_identity(server)
        except ValueError as error:
            server.stop()
            raise TlsError(f"server.tls.certFile: OpenSSL refuses the certificate: {error}") from None
        return server

    def _accepted(self, accepted: socket.socket) -> None:
        if self._server is None:
            return
        try:
            self._renew_identity(self._server)
        except ValueError as error:
            log.warning("the certificate stays as it was, OpenSSL refuses the changed one: %s", error)
        self._server.accept(accepted.detach())

    def _renew_identity(self, server: Server) -> None:
        """Have new connections use the current certificate.

        Raises:
            ValueError: OpenSSL refuses it, and the one before stays.
        """
        if self._certificates is None or (identity := self._certificates.current()) is self._identity:
            return
        self._identity, config = identity, self._certificates.config
        server.use_identity(
            key=identity.key,
            chain=identity.chain,
            client_ca=identity.client_ca or b"",
            min_version=VERSIONS[config.min_version],
            cipher_list=cipher_list(config.cipher_suites or CIPHER_SUITES),
        )

    def _resolve(self, path: str) -> OpenCall | None:
        if (opens := self._methods.get(path)) is not None:
            return opens
        for handler in self._handlers:
            if (method := handler.service(_Method(path))) is not None:
                return partial(_handled, method, path)
        return None


def _handled(method: grpc.RpcMethodHandler[Any, Any], path: str, responder: Responder) -> Call:
    return HandledCall(method, responder, path)
