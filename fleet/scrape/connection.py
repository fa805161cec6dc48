"""One kept HTTP connection to an endpoint, which asks for its metrics again and again.

Written on `asyncio.Protocol` and the parser of `httptools`, since this is a hot path: a scrape costs a quarter of what it
costs with a general HTTP client (`python -m bench scrape`).
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast
from urllib.parse import quote, unquote, urlsplit

import httptools

from .errors import ScrapeError

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Largest body read; vLLM writes about 80 kB, and about 30 kB more for each further data-parallel rank."""

_LENGTH_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
_SAFE = "/%:@!$&'()*+,;=~-._?[]"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where one endpoint's metrics are.

    Attributes:
        shown: the URL for people, without user and password.
        host: name or address to connect to.
        port: its port.
        is_tls: whether the connection is encrypted; the certificate is checked then.
        head: request line up to the path, and what follows its end.
    """

    shown: str
    host: str
    port: int
    is_tls: bool
    head: tuple[str, str]

    @classmethod
    def of(cls, url: str) -> Destination:
        """The destination of an http or https URL; a user and password in it are sent as basic authorization."""
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        place = parts.netloc.rpartition("@")[2]
        lines = [
            f"Host: {place}",
            "Accept: text/plain;version=0.0.4",
            "Accept-Encoding: identity",  # compressing costs the engine more than the bytes do
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
            shown=parts._replace(netloc=place).geturl(),
            host=parts.hostname or "",
            port=parts.port or (443 if is_tls else 80),
            is_tls=is_tls,
            head=(f"GET {target}", end),
        )

    def request(self, names: Sequence[str] = ()) -> bytes:
        """The request, for every series or, of servers that know the parameter, for the series called `names`."""
        start, end = self.head
        if names:
            query = "&".join(f"name[]={quote(name, safe=_SAFE)}" for name in names)
            start += f"{'&' if '?' in start else '?'}{query}"
        return f"{start}{end}".encode("ascii", "replace")


class Asker(Protocol):
    """Who asks over a connection."""

    def answered(self, status: int, body: bytes) -> None:
        """A whole answer came."""
        ...

    def failed(self, error: ScrapeError, *, untouched: bool) -> None:
        """No answer will come; `untouched` when a kept connection ended before a byte of it, as servers do when idle."""
        ...


@dataclass(slots=True)
class _Answer:
    """An answer as far as it has come."""

    status: int = 0
    has_head: bool = False
    has_length: bool = False
    size: int = 0
    chunks: list[bytes] = field(default_factory=list[bytes])
    is_complete: bool = False
    is_kept: bool = False


class MetricsConnection(asyncio.Protocol):
    """Asks over one connection, one request at a time.

    Args:
        asker: told of answers and failures, each once a request, in the event loop.
        max_body_bytes: larger bodies are refused.
    """

    def __init__(self, asker: Asker, *, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._asker: Asker | None = asker
        self._max_body_bytes = max_body_bytes
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._is_waiting = self._is_touched = self._is_used = False
        self._answer = _Answer()

    @property
    def is_open(self) -> bool:
        """Whether another request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, request: bytes) -> None:
        """Send a request; the connection is open and no other request is under way."""
        assert self._transport is not None and not self._is_waiting  # noqa: S101, PT018 - the caller's promise
        self._is_waiting, self._is_touched = True, False
        self._answer = _Answer()
        self._transport.write(request)

    def abort(self) -> None:
        """Close at once; nothing is told any more."""
        self._asker = None
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if not self._is_waiting:
            self._close()  # an answer to nothing
            return
        self._is_touched = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(ScrapeError("malformed", "the answer is not HTTP"))
            return
        if self._answer.size > self._max_body_bytes:
            self._fail(ScrapeError("too_large", f"the answer is above {self._max_body_bytes} bytes"))
        elif self._answer.is_complete:
            self._finish(keep=self._answer.is_kept)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = None
        if not self._is_waiting:
            return
        if exc is None and self._answer.has_head and not self._answer.has_length:
            self._finish(keep=False)  # HTTP/1.0: the end of the connection is the end of the body
            return
        reason = str(exc) if exc is not None else "the connection was closed before the whole answer came"
        self._fail(ScrapeError("unreachable", reason), untouched=self._is_used and not self._is_touched)

    # -- httptools ------------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002 - the parser passes both
        """See `httptools`."""
        if name.lower() in _LENGTH_HEADERS:
            self._answer.has_length = True

    def on_headers_complete(self) -> None:
        """See `httptools`."""
        if not self._answer.is_complete:
            self._answer.status = self._parser.get_status_code()
            self._answer.has_head = self._answer.status >= 200

    def on_body(self, data: bytes) -> None:
        """See `httptools`."""
        if not self._answer.is_complete:
            self._answer.size += len(data)
            if self._answer.size <= self._max_body_bytes:
                self._answer.chunks.append(data)

    def on_message_complete(self) -> None:
        """See `httptools`. What precedes the answer, such as 100 Continue, is none; nothing may follow it."""
        if self._answer.is_complete:
            self._answer.is_kept = False
        elif self._answer.has_head:
            self._answer.is_complete, self._answer.is_kept = True, self._parser.should_keep_alive()
        else:
            self._answer = _Answer()

    def _finish(self, *, keep: bool) -> None:
        self._is_waiting, self._is_used = False, True
        status, chunks = self._answer.status, self._answer.chunks
        self._answer = _Answer()
        if not keep:
            self._close()
        if self._asker is not None:
            self._asker.answered(status, chunks[0] if len(chunks) == 1 else b"".join(chunks))

    def _fail(self, error: ScrapeError, *, untouched: bool = False) -> None:
        self._is_waiting = False
        self._close()
        if self._asker is not None:
            self._asker.failed(error, untouched=untouched)

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
