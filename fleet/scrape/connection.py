"""Persistent HTTP connection for scraping one endpoint.

A hot path, so it uses `asyncio.Protocol` and the parser of `httptools`: a scrape costs a quarter of one with a general
HTTP client (`python -m bench scrape`).
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, cast
from urllib.parse import quote, unquote, urlsplit

import httptools

from ...configs.secrets import masked_text
from .errors import ScrapeError

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Largest body read; vLLM writes about 80 kB, and about 30 kB more for each further data-parallel rank."""

_LENGTH_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
_SAFE = "/%:@!$&'()*+,;=~-._?[]"


@dataclass(frozen=True, slots=True)
class Destination:
    """Address of one endpoint's metrics.

    Attributes:
        shown: URL for display, without secrets.
        host: name or address to connect to.
        port: port to connect to.
        is_tls: whether to use TLS, with a checked certificate.
        head: request line up to the query, and the rest of the request.
    """

    shown: str
    host: str
    port: int
    is_tls: bool
    head: tuple[str, str]

    @classmethod
    @lru_cache(maxsize=4096)  # a pod that becomes ready again has the same URL
    def of(cls, url: str) -> Destination:
        """Parse an http or https URL; user and password in it are sent as basic authorization."""
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        place = parts.netloc.rpartition("@")[2]
        lines = [
            f"Host: {place}",
            "Accept: text/plain;version=0.0.4",
            "Accept-Encoding: identity",  # compression costs the engine more than it saves
            "User-Agent: kvatlas",
        ]
        if parts.username is not None:
            secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            lines.append(f"Authorization: Basic {base64.b64encode(secret).decode()}")
        target = quote(parts.path or "/", safe=_SAFE)
        if parts.query:
            target += f"?{quote(parts.query, safe=_SAFE)}"
        end = " HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n"
        return cls(
            shown=masked_text(parts._replace(netloc=place).geturl()),
            host=parts.hostname or "",
            port=parts.port or (443 if is_tls else 80),
            is_tls=is_tls,
            head=(f"GET {target}", end),
        )

    def request(self, names: Sequence[str] = ()) -> bytes:
        """Return the request for all series, or for the series `names` from servers that support the parameter."""
        start, end = self.head
        if names:
            query = "&".join(f"name[]={quote(name, safe=_SAFE)}" for name in names)
            start += f"{'&' if '?' in start else '?'}{query}"
        return f"{start}{end}".encode("ascii", "replace")


class ResponseHandler(Protocol):
    """Receives the responses of a connection."""

    def responded(self, status: int, body: bytes) -> None:
        """Take a complete response."""
        ...

    def failed(self, error: ScrapeError, *, untouched: bool) -> None:
        """Handle a failed request; `untouched` if a reused connection closed before the first byte, as idle ones do."""
        ...


@dataclass(slots=True)
class _Response:
    """The received part of a response."""

    status: int = 0
    has_head: bool = False
    has_length: bool = False
    size: int = 0
    chunks: list[bytes] = field(default_factory=list[bytes])
    is_complete: bool = False
    is_kept: bool = False


class MetricsConnection(asyncio.Protocol):
    """Sends one request at a time over one connection.

    Args:
        handler: called once per request, with the response or the failure, in the event loop.
        max_body_bytes: larger bodies are refused.
    """

    def __init__(self, handler: ResponseHandler, *, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._handler: ResponseHandler | None = handler
        self._max_body_bytes = max_body_bytes
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._is_pending = self._has_bytes = self._is_reused = False
        self._response = _Response()

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes) -> None:
        """Send a request; the connection must be open, without a pending request."""
        assert self._transport is not None and not self._is_pending  # noqa: S101, PT018 - the caller guarantees it
        self._is_pending, self._has_bytes = True, False
        self._response = _Response()
        self._transport.write(request)

    def abort(self) -> None:
        """Close at once; the handler is not called any more."""
        self._handler = None
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement `asyncio.BaseProtocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        """Implement `asyncio.Protocol`."""
        if not self._is_pending:
            self._close()  # a response without request
            return
        self._has_bytes = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(ScrapeError("malformed", "the response is not HTTP"))
            return
        if self._response.size > self._max_body_bytes:
            self._fail(ScrapeError("too_large", f"the response has more than {self._max_body_bytes} bytes"))
        elif self._response.is_complete:
            self._finish(keep=self._response.is_kept)

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement `asyncio.BaseProtocol`."""
        self._transport = None
        if not self._is_pending:
            return
        if exc is None and self._response.has_head and not self._response.has_length:
            self._finish(keep=False)  # HTTP/1.0: the body ends with the connection
            return
        reason = (
            str(exc) if exc is not None else "the connection was closed before the whole response arrived"
        )
        self._fail(ScrapeError("unreachable", reason), untouched=self._is_reused and not self._has_bytes)

    # -- httptools ------------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002 - the parser passes both
        """Implement `httptools`."""
        if name.lower() in _LENGTH_HEADERS:
            self._response.has_length = True

    def on_headers_complete(self) -> None:
        """Implement `httptools`."""
        if not self._response.is_complete:
            self._response.status = self._parser.get_status_code()
            self._response.has_head = self._response.status >= 200

    def on_body(self, data: bytes) -> None:
        """Implement `httptools`."""
        if not self._response.is_complete:
            self._response.size += len(data)
            if self._response.size <= self._max_body_bytes:
                self._response.chunks.append(data)

    def on_message_complete(self) -> None:
        """Implement `httptools`. Interim responses such as 100 Continue are skipped; a second response ends the connection."""
        if self._response.is_complete:
            self._response.is_kept = False
        elif self._response.has_head:
            self._response.is_complete, self._response.is_kept = True, self._parser.should_keep_alive()
        else:
            self._response = _Response()

    def _finish(self, *, keep: bool) -> None:
        self._is_pending, self._is_reused = False, True
        status, chunks = self._response.status, self._response.chunks
        self._response = _Response()
        if not keep:
            self._close()
        if self._handler is not None:
            self._handler.responded(status, chunks[0] if len(chunks) == 1 else b"".join(chunks))

    def _fail(self, error: ScrapeError, *, untouched: bool = False) -> None:
        self._is_pending = False
        self._close()
        if self._handler is not None:
            self._handler.failed(error, untouched=untouched)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def connect(
    destination: Destination, connection: MetricsConnection, tls: ssl.SSLContext | None
) -> None:
    """Open `connection` to the destination, on the running event loop.

    Raises:
        ScrapeError: it cannot be reached.
    """
    try:
        await asyncio.get_running_loop().create_connection(
            lambda: connection, destination.host, destination.port, ssl=tls
        )
    # UnicodeError comes from host names that cannot be encoded for a lookup.
    except (OSError, UnicodeError) as error:
        where = f"{destination.host}:{destination.port}"
        raise ScrapeError("unreachable", f"cannot connect to {where}: {error}") from error
