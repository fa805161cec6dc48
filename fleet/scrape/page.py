"""Page that several readers share, fetched over one persistent connection."""

from __future__ import annotations

import asyncio
import ssl

from .connection import Destination, MetricsConnection, connect
from .errors import ScrapeError


class Page:
    """Fetches one page, one request at a time. Implements `connection.ResponseHandler`.

    Args:
        url: its http or https URL.
        tls: for https.
    """

    def __init__(self, url: str, tls: ssl.SSLContext | None) -> None:
        self._destination, self._tls = Destination.of(url), tls
        self._connection: MetricsConnection | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    @property
    def shown(self) -> str:
        """The URL for display, without secrets."""
        return self._destination.shown

    async def fetch(self, series: str = "", *, timeout_s: float) -> bytes:
        """Return the body, with at least that series, whole without one. An idle connection that was closed is opened again once.

        Raises:
            ScrapeError: there is no complete response with status 200 in time.
        """
        status, body = await self.response(series, timeout_s=timeout_s)
        if status != 200:
            raise ScrapeError("http_status", f"HTTP status {status}")
        return body

    async def response(self, series: str = "", *, timeout_s: float) -> tuple[int, bytes]:
        """Return status and body as `fetch`, with any status; redirects are not followed.

        Raises:
            ScrapeError: there is no complete response in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._fetch(self._destination.request([series] if series else ()))
        except TimeoutError as error:
            self.close()
            raise ScrapeError("timeout", f"no complete response within {timeout_s:g} s") from error

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    # -- connection.ResponseHandler -----------------------------------------------------------------------------------

    def responded(self, status: int, body: bytes) -> None:
        """Take a complete response."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((status, body))

    def failed(self, error: ScrapeError, *, untouched: bool) -> None:  # noqa: ARG002 (ResponseHandler)
        """Take a failed request."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    async def _fetch(self, request: bytes) -> tuple[int, bytes]:
        connection = self._connection
        if connection is not None and connection.is_open:
            try:
                return await self._send(connection, request)
            except ScrapeError as error:
                if error.reason != "unreachable":
                    raise
        self.close()
        connection = MetricsConnection(self)
        await connect(self._destination, connection, self._tls if self._destination.is_tls else None)
        if not connection.is_open:
            raise ScrapeError("unreachable", "the connection was closed at once")
        self._connection = connection
        return await self._send(connection, request)

    async def _send(self, connection: MetricsConnection, request: bytes) -> tuple[int, bytes]:
        self._answer = asyncio.get_running_loop().create_future()
        connection.send(request)
        return await self._answer
