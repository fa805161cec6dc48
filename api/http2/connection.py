"""One client's connection: bytes between a socket and a session, and the calls on it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, cast

from grpc import StatusCode

from ..errors import place_of
from ..tls.mismatches import is_tls
from ._native import Session
from .call import Call, MakePassage
from .context import ConnectionContext
from .first_messages import FirstMessages
from .liveness import Liveness
from .responder import CallResponder
from .timeout import timeout_s

if TYPE_CHECKING:
    from ._native import Event

_log = logging.getLogger(__name__)

NOTICE_S = 1.0
"""Longest time between the notice to open no more calls and the refusal of new calls."""

LINGER_S = 1.0
"""Time for a client to read why its connection ends."""

DROPPED_AT_ONCE = 100
"""Calls of a lost connection that end at once: each reports the end of its request."""

OUTPUT_BYTES = 1 << 18
"""Output handed to the socket at once."""

MAX_OUTPUTS = 16
"""Outputs in one turn; a client that takes more waits for the next."""

_OPENED, _MESSAGE, _ENDED, _GONE, _BROKEN, _PASSED = range(6)
_STATUS = {code.value[0]: code for code in StatusCode}
_NUMBER: dict[StatusCode, int] = {code: code.value[0] for code in StatusCode}


class Connection(asyncio.Protocol):
    """One connection of a server.

    Args:
        context: shared by all connections of the server.
        on_open: called with the connection when it opens.
        on_lost: called with the connection when it is lost.

    Attributes:
        active_at: monotonic time of the last data, 0 before it.
    """

    def __init__(
        self,
        context: ConnectionContext,
        *,
        on_open: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        self._context, self._turns, self._account = context, context.turns, context.account
        self._on_open, self._on_lost = on_open, on_lost
        limits = context.limits
        self._session = Session(
            max_streams=limits.max_streams, max_message_bytes=limits.max_message_bytes,
            max_early_ends=limits.max_early_ends, spare_bytes=context.account.n_spare_bytes,
        )  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, Call] = {}
        self._deadlines: dict[int, asyncio.TimerHandle] = {}
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}
        self._to_pass: dict[int, MakePassage] = {}
        self._first_messages = FirstMessages(self._late)
        self._silent = self._first_messages.since
        self._events: deque[Event] = deque()
        self._is_flush_due = self._is_paused = self._is_in_line = self._has_ended = self._is_lost = False
        self._is_reading = True
        self._n_held = 0
        self.active_at = 0.0
        self._ends_after_pong: int | None = None
        self._liveness: Liveness | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether there is no call to answer."""
        return not self._calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self._liveness = Liveness(is_greeted=self._session.is_greeted, ping=self._ping, end=self.close)
        self._on_open(self)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._has_ended:
            return
        if self._liveness is not None:
            self._liveness.got_data = True
        has_time = self._turns.has_time()
        self.active_at = self._turns.now
        if has_time and not self._is_in_line and not self._events:
            self._work(data)
        else:
            self._session.keep(data)
            self._stand_in_line()

    def take_turn(self) -> None:
        """See `Waiter`."""
        self._is_in_line = False
        if self._is_lost:
            self._drop_some()
        elif not (self._is_paused or self._has_ended or self._transport.is_closing()):
            self._work(b"")

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`: a client that does not read its answers is not read either."""
        self._is_paused = True
        self._read_or_not()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._is_paused = False
        self._flush_soon()
        if self._events or self._session.has_input():
            self._stand_in_line()
        self._read_or_not()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio.Protocol)
        """See `asyncio.Protocol`."""
        self._is_lost = True
        self._events.clear()
        self._first_messages.stop()
        if self._liveness is not None:
            self._liveness.stop()
        self._account.carry(-self._n_held)
        self._n_held = 0
        if not self._is_in_line:
            self._drop_some()

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

    def close(self, reason: str) -> None:
        """Close the connection with all its calls, and count the limit that it passed."""
        if not self._is_lost:
            self._context.metrics.closed(reason)
            self._transport.abort()

    def send(self, stream: int, message: bytes) -> None:
        """Send a message on a call."""
        if stream in self._calls:
            if not self._session.send(stream, message):
                self._context.metrics.refused("held_bytes")
                self._drop(stream)
            self._flush_soon()

    def pause(self, stream: int) -> None:
        """Deliver no more messages of a call."""
        self._session.pause(stream)

    def resume(self, stream: int) -> None:
        """Deliver messages of a call again."""
        if stream in self._calls:
            self._session.resume(stream)
            self._stand_in_line()

    def finish(self, stream: int, status: StatusCode, text: str) -> None:
        """End a call."""
        if stream in self._calls:
            self._forget(stream)
            self._session.finish(stream, _NUMBER[status], text)
            self._flush_soon()

    def pass_messages(self, stream: int, make: MakePassage) -> None:
        """Have further messages of a call answered by a passage, once those that were read are taken."""
        self._to_pass[stream] = make

    async def drained(self, stream: int) -> None:
        """Return when no message of the call waits for the client, or the call is over."""
        while stream in self._calls and self._session.unsent(stream):
            waiting = self._loop.create_future()
            self._waiting.setdefault(stream, []).append(waiting)
            await waiting

    def _work(self, data: bytes) -> None:
        """Take a piece of the input, and wait for another turn if that is not all."""
        self._is_flush_due = True  # one flush after all events
        if self._events or self._receive(data):
            self._take_events()
        if self._has_ended:
            return
        if self._ends_after_pong is not None and self._session.n_pongs() >= self._ends_after_pong:
            self._refuse_new()
        if self._events or self._session.has_input():
            self._stand_in_line()
        self._read_or_not()
        self._flush()

    def _receive(self, data: bytes) -> bool:
        """Turn input into events; returns whether there is time for them."""
        try:
            self._events.extend(self._session.receive(data, monotonic(), self._context.room(self._n_held)))
        except ValueError:  # not HTTP/2
            if is_tls(data):
                self._context.on_mismatch("tls")
            self._end("protocol")
            return False
        self._count_held()  # a whole message is its call's from here on
        # A long message may have been copied; its call copies it again, in the next turn.
        return monotonic() < self._turns.ends_at

    def _take_events(self) -> None:
        events, ends_at = self._events, self._turns.ends_at
        while events:
            event = events.popleft()
            try:
                self._take(event)
            except Exception as error:  # noqa: BLE001 - a fault in one call must cost that call alone
                self._fail(event[1], error)
            if monotonic() >= ends_at:
                break
        if self._to_pass and not events:
            self._begin_passages()

    def _begin_passages(self) -> None:
        for stream, make in self._to_pass.items():
            if stream in self._calls and (passage := make()) is not None:
                self._session.pass_messages(stream, passage)
        self._to_pass.clear()

    def _end(self, reason: str) -> None:
        """Count the reason, send what is left, the GOAWAY above all, and close the connection after a moment.

        What the client still sends is dropped: a socket closed with unread data takes the GOAWAY away from the client.
        """
        self._context.metrics.closed(reason)
        self._has_ended = True
        self._events.clear()
        self._read_or_not()
        self._flush()
        self._loop.call_later(LINGER_S, self._transport.abort)

    def _stand_in_line(self) -> None:
        if not (self._is_in_line or self._is_lost or self._has_ended):
            self._is_in_line = True
            self._turns.wait(self)
            self._read_or_not()

    def _read_or_not(self) -> None:
        """Read from the socket unless input waits, or the client does not read its answers."""
        is_reading = self._has_ended or not (self._is_paused or self._is_in_line)
        if is_reading is self._is_reading or self._transport.is_closing():
            return
        self._is_reading = is_reading
        if is_reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _take(self, event: Event) -> None:
        kind, stream = event[0], event[1]
        if kind == _OPENED:
            self._open(stream, *cast("tuple[str, str, str]", event[2:]))
        elif (call := self._calls.get(stream)) is None:
            pass  # the service has ended it
        elif kind == _MESSAGE:
            if self._silent:
                self._silent.pop(stream, None)
            call.received(cast("tuple[int, int, bytes]", event)[2])
        elif kind == _PASSED:
            call.passed(cast("tuple[int, int, bytes]", event)[2])
        elif kind == _ENDED:
            call.ended()
        elif kind == _GONE:
            self._drop(stream)
        else:
            _, _, status, text, reason = cast("tuple[int, int, int, str, str]", event)
            self._context.metrics.refused(reason)
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
            if report := self._session.leave(stream):
                call.passed(report)
            call.gone()
        except Exception as error:  # noqa: BLE001 - see `data_received`
            _log.error("the end of a call failed with %s\n%s", type(error).__name__, place_of(error))

    def _drop_some(self) -> None:
        """End a few calls of a lost connection, and the others when its next turn comes."""
        for stream in list(islice(self._calls, DROPPED_AT_ONCE)):
            self._drop(stream)
        if self._calls:
            self._is_in_line = True
            self._turns.wait(self)
        else:
            self._on_lost(self)

    def _open(self, stream: int, path: str, content_type: str, timeout: str) -> None:
        context = self._context
        opens = context.resolve(path)
        if opens is None or not content_type.startswith("application/grpc"):
            wrong = f"content type {content_type[:200]!r} is not gRPC"
            text = f"no method {path[:200]}" if opens is None else wrong
            self._session.finish(stream, _NUMBER[StatusCode.UNIMPLEMENTED], text)
            return
        if context.n_calls >= context.limits.max_streams and len(self._calls) >= context.limits.fair_streams:
            context.metrics.refused("streams")
            text = f"{context.n_calls} calls are in progress, as many as are taken"
            self._session.finish(stream, _NUMBER[StatusCode.RESOURCE_EXHAUSTED], text)
            return
        if (limit := timeout_s(timeout)) is not None:
            self._deadlines[stream] = self._loop.call_later(limit, self._expire, stream)
        self._calls[stream] = opens(CallResponder(self, stream))
        context.n_calls += 1
        if not self._events or self._events[0][1] != stream:
            self._first_messages.expect(stream)

    def _expire(self, stream: int) -> None:
        self._cancel(stream, StatusCode.DEADLINE_EXCEEDED, "the call took longer than its deadline")

    def _late(self, stream: int) -> None:
        self._context.metrics.refused("first_message")
        self._cancel(stream, StatusCode.DEADLINE_EXCEEDED, "no message came on the call")

    def _cancel(self, stream: int, status: StatusCode, text: str) -> None:
        self._drop(stream)
        self._session.finish(stream, _NUMBER[status], text)
        self._flush_soon()

    def _forget(self, stream: int) -> None:
        del self._calls[stream]
        self._context.n_calls -= 1
        if self._silent:
            self._silent.pop(stream, None)
        if self._deadlines and (deadline := self._deadlines.pop(stream, None)) is not None:
            deadline.cancel()
        if self._waiting:
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
        if not self._is_paused and not self._transport.is_closing():
            self._write()
            for stream in list(self._waiting):
                if not self._session.unsent(stream):
                    self._wake(stream)
            if self._session.is_over() and not self._has_ended:
                if excess := self._session.excess():
                    self._end(excess)
                else:
                    self._transport.close()
        self._count_held()

    def _count_held(self) -> None:
        if (n_held := self._session.held()) != self._n_held and not self._is_lost:
            self._account.carry(n_held - self._n_held)
            self._n_held = n_held

    def _write(self) -> None:
        for _ in range(MAX_OUTPUTS):
            if output := self._session.output(OUTPUT_BYTES):
                self._transport.write(output)
            if len(output) < OUTPUT_BYTES or self._is_paused:
                return
        self._flush_soon()

    def _ping(self) -> None:
        self._session.ping()
        self._flush_soon()

    def _refuse_new(self) -> None:
        if self._ends_after_pong is not None:
            self._ends_after_pong = None
            self._session.refuse_new()
            self._flush_soon()
