"""The interface between a transport and the service behind it, for one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from grpc import StatusCode

if TYPE_CHECKING:
    from ._native import Passage

MakePassage: TypeAlias = "Callable[[], Passage | None]"
"""Makes a passage that goes on where the call is; None if the call takes its messages itself."""


class Call(Protocol):
    """The service's side of one call. Its methods are called from the event loop, in the order of the events."""

    def received(self, message: bytes) -> None:
        """Take the client's next message."""
        ...

    def passed(self, report: bytes) -> None:
        """Take note of a report of the passage that it asked for. The last one comes before any other method is called."""
        ...

    def ended(self) -> None:
        """Take note that the client has sent everything."""
        ...

    def gone(self) -> None:
        """Take note that the client is gone: nothing can be sent any more, and no other method is called."""
        ...


class Responder(Protocol):
    """The client's side of one call. After the end of the call, its methods have no effect."""

    def send(self, message: bytes) -> None:
        """Send a message; it stays in memory until the client accepts it."""
        ...

    def finish(self, status: StatusCode, text: str = "") -> None:
        """End the call, after all messages sent before."""
        ...

    def pass_messages(self, make: MakePassage) -> None:
        """Have further messages answered by a passage, once those that have been read already are taken.

        Without effect where the transport has no native part: then each message comes to the call.
        """
        ...

    async def drained(self) -> None:
        """Return when few sent messages still wait for the client."""
        ...

    def pause_reading(self) -> None:
        """Deliver no more of the client's messages, but for a few that have been read already."""
        ...

    def resume_reading(self) -> None:
        """Deliver messages again."""
        ...


OpenCall: TypeAlias = Callable[[Responder], Call]
"""Opens the service's side of a new call."""
