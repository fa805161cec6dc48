"""Limits, account and counters shared by all connections of a listener."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..tls.mismatches import OnMismatch
from .call import OpenCall
from .metrics import TransportMetrics

if TYPE_CHECKING:
    from ._native import Server

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

    def watch(self, refresh: Callable[[], None]) -> None:
        """Have `refresh` called before what is held is shown; it carries what has changed."""
        ...


@dataclass(frozen=True, slots=True)
class Times:
    """Time limits of a listener, in seconds.

    Attributes:
        greeting_s: for the TLS handshake, the preface and the settings that begin a connection; a gateway sends them at once.
        first_message_s: between the headers of a call and its first message: calls without any cost memory and a place.
        silence_s: without data, after which a gateway is pinged: the streams of one that vanished would stay for ever.
        pong_s: for the answer to a ping.
        notice_s: longest time between the notice to open no more calls and the refusal of new calls.
        linger_s: for a client to read why its connection ends.
        gather_s: longest time between two readings of a thread that reads nothing but chunks, so that one reading brings several.
    """

    greeting_s: float = 10.0
    first_message_s: float = 10.0
    silence_s: float = 60.0
    pong_s: float = 20.0
    notice_s: float = 1.0
    linger_s: float = 1.0
    gather_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a listener.

    Attributes:
        max_message_bytes: longest message received.
        max_connections: connections at once, with those in a TLS handshake.
        max_streams: calls in progress, of all connections together.
        max_early_ends: calls of one connection that may end at once before they were answered.
        times: time limits.
        n_threads: threads that serve connections.
    """

    max_message_bytes: int
    max_connections: int = DEFAULT_MAX_CONNECTIONS
    max_streams: int = DEFAULT_MAX_STREAMS
    max_early_ends: int = DEFAULT_MAX_EARLY_ENDS
    times: Times = Times()
    n_threads: int = 1

    @property
    def fair_streams(self) -> int:
        """Calls that a connection may open though others have used up `max_streams`."""
        return max(1, self.max_streams // self.max_connections)


@dataclass(slots=True)
class ServerContext:
    """What the threads of a listener share with Python.

    Attributes:
        resolve: finds the methods.
        limits: of the listener.
        account: bytes held by all connections.
        metrics: counts what the limits did.
        on_mismatch: called for each connection whose peer disagrees about TLS.
    """

    resolve: Resolve
    limits: Limits
    account: Account
    metrics: TransportMetrics
    on_mismatch: OnMismatch
    _n_held: int = 0
    _n_deferred: int = 0

    def count(self, server: Server) -> None:
        """Count the bytes that the threads hold, and the turns that connections waited for."""
        n_held, n_deferred = server.held(), server.n_deferred()
        self.account.carry(n_held - self._n_held)
        self._n_held = n_held
        if n_deferred != self._n_deferred:
            self.metrics.deferred.add(n=n_deferred - self._n_deferred)
            self._n_deferred = n_deferred

    def show_room(self, server: Server) -> None:
        """Tell the threads how many bytes they may hold together.

        Two messages of the longest kind fit beside a full account: its limit routes requests without their prefix, and
        must not refuse them here.
        """
        server.set_room(self._n_held + self.account.room() + 2 * self.limits.max_message_bytes)
