"""A channel: one kind of knowledge that replicas share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

MAX_MESSAGE_BYTES = 2**20
"""Longest message between replicas."""

MAX_PAYLOAD_BYTES = MAX_MESSAGE_BYTES - 1024
"""Longest payload of a channel: a message without the longest head."""


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding bytes that a sibling sent; the last one is of values that nest too deeply."""


class MalformedError(ValueError):
    """A payload of a sibling that is not what its channel sends. It is counted and skipped."""


class Channel(Protocol):
    """One kind of knowledge, published by its owners and added up by everybody.

    Payloads are absolute: they state what now holds of the things that they name. So the last one wins, one that is applied
    again changes nothing, and a lost one leaves only what it named out of date, until the whole comes.
    """

    def listen(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` when there is something to drain and there was nothing before."""
        ...

    def drain(self) -> Sequence[bytes]:
        """Return what changed since the last call, in payloads of at most `MAX_PAYLOAD_BYTES`."""
        ...

    def whole(self) -> Sequence[bytes]:
        """Return all that this replica owns, in such payloads; none if it owns nothing. What is not drained yet may be in it."""
        ...

    def apply(self, owner: str, payload: bytes) -> None:
        """Take what a sibling drained.

        Args:
            owner: id of the sibling.
            payload: as received: hostile, and at most `MAX_PAYLOAD_BYTES`.
        Raises:
            MalformedError: it cannot be decoded; nothing has changed.
        """
        ...

    def replace(self, owner: str, payloads: Sequence[bytes]) -> None:
        """Take the whole of a sibling in place of all that is known of it; raises as `apply`."""
        ...

    def drop(self, owner: str) -> None:
        """Forget what a sibling owns, because it is gone; an unknown one is ignored."""
        ...


class Letters(Protocol):
    """Messages to one sibling, which are neither ordered nor repeated; replies are further letters."""

    def received(self, sender: str, payload: bytes, now_ns: int) -> Sequence[tuple[str, bytes]]:
        """Take a letter; return letters to send as (id of the sibling, payload). Raises as `Channel.apply`."""
        ...
