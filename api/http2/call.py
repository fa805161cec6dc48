"""What a connection and the service behind it say to each other about one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from grpc import StatusCode


class Call(Protocol):
    """The service's side of one call. Its methods are called from the event loop, in the order in which things happen."""

    def received(self, message: bytes) -> None:
        """The client's next message."""
        ...

    def ended(self) -> None:
        """The client has sent all."""
        ...

    def gone(self) -> None:
        """The call is over for the client: nothing can be sent any more, and nothing else will be told."""
        ...


class Responder(Protocol):
    """The client's side. Once the call is over for one of the two, nothing happens any more."""

    def send(self, message: bytes) -> None:
        """Send a message; it waits in memory until the client takes it."""
        ...

    def finish(self, status: StatusCode, text: str = "") -> None:
        """End the call, after everything that was sent."""
        ...

    async def drained(self) -> None:
        """Return when little of what was sent still waits for the client."""
        ...


OpenCall: TypeAlias = Callable[[Responder], Call]
"""Makes the service's side of a new call."""
