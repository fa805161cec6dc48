"""The accepted connections of one listener: bounded in number, and in the time of their TLS handshakes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .accepting import Accepting
from .errors import ListenError

log = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that wait in the kernel."""


class OpenConnection(Protocol):
    """A connection whose handshake is complete, as the acceptor sees it."""

    @property
    def is_waiting(self) -> bool:
        """Whether there is no complete request to answer."""
        ...

    @property
    def active_at(self) -> float:
        """Monotonic time of its last data. Among equal ones the oldest connection gives up its place first."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...


Opened = Callable[[OpenConnection], Callable[[], None]]
"""Takes a connection after its handshake, and returns what to call at its end."""


@dataclass(eq=False, slots=True)
class _Place:
    """One accepted connection.

    Attributes:
        accepted: its socket.
        task: opens it, with the handshake.
        has_begun: whether the task has begun.
        connection: None until it is open.
    """

    accepted: socket.socket
    task: asyncio.Task[None] | None = None
    has_begun: bool = False
    connection: OpenConnection | None = None


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of the connections of one listener.

    Attributes:
        max_connections: number at a time, with those in a TLS handshake. One more takes the place of one that waits.
        timeout_s: longest time for a TLS handshake, and for what else the listener bounds by it.
    """

    max_connections: int = 1024
    timeout_s: float = 10.0


class Acceptor:
    """Accepts the connections of a listening socket, in place of asyncio's server.

    Args:
        listening: bound and listening.
        limits: bounds.
        tls: server-side TLS context, None for plain text.
        make_protocol: makes the protocol of a connection, which must call its argument when it is open.
        on_refused: called with the reason for each connection that is refused or gives up its place.
    """

    def __init__(
        self,
        listening: socket.socket,
        limits: ConnectionLimits,
        tls: ssl.SSLContext | None,
        *,
        make_protocol: Callable[[Opened], asyncio.Protocol],
        on_refused: Callable[[str], None],
    ) -> None:
        self._limits, self._tls = limits, tls
        self._make_protocol, self._on_refused = make_protocol, on_refused
        self._places: dict[_Place, None] = {}
        """In the order in which they were accepted."""
        self._opening: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._accepting = Accepting(
            listening, on_accepted=self._accepted, on_shortage=lambda: self._make_room("no_descriptor")
        )

    def close(self) -> None:
        """Accept no more connections, and end the handshakes; nothing if that was done before."""
        self._accepting.close()
        for place in list(self._places):
            if place.connection is None:
                self._end(place)

    async def wait_closed(self) -> None:
        """Wait until the handshakes have ended."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _accepted(self, accepted: socket.socket) -> None:
        if len(self._places) >= self._limits.max_connections and not self._make_room("too_many_connections"):
            accepted.close()
            return
        place = _Place(accepted)
        self._places[place] = None
        place.task = self._loop.create_task(self._open(place))
        self._opening.add(place.task)
        place.task.add_done_callback(self._opening.discard)

    def _make_room(self, reason: str) -> bool:
        """Close the connection that has waited longest; returns whether there is one."""
        self._on_refused(reason)
        waiting = (each for each in self._places if each.connection is None or each.connection.is_waiting)
        place = min(waiting, key=_active_at, default=None)
        if place is None:
            return False
        self._end(place)
        return True

    def _end(self, place: _Place) -> None:
        self._places.pop(place, None)
        if place.connection is not None:
            place.connection.abort()
        elif place.has_begun:
            # uvloop never reports the end of a connection whose opening is cancelled while it is made
            with contextlib.suppress(OSError):
                place.accepted.shutdown(socket.SHUT_RDWR)
        elif place.task is not None:
            place.task.cancel()
            place.accepted.close()

    async def _open(self, place: _Place) -> None:
        place.has_begun = True

        def opened(connection: OpenConnection) -> Callable[[], None]:
            place.connection = connection
            if place not in self._places:  # it was given up a moment ago
                connection.abort()
            return lambda: self._places.pop(place, None)

        timeout_s = self._limits.timeout_s if self._tls is not None else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make_protocol(opened),
                place.accepted,
                ssl=self._tls,
                ssl_handshake_timeout=timeout_s,
            )
        except OSError as error:  # includes errors of TLS
            if isinstance(
                error, ConnectionAbortedError
            ):  # asyncio's error for a handshake that takes too long
                self._on_refused("timeout")
            log.debug("a connection was not opened: %s", type(error).__name__)
        finally:
            if place.connection is None:
                self._places.pop(place, None)
                place.accepted.close()


def _active_at(place: _Place) -> float:
    return place.connection.active_at if place.connection is not None else 0.0


def listen(setting: str, host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Return a socket that listens on `host:port`; arguments and errors as of `bind`."""
    listening = bind(setting, host, port, is_shared=is_shared)
    try:
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise _refused(setting, host, port, error) from None
    return listening


def bind(setting: str, host: str, port: int, *, is_shared: bool) -> socket.socket:
    """Return a socket that is bound to `host:port`; port 0 takes a free one.

    Args:
        setting: configuration key of the address, named in errors: `server.rest`.
        host: a name or an address of this machine; `::` is every interface with IPv6 and IPv4.
        port: to bind.
        is_shared: whether other processes of this user may listen there too. Each connection then goes to one of those that
            listen, as the kernel chooses.
    Raises:
        ListenError: the address is taken or not one of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _refused(setting, host, port, error) from None
    return bound


def _refused(setting: str, host: str, port: int, error: OSError) -> ListenError:
    return ListenError(
        f"{setting}: cannot listen on {host}:{port}: {error.strerror}; "
        f"stop what listens there, or set {setting} to another HOST:PORT"
    )
