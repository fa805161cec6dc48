"""The consumer of one publisher's stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from .model import Batch
from .runs import Run
from .stream import Trust

if TYPE_CHECKING:
    from ._native import Inbox as NativeMessages


class Draft(Protocol):
    """A state that is built from a snapshot, invisible until it is adopted."""

    def apply(self, batch: Batch) -> Iterator[None]:
        """Apply a batch, one slice per step."""
        ...

    def adopt(self) -> None:
        """Replace the publisher's present state by this one, atomically."""
        ...


class EventSink(Protocol):
    """Receiver of one publisher's batches, in order, on the event loop's thread."""

    def apply(self, batch: Batch, *, live: bool) -> Iterator[None] | None:
        """Apply a batch; each comes once. `live` is False if it came by replay.

        Returns an iterator that applies one slice per step, None if all is applied.
        """
        ...

    def apply_run(self, inbox: NativeMessages, seq: int) -> Run | None:
        """Apply live messages from number `seq` on, and take them out of the inbox, as far as they are ordinary.

        Returns None if each message has to come by `apply`.
        """
        ...

    def reset(self, reason: str) -> None:
        """Forget the publisher's state: it started a new life."""
        ...

    def rejected(self, reason: str) -> None:
        """Count unreadable input; `reason` is one bounded word."""
        ...

    def trust_changed(self, old: Trust, new: Trust) -> None:
        """Handle a change of trust in the publisher's state."""
        ...

    def draft(self) -> Draft:
        """Return an empty state, to be built from a snapshot of the publisher."""
        ...

    def snapshot_ended(self, outcome: str, seconds: float) -> None:
        """Count a snapshot: its outcome as one word of a fixed few, and its seconds since the request."""
        ...
