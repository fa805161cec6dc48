"""One client's connection: bytes between a socket and a session, and the calls on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, cast

from grpc import StatusCode

from ..errors import place_of
from ..tls.mismatches import OnMismatch, is_tls
from ._native import Session
from .call import Call, OpenCall
from .timeout import timeout_s

if TYPE_CHECKING:
    from ._native import Event

_log = logging.getLogger(__name__)

MAX_CONCURRENT_STREAMS = 40_000
"""One stream is one request in flight, response included; the circuit breakers in configs/envoy/ are as wide."""

SILENCE_S = 60.0
"""Time without data after which a gateway is pinged: the streams of one that vanished would stay for ever."""

PONG_S = 20.0
"""Time that it has for the pong."""

NOTICE_S = 1.0
"""Longest time between the notice to open no more calls and the refusal of new calls."""

_OPENED, _MESSAGE, _ENDED, _GONE, _BROKEN = range(5)
_STATUS = {code.value[0]: code for code in StatusCode}
_NUMBER: dict[StatusCode, int] = {code: code.value[0] for code in StatusCode}

Resolve = Callable[[str], OpenCall | None]
"""Path of a method -> what opens a call to it; None if there is no such method."""


class Connection(asyncio.Protocol):
    """One connection of a server.

    Args:
        resolve: finds the methods.
        max_message_bytes: longest message received.
        on_open: called with the connection when it opens.
        on_lost: called with the connection when it is lost.
        on_mismatch: called if the peer speaks TLS.
    """

    def __init__(
        self,
        resolve: Resolve,
        *,
        max_message_bytes: int,
        on_open: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
        on_mismatch: OnMismatch,
    ) -> None:
        self._resolve, self._on_open, self._on_lost = resolve, on_open, on_lost
        self._on_mismatch = on_mismatch
        self._session = Session(max_streams=MAX_CONCURRENT_STREAMS, max_message_bytes=max_message_bytes)
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, Call] = {}
        self._deadlines: dict[int, asyncio.TimerHandle] = {}
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}
        self._is_flush_due = self._is_paused = self._got_data = False
        self._ends_after_pong: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def calls(self) -> AbstractSet[int]:
        """Streams of the calls in progress."""
        return self._calls.keys()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self._on_open(self)
        self._timer = self._loop.call_later(SILENCE_S, self._ping_if_silent)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._got_data = True
        self._is_flush_due = True  # one flush after all events
        try:
            events = self._session.receive(data)
        except ValueError:
            # Not HTTP/2: send the session's GOAWAY, and read nothing more.
            if is_tls(data):
                self._on_mismatch("tls")
            self._flush()
            self._transport.close()
            return
        for event in events:
            try:
                self._take(event)
            except Exception as error:  # noqa: BLE001 - a fault in one call must cost that call alone
                self._fail(event[1], error)
        if self._ends_after_pong is not None and self._session.n_pongs() >= self._ends_after_pong:
            self._refuse_new()
        self._flush()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`: output stays in the session, whose flow control then slows clients down."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._is_paused = False
        self._flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio.Protocol)
        """See `asyncio.Protocol`."""
        if self._timer is not None:
            self._timer.cancel()
        for stream in list(self._calls):
            self._drop(stream)
        self._on_lost(self)

    def drain(self) -> None:
        """Take no new calls once the client has seen the notice; calls in progress continue."""
        self._session.announce_end()
        self._session.ping()
        self._ends_after_pong = self._session.n_pongs() + 1
        self._loop.call_later(NOTICE_S, self._refuse_new)
        self._flush_soon()

    def abort(self) -> None:
        """Close the connection with all its calls."""
        self._transport.abort()

    def send(self, stream: int, message: bytes) -> None:
        """Send a message on a call."""
        if stream in self._calls:
            self._session.send(stream, message)
            self._flush_soon()

    def finish(self, stream: int, status: StatusCode, text: str) -> None:
        """End a call."""
        if stream in self._calls:
            self._forget(stream)
            self._session.finish(stream, _NUMBER[status], text)
            self._flush_soon()

    async def drained(self, stream: int) -> None:
        """Return when no message of the call waits for the client, or the call is over."""
        while stream in self._calls and self._session.unsent(stream):
            waiting = self._loop.create_future()
            self._waiting.setdefault(stream, []).append(waiting)
            await waiting

    def _take(self, event: Event) -> None:
        kind, stream = event[0], event[1]
        if kind == _OPENED:
            self._open(stream, *cast("tuple[str, str, str]", event[2:]))
        elif (call := self._calls.get(stream)) is None:
            pass  # the service has ended it
        elif kind == _MESSAGE:
            call.received(cast("tuple[int, int, bytes]", event)[2])
        elif kind == _ENDED:
            call.ended()
        elif kind == _GONE:
            self._drop(stream)
        else:
            _, _, status, text = cast("tuple[int, int, int, str]", event)
            self._cancel(stream, _STATUS[status], text)

    def _fail(self, stream: int, error: Exception) -> None:
        _log.error("a call failed with %s\n%s", type(error).__name__, place_of(error))
        if stream in self._calls:
            self._drop(stream)
        self._session.finish(stream, _NUMBER[StatusCode.INTERNAL], "the service failed on this call")

    def _drop(self, stream: int) -> None:
        call = self._calls[stream]
        self._forget(stream)
        try:
            call.gone()
        except Exception as error:  # noqa: BLE001 - see `data_received`
            _log.error("the end of a call failed with %s\n%s", type(error).__name__, place_of(error))

    def _open(self, stream: int, path: str, content_type: str, timeout: str) -> None:
        opens = self._resolve(path)
        if opens is None or not content_type.startswith("application/grpc"):
            text = (
                f"no method {path[:200]}"
                if opens is None
                else f"content type {content_type[:200]!r} is not gRPC"
            )
            self._session.finish(stream, _NUMBER[StatusCode.UNIMPLEMENTED], text)
            return
        if (limit := timeout_s(timeout)) is not None:
            self._deadlines[stream] = self._loop.call_later(limit, self._expire, stream)
        self._calls[stream] = opens(CallResponder(self, stream))

    def _expire(self, stream: int) -> None:
        self._cancel(stream, StatusCode.DEADLINE_EXCEEDED, "the call took longer than its deadline")
        self._flush_soon()

    def _cancel(self, stream: int, status: StatusCode, text: str) -> None:
        self._drop(stream)
        self._session.finish(stream, _NUMBER[status], text)

    def _forget(self, stream: int) -> None:
        del self._calls[stream]
        if (deadline := self._deadlines.pop(stream, None)) is not None:
            deadline.cancel()
        self._wake(stream)

    def _wake(self, stream: int) -> None:
        for waiting in self._waiting.pop(stream, ()):
            if not waiting.done():
                waiting.set_result(None)

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._is_paused or self._transport.is_closing():
            return
        if output := self._session.output():
            self._transport.write(output)
        for stream in list(self._waiting):
            if not self._session.unsent(stream):
                self._wake(stream)
        if self._session.is_over():
            self._transport.close()

    def _refuse_new(self) -> None:
        if self._ends_after_pong is not None:
            self._ends_after_pong = None
            self._session.refuse_new()
            self._flush_soon()

    def _ping_if_silent(self) -> None:
        if self._got_data:
            self._got_data = False
            self._timer = self._loop.call_later(SILENCE_S, self._ping_if_silent)
            return
        self._session.ping()
        self._flush_soon()
        self._timer = self._loop.call_later(PONG_S, self._abort_if_silent)

    def _abort_if_silent(self) -> None:
        if self._got_data:
            self._timer = self._loop.call_later(SILENCE_S, self._ping_if_silent)
        else:
            self._transport.abort()


class CallResponder:
    """See `Responder`."""

    __slots__ = ("_connection", "_stream")

    def __init__(self, connection: Connection, stream: int) -> None:
        self._connection, self._stream = connection, stream

    def send(self, message: bytes) -> None:
        """See `Responder`."""
        self._connection.send(self._stream, message)

    def finish(self, status: StatusCode, text: str = "") -> None:
        """See `Responder`."""
        self._connection.finish(self._stream, status, text)

    async def drained(self) -> None:
        """See `Responder`."""
        await self._connection.drained(self._stream)
