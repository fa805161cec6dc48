"""uvicorn's HTTP protocol, of either parser, with limits of time and a look at the first bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..acceptor import Opened
from ..tls.mismatches import OnMismatch, is_tls


@dataclass(frozen=True, slots=True)
class ConnectionRules:
    """Rules for the connections of one listener.

    Attributes:
        timeout_s: longest time for the headers of a request, and for taking a response.
        on_late: called when a connection is closed after that time.
        on_mismatch: called for each connection whose peer speaks TLS to a listener without.
    """

    timeout_s: float
    on_late: Callable[[], None]
    on_mismatch: OnMismatch


class _Cycle(Protocol):
    """uvicorn's state of one request and its response."""

    response_complete: bool
    more_body: bool


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
    opened: Opened
    transport: asyncio.Transport
    cycle: _Cycle | None
    active_at = 0.0
    _is_fresh = True

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
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass bytes to the parser, within the time for headers."""
        if self._is_fresh:
            self._is_fresh = False
            if is_tls(data):
                self.rules.on_mismatch("tls")
                self.transport.close()  # uvicorn would log each such connection
                return
        if self._has_no_request:
            self._headers.start()
        super().data_received(data)
        if not self._has_no_request:
            self._headers.stop()

    def pause_writing(self) -> None:
        """Begin to wait for the client to take the response."""
        super().pause_writing()
        self._response.start()

    def resume_writing(self) -> None:
        """End that."""
        self._response.stop()
        super().resume_writing()

    @property
    def _has_no_request(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expire(self) -> None:
        self.rules.on_late()
        self.abort()


def bounded(base: type[asyncio.Protocol], rules: ConnectionRules) -> type[asyncio.Protocol]:
    """Return `base`, a class of uvicorn, with rules."""
    return type("BoundedHttpProtocol", (BoundedProtocol, base), {"rules": rules})
