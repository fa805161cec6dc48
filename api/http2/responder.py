"""The client's side of one call, for the service behind it."""

from __future__ import annotations

from typing import Protocol

from grpc import StatusCode

from .call import MakePassage


class Streams(Protocol):
    """The connection of a call."""

    def send(self, stream: int, message: bytes) -> None:
        """Send a message on a call."""
        ...

    def finish(self, stream: int, status: StatusCode, text: str) -> None:
        """End a call."""
        ...

    def pass_messages(self, stream: int, make: MakePassage) -> None:
        """Have further messages of a call answered by a passage."""
        ...

    async def drained(self, stream: int) -> None:
        """Return when no message of the call waits for the client, or the call is over."""
        ...

    def pause(self, stream: int) -> None:
        """Deliver no more messages of a call."""
        ...

    def resume(self, stream: int) -> None:
        """Deliver messages of a call again."""
        ...


class CallResponder:
    """See `Responder`."""

    __slots__ = ("_connection", "_stream")

    def __init__(self, connection: Streams, stream: int) -> None:
        self._connection, self._stream = connection, stream

    def send(self, message: bytes) -> None:
        """See `Responder`."""
        self._connection.send(self._stream, message)

    def finish(self, status: StatusCode, text: str = "") -> None:
        """See `Responder`."""
        self._connection.finish(self._stream, status, text)

    def pass_messages(self, make: MakePassage) -> None:
        """See `Responder`."""
        self._connection.pass_messages(self._stream, make)

    async def drained(self) -> None:
        """See `Responder`."""
        await self._connection.drained(self._stream)

    def pause_reading(self) -> None:
        """See `Responder`."""
        self._connection.pause(self._stream)

    def resume_reading(self) -> None:
        """See `Responder`."""
        self._connection.resume(self._stream)
