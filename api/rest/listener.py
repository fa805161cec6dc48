"""One HTTP listener on the running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Generator

import uvicorn
from starlette.types import ASGIApp

from ...events.tasks import spawn
from ..errors import ListenError
from ..tls.mismatches import OnMismatch, ignore, is_tls


class _Server(uvicorn.Server):
    """A server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _reporting(base: type[asyncio.Protocol], on_mismatch: OnMismatch) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol, of either parser, with a look at the first bytes of each connection."""

    class Protocol(base):  # type: ignore[valid-type, misc]
        _is_fresh = True

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._connection = transport
            super().connection_made(transport)

        def data_received(self, data: bytes) -> None:
            if self._is_fresh:
                self._is_fresh = False
                if is_tls(data):
                    on_mismatch("tls")
                    self._connection.close()  # uvicorn would log each such connection
                    return
            super().data_received(data)

    return Protocol


class HttpListener:
    """Serves `app` from `start` until `stop`; each may be called once.

    Args:
        setting: configuration key of the address, named in errors: `server.rest`.
        app: the application.
        tls: server-side TLS context, None for plain text.
        on_mismatch: called for each connection whose peer speaks TLS to a listener without.
    """

    def __init__(
        self,
        setting: str,
        app: ASGIApp,
        tls: ssl.SSLContext | None = None,
        *,
        on_mismatch: OnMismatch = ignore,
    ) -> None:
        self._setting = setting
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=5,
            proxy_headers=False,  # X-Forwarded-For is not trusted from anybody
            server_header=False,
        )
        config.load()
        config.http_protocol_class = _reporting(config.http_protocol_class, on_mismatch)
        config.ssl = tls  # uvicorn's own settings take only files, and read them once
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen on `host:port` (port 0: a free one) and return the port.

        Raises:
            ListenError: the address is taken or not one of this machine's.
        """
        listening = self._bind(host, port)
        self._task = spawn(self._server.serve([listening]), "listener", of=self._setting, vital=True)
        return int(listening.getsockname()[1])

    async def stop(self) -> None:
        """Stop; requests in flight get at most five seconds."""
        if self._task is not None:
            self._server.should_exit = True
            await asyncio.wait([self._task])

    def _bind(self, host: str, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(2048)
        except OSError as error:
            listening.close()
            raise ListenError(
                f"{self._setting}: cannot listen on {host}:{port}: {error.strerror}; "
                f"stop what listens there, or set {self._setting} to another HOST:PORT"
            ) from None
        return listening
