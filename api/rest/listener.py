"""One HTTP listener on the running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from ...events.tasks import spawn
from ..acceptor import Acceptor, ConnectionLimits, Opened, listen
from ..tls.mismatches import OnMismatch, ignore
from .protocol import AtOnce, ConnectionRules, bounded, leave

DEFAULT_LIMITS = ConnectionLimits()


def _uncounted(_reason: str) -> None:
    """Count nothing."""


class _Server(uvicorn.Server):
    """A server that leaves signals to the process.

    Args:
        config: of uvicorn.
        accept: starts accepting connections, with the arguments of their protocols.
    """

    def __init__(self, config: uvicorn.Config, accept: Callable[[_Server], Acceptor]) -> None:
        super().__init__(config)
        self._accept = accept

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - uvicorn's
        self.servers = [self._accept(self)]  # type: ignore[list-item]  # closed and awaited like asyncio's
        self.started = True


class HttpListener:
    """Serves `app` from `start` until `stop`; each may be called once.

    Args:
        setting: configuration key of the address, named in errors: `server.rest`.
        app: the application.
        tls: server-side TLS context, None for plain text.
        on_mismatch: called for each connection whose peer speaks TLS to a listener without.
        limits: of its connections.
        on_refused: called with the reason for each connection that is refused or gives up its place.
        at_once: see `ConnectionRules`.
    """

    def __init__(
        self,
        setting: str,
        app: ASGIApp,
        tls: ssl.SSLContext | None = None,
        *,
        on_mismatch: OnMismatch = ignore,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        on_refused: Callable[[str], None] = _uncounted,
        at_once: AtOnce = leave,
    ) -> None:
        self._setting, self._tls = setting, tls
        self._limits, self._on_refused = limits, on_refused
        self._config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=5,
            proxy_headers=False,  # X-Forwarded-For is not trusted from anybody
            server_header=False,
        )
        self._config.load()
        rules = ConnectionRules(limits.timeout_s, on_refused, on_mismatch, at_once)
        self._config.http_protocol_class = bounded(self._config.http_protocol_class, rules)
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen on `host:port` (port 0: a free one) and return the port.

        Raises:
            ListenError: the address is taken or not one of this machine's.
        """
        listening = listen(self._setting, host, port)
        self._server = _Server(self._config, partial(self._accept, listening))
        self._task = spawn(self._server.serve(), "listener", of=self._setting, vital=True)
        return int(listening.getsockname()[1])

    async def stop(self) -> None:
        """Stop; requests in flight get at most five seconds."""
        if self._task is not None and self._server is not None:
            self._server.should_exit = True
            await asyncio.wait([self._task])

    def _accept(self, listening: socket.socket, server: _Server) -> Acceptor:
        def make(opened: Opened) -> asyncio.Protocol:
            protocol = cast("type[Any]", self._config.http_protocol_class)(
                config=self._config, server_state=server.server_state, app_state={}
            )
            protocol.opened = opened
            return cast("asyncio.Protocol", protocol)

        return Acceptor(listening, self._limits, self._tls, make_protocol=make, on_refused=self._on_refused)
