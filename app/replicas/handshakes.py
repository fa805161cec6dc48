"""Failed handshakes of the mesh: counted, and said once for each address."""

from __future__ import annotations

import logging
from collections.abc import Callable

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from ...events.sockets import open_monitor
from .transport import Traffic

log = logging.getLogger(__name__)

_FAILED = (
    zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
)

_CRYPTOGRAPHIC = 0x11000001
"""Detail of a peer that encrypted with another key (ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)."""

_MAX_LOGGED = 64


class Handshakes:
    """Counts failed handshakes, and says each kind of them once.

    Args:
        traffic: counts those of connections that others made.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._logged: set[str] = set()

    async def watch_listener(self, socket: zmq.asyncio.Socket) -> None:
        """Watch the connections that others make, until cancelled."""
        await _watch(socket, self._incoming)

    async def watch_line(self, socket: zmq.asyncio.Socket) -> None:
        """Watch a connection that this process makes, until cancelled."""
        await _watch(socket, self._outgoing)

    def _incoming(self, event: zmq.Event, value: int, _: str) -> None:
        is_secret = event is zmq.Event.HANDSHAKE_FAILED_AUTH or value == _CRYPTOGRAPHIC
        reason = "secret" if is_secret else "handshake"
        self._traffic.refused[reason] += 1
        if reason not in self._logged:
            self._logged.add(reason)
            log.warning(
                "replicas: a connection was refused: %s; it is not logged again",
                "its secret is not that of replicas.mesh.secretFile" if is_secret else "its handshake is not that of a replica",
            )  # fmt: skip

    def _outgoing(self, event: zmq.Event, _: int, address: str) -> None:
        if (
            event is zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
            and address not in self._logged
            and len(self._logged) < _MAX_LOGGED
        ):
            self._logged.add(address)
            log.warning(
                "replicas: %s closed the connection during the handshake; if that goes on, its replicas.mesh.secretFile "
                "has another secret, or it has none",
                address,
            )


async def _watch(socket: zmq.asyncio.Socket, note: Callable[[zmq.Event, int, str], None]) -> None:
    monitor = open_monitor(socket, _FAILED)
    try:
        while True:
            message = await recv_monitor_message(monitor)
            note(
                zmq.Event(message["event"]),
                int(message["value"]),
                message["endpoint"].decode(errors="replace"),
            )
    finally:
        socket.disable_monitor()
        monitor.close(linger=0)  # the loop holds one that is open for ever
