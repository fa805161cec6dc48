"""The calls that the threads of a server have opened: what they tell, and what the services answer."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING

from grpc import StatusCode

from ...events.tasks import spawn
from ..errors import place_of
from .call import Call, MakePassage

if TYPE_CHECKING:
    from ._native import Server
    from .context import ServerContext

_log = logging.getLogger(__name__)

TURN_S = 0.01
"""Time in which what was told is handled at once; then everything else on the loop has its turn."""

AT_ONCE = 32
"""Events between two looks at the clock; their answers are handed over together."""

NUMBERS: dict[StatusCode, int] = {code: code.value[0] for code in StatusCode}

(
    _OPENED,
    _MESSAGE,
    _ENDED,
    _GONE,
    _PASSED,
    _DRAINED,
    _CLOSED,
    _REFUSED,
    _MISMATCH,
    _EMPTY,
    _FAILED,
    _READY,
) = range(12)


class Calls:
    """Handles what the threads tell, on the event loop that made it.

    Args:
        server: the threads.
        context: of the server.

    Attributes:
        is_empty: set once no connection is left after `Server.drain`.
    """

    def __init__(self, server: Server, context: ServerContext) -> None:
        self._server, self._context = server, context
        self._calls: dict[int, Call] = {}
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._making: dict[int, MakePassage] = {}
        self._paused: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._is_flush_due = self._has_turn = False
        self.is_empty = asyncio.Event()

    def start(self) -> None:
        """Begin to handle what is told."""
        self._context.show_room(self._server)
        self._context.account.watch(lambda: self._context.count(self._server))
        self._loop.add_reader(self._server.fileno(), self._take)

    def stop(self) -> None:
        """Handle what was told last, and nothing more; the threads must have ended."""
        self._loop.remove_reader(self._server.fileno())
        while events := self._server.take(AT_ONCE):
            for event in events:
                self._hear(*event)

    def __len__(self) -> int:
        return len(self._calls)

    # -- for the services -----------------------------------------------------------------------------------------

    def send(self, call: int, message: bytes) -> None:
        """Send a message on a call; without effect if it is over."""
        self._server.send(call, message)
        self._flush_soon()

    def finish(self, call: int, status: StatusCode, text: str) -> None:
        """End a call; without effect if it is over."""
        if self._calls.pop(call, None) is not None:
            self._server.finish(call, NUMBERS[status], text)
            self._forget(call)
            self._flush_soon()

    def pause(self, call: int) -> None:
        """Have no more messages of a call delivered."""
        self._paused.add(call)
        self._server.pause(call)
        self._flush_soon()

    def resume(self, call: int) -> None:
        """Have messages of a call delivered again."""
        self._paused.discard(call)
        self._server.resume(call)
        self._flush_soon()

    def pass_messages(self, call: int, make: MakePassage) -> None:
        """See `Responder`."""
        self._making[call] = make
        self._server.ask(call)
        self._flush_soon()

    async def drained(self, call: int) -> None:
        """Return when no message of the call waits for the client, or the call is over."""
        if call not in self._calls:
            return
        if (waiting := self._waiting.get(call)) is None:
            waiting = self._waiting[call] = self._loop.create_future()
            self._server.tell_drained(call)
            self._flush_soon()
        await asyncio.shield(waiting)

    # -- from the threads -----------------------------------------------------------------------------------------

    def _take(self) -> None:
        server, context = self._server, self._context
        ends_at = monotonic() + TURN_S
        self._has_turn = True
        try:
            while events := server.take(AT_ONCE):
                context.count(server)  # what was taken is its call's from here on
                for event in events:
                    self._hear(*event)
                server.flush()
                if monotonic() >= ends_at:
                    break
        finally:
            self._has_turn = False
            server.flush()
            context.count(server)
            context.show_room(server)
            if server.has_more():
                self._loop.call_soon(self._take)

    def _hear(self, kind: int, number: int, data: bytes | str) -> None:
        try:
            self._handle(kind, number, data)
        except Exception as error:  # noqa: BLE001 - a fault in one call must cost that call alone
            _log.error("a call failed with %s\n%s", type(error).__name__, place_of(error))
            self._server.finish(number, NUMBERS[StatusCode.INTERNAL], "the service failed on this call")
            try:
                self._drop(number)
            except Exception as error:  # noqa: BLE001 - as above
                _log.error("the end of a call failed with %s\n%s", type(error).__name__, place_of(error))

    def _handle(self, kind: int, number: int, data: bytes | str) -> None:
        call = self._calls.get(number)
        if kind == _MESSAGE:
            if call is not None:
                call.received(data)  # type: ignore[arg-type] # messages are bytes
        elif kind == _OPENED:
            self._open(number, str(data))
        elif kind == _PASSED:
            if call is not None:
                call.passed(data)  # type: ignore[arg-type] # reports are bytes
        elif kind == _ENDED:
            if call is not None:
                call.ended()
        elif kind == _GONE:
            self._drop(number)
        elif kind == _READY:
            self._begin_passage(number)
        elif kind == _DRAINED:
            self._wake(number)
        elif kind == _EMPTY:
            self.is_empty.set()
        else:
            self._note(kind, str(data))

    def _note(self, kind: int, text: str) -> None:
        context = self._context
        if kind == _CLOSED:
            context.metrics.closed(text)
        elif kind == _REFUSED:
            context.metrics.refused(text)
        elif kind == _MISMATCH:
            context.on_mismatch("tls" if text == "tls" else "plaintext")
        elif kind == _FAILED:
            _log.critical("a thread of connections failed: %s", text)
            spawn(_failed(text), "listener", of="server.extProc", vital=True)

    def _open(self, number: int, path: str) -> None:
        opens = self._context.resolve(path)
        if opens is None:
            self._server.finish(number, NUMBERS[StatusCode.UNIMPLEMENTED], f"no method {path[:200]}")
        else:
            self._calls[number] = opens(CallResponder(self, number))

    def _begin_passage(self, number: int) -> None:
        make = self._making.pop(number, None)
        self._server.pass_messages(number, make() if make is not None else None)
        if number in self._paused:  # since it asked; a passage begins with the call reading
            self._server.pause(number)

    def _drop(self, number: int) -> None:
        call = self._calls.pop(number, None)
        self._forget(number)
        if call is not None:
            call.gone()

    def _forget(self, number: int) -> None:
        self._paused.discard(number)
        if self._making:
            self._making.pop(number, None)
        if self._waiting:
            self._wake(number)

    def _wake(self, number: int) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _flush_soon(self) -> None:
        if not (self._has_turn or self._is_flush_due):
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        self._server.flush()
        self._context.show_room(self._server)  # what calls held may be free by now


async def _failed(text: str) -> None:
    raise RuntimeError(text)


class CallResponder:
    """See `Responder`."""

    __slots__ = ("_calls", "_number")

    def __init__(self, calls: Calls, number: int) -> None:
        self._calls, self._number = calls, number

    def send(self, message: bytes) -> None:
        """See `Responder`."""
        self._calls.send(self._number, message)

    def finish(self, status: StatusCode, text: str = "") -> None:
        """See `Responder`."""
        self._calls.finish(self._number, status, text)

    async def drained(self) -> None:
        """See `Responder`."""
        await self._calls.drained(self._number)

    def pass_messages(self, make: MakePassage) -> None:
        """See `Responder`."""
        self._calls.pass_messages(self._number, make)

    def pause_reading(self) -> None:
        """See `Responder`."""
        self._calls.pause(self._number)

    def resume_reading(self) -> None:
        """See `Responder`."""
        self._calls.resume(self._number)
