"""uvicorn's HTTP protocol, of either parser, with limits of time and a look at the first bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import ASGIApp, Scope

from ..acceptor import Opened
from ..tls.mismatches import OnMismatch, is_tls

AtOnce = Callable[[Scope, bytes | bytearray], bytes | None]
"""Returns the JSON that answers a whole request, from its scope and body; None if the application is to serve it."""


def leave(_scope: Scope, _body: bytes | bytearray) -> None:
    """Leave every request to the application."""


@dataclass(frozen=True, slots=True)
class ConnectionRules:
    """Rules for the connections of one listener.

    Attributes:
        timeout_s: longest time for the headers of a request, and for taking a response.
        on_refused: called with the reason when a connection is closed: timeout, no_http (what came cannot be read).
        on_mismatch: called for each connection whose peer speaks TLS to a listener without.
        at_once: answers requests that came as a whole, without a task for each.
    """

    timeout_s: float
    on_refused: Callable[[str], None]
    on_mismatch: OnMismatch
    at_once: AtOnce = leave


_RESPONSE = b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\ncontent-type: application/json\r\n\r\n%b"


class _Cycle(Protocol):
    """uvicorn's state of one request and its response."""

    scope: Scope
    body: bytearray
    more_body: bool
    keep_alive: bool
    waiting_for_100_continue: bool
    response_started: bool
    response_complete: bool
    disconnected: bool
    message_event: asyncio.Event
    on_response: Callable[[], None]


class _State(Protocol):
    """uvicorn's state of a server."""

    default_headers: list[tuple[bytes, bytes]]


class _Timer:
    """A timer that may be started again and again."""

    __slots__ = ("_expire", "_handle", "_seconds")

    def __init__(self, seconds: float, expire: Callable[[], None]) -> None:
        self._seconds, self._expire = seconds, expire
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start; a running timer runs on."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def stop(self) -> None:
        """Stop."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class BoundedProtocol(asyncio.Protocol):
    """Part of a connection's class that comes before uvicorn's.

    Attributes:
        rules: set on the class.
        opened: set before the connection is made.
        active_at: the same for all, so that the oldest connection gives up its place first.
    """

    rules: ConnectionRules
    server_state: _State
    opened: Opened
    transport: asyncio.Transport
    cycle: _Cycle | None
    active_at = 0.0
    _is_fresh = True
    _is_reading = _is_paused = False
    _held: tuple[_Cycle, ASGIApp] | None = None
    """A request whose service begins once everything that has come is parsed."""
    _served: _Cycle | None = None
    """The request whose service began last; `cycle` is a later one if another has come meanwhile."""

    @property
    def is_waiting(self) -> bool:
        """Whether there is no complete request to answer."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._closed = self.opened(self)
        self._headers = _Timer(self.rules.timeout_s, self._expire)
        self._response = _Timer(self.rules.timeout_s, self._expire)
        self._headers.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up the place."""
        self._closed()
        self._headers.stop()
        self._response.stop()
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass bytes to the parser, within the time for headers."""
        if self._is_fresh:
            self._is_fresh = False
            if is_tls(data):
                self.rules.on_mismatch("tls")
                self.transport.close()  # uvicorn would log each such connection
                return
        before, self._is_reading = self.cycle, True
        super().data_received(data)
        self._is_reading = False
        if self._has_no_request and self.cycle is before:
            self._headers.start()
        else:
            self._headers.stop()
        if self._held is not None:
            (cycle, app), self._held = self._held, None
            # What followed the request may have ended the connection: then nobody is there to be answered.
            if not self.transport.is_closing() and not self._answered(cycle):
                self._start_asgi_task(cycle, app)

    def _start_asgi_task(self, cycle: _Cycle, app: ASGIApp) -> None:
        """Begin to serve a request; uvicorn calls this as soon as the headers are there."""
        if self._is_reading:
            self._held = cycle, app
        else:
            self._served = cycle
            uvicorns: Any = super()
            uvicorns._start_asgi_task(cycle, app)  # noqa: SLF001 - a method that this one extends

    def _answered(self, cycle: _Cycle) -> bool:
        """Answer a request at once, in one piece; return whether that was possible."""
        if cycle.more_body or not cycle.keep_alive or cycle.waiting_for_100_continue or self._is_hindered:
            return False
        try:
            answer = self.rules.at_once(cycle.scope, cycle.body)
        except Exception:  # noqa: BLE001 - the application comes to the same error, and answers it
            return False
        if answer is None:
            return False
        headers = b"".join([b"%b: %b\r\n" % header for header in self.server_state.default_headers])
        self.transport.write(_RESPONSE % (headers, len(answer), answer))
        cycle.response_started = cycle.response_complete = True
        cycle.on_response()
        return True

    def pause_writing(self) -> None:
        """Begin to wait for the client to take the response."""
        super().pause_writing()
        self._is_paused = True
        self._response.start()

    def resume_writing(self) -> None:
        """End that."""
        self._response.stop()
        self._is_paused = False
        super().resume_writing()

    @property
    def _is_hindered(self) -> bool:
        """Whether nothing can be written now."""
        return self._is_paused or self.transport.is_closing()

    @property
    def _has_no_request(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expire(self) -> None:
        self.rules.on_refused("timeout")
        self.abort()

    def send_400_response(self, msg: str) -> None:
        """Count bytes that are no HTTP; uvicorn answers them, and ends the connection."""
        self.rules.on_refused("no_http")
        uvicorns: Any = super()
        uvicorns.send_400_response(msg)
        self._leave()

    def _leave(self) -> None:
        """Tell the request in service that nobody takes its response any more.

        uvicorn tells only the last request that came, and only once the transport has reported its end: until then
        uvloop raises on writes to a transport that is closed.
        """
        for cycle in (self._served, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()


def bounded(base: type[asyncio.Protocol], rules: ConnectionRules) -> type[asyncio.Protocol]:
    """Return `base`, a class of uvicorn, with rules."""
    return type("BoundedHttpProtocol", (BoundedProtocol, base), {"rules": rules})
