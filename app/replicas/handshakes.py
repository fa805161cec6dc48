"""Failed handshakes of the mesh: counted, and said once for each address."""

from __future__ import annotations

import asyncio
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


async def watch_handshakes(
    listener: zmq.asyncio.Socket, dealer: zmq.asyncio.Socket, traffic: Traffic
) -> None:
    """Count failed handshakes of both sockets until cancelled."""
    logged: set[str] = set()

    def incoming(event: zmq.Event, value: int, _: str) -> None:
        is_secret = event is zmq.Event.HANDSHAKE_FAILED_AUTH or value == _CRYPTOGRAPHIC
        reason = "secret" if is_secret else "handshake"
        traffic.refused[reason] += 1
        if reason not in logged:
            logged.add(reason)
            log.warning(
                "replicas: a connection was refused: %s; it is not logged again",
                "its secret is not that of replicas.mesh.secretFile" if is_secret else "its handshake is not that of a replica",
            )  # fmt: skip

    def outgoing(event: zmq.Event, _: int, address: str) -> None:
        if (
            event is zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
            and address not in logged
            and len(logged) < _MAX_LOGGED
        ):
            logged.add(address)
            log.warning(
                "replicas: %s closed the connection during the handshake; if that goes on, its replicas.mesh.secretFile "
                "has another secret, or it has none",
                address,
            )

    async with asyncio.TaskGroup() as tasks:
        for socket, note in ((listener, incoming), (dealer, outgoing)):
            monitor = open_monitor(socket, _FAILED)
            tasks.create_task(_watch(monitor, note))


async def _watch(monitor: zmq.asyncio.Socket, note: Callable[[zmq.Event, int, str], None]) -> None:
    while True:
        message = await recv_monitor_message(monitor)
        note(zmq.Event(message["event"]), int(message["value"]), message["endpoint"].decode(errors="replace"))
