"""Limits, account and counters shared by all connections of a listener."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ..tls.mismatches import OnMismatch
from .call import OpenCall
from .liveness import GREETING_S
from .metrics import TransportMetrics
from .turns import Turns

DEFAULT_MAX_STREAMS = 40_000
DEFAULT_MAX_CONNECTIONS = 1024
DEFAULT_MAX_EARLY_ENDS = 10_000

Resolve = Callable[[str], OpenCall | None]
"""Path of a method -> what opens a call to it; None if there is no such method."""


class Account(Protocol):
    """Bytes held by all connections together.

    Attributes:
        n_spare_bytes: bytes beside the room, for calls that hold little.
    """

    n_spare_bytes: int

    def room(self) -> int:
        """Return the bytes that are free for everybody, negative past the limit."""
        ...

    def carry(self, n_bytes: int) -> None:
        """Count bytes that a connection holds, negative for those that it holds no more."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a listener.

    Attributes:
        max_message_bytes: longest message received.
        max_connections: connections at once, with those in a TLS handshake.
        max_streams: calls in progress, of all connections together.
        max_early_ends: calls of one connection that may end at once before they were answered.
        handshake_s: longest time for a TLS handshake.
    """

    max_message_bytes: int
    max_connections: int = DEFAULT_MAX_CONNECTIONS
    max_streams: int = DEFAULT_MAX_STREAMS
    max_early_ends: int = DEFAULT_MAX_EARLY_ENDS
    handshake_s: float = GREETING_S

    @property
    def fair_streams(self) -> int:
        """Calls that a connection may open though others have used up `max_streams`."""
        return max(1, self.max_streams // self.max_connections)


@dataclass(slots=True)
class ConnectionContext:
    """What all connections of a listener share.

    Attributes:
        resolve: finds the methods.
        limits: of the listener.
        account: bytes held by all connections.
        metrics: counts what the limits did.
        on_mismatch: called for each connection whose peer speaks TLS.
        turns: order of the connections.
        n_calls: calls in progress.
    """

    resolve: Resolve
    limits: Limits
    account: Account
    metrics: TransportMetrics
    on_mismatch: OnMismatch
    turns: Turns = field(init=False)
    n_calls: int = 0

    def __post_init__(self) -> None:
        self.turns = Turns(self.metrics.deferred)

    def room(self, n_held: int) -> int:
        """Return the bytes that a connection may hold: those that it holds and those that are free.

        Two messages of the longest kind fit beside a full account: its limit routes requests without their prefix, and
        must not refuse them here.
        """
        return max(0, n_held + self.account.room() + 2 * self.limits.max_message_bytes)
