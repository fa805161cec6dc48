"""ZeroMQ between the replicas: each listens, and connects to all others.

A replica sends to those that connected to it, and receives from those to which it connected, so one connection in each
direction makes a pair:

- a ROUTER listens. Whoever connects names its replica id as routing id. It has a send queue for each of them, so a slow or
  frozen sibling costs the others nothing.
- a DEALER for each address that discovery finds connects to it, and receives what it sends.

The first message of a connection is empty (ZMQ_PROBE_ROUTER), and announces the sibling that connected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

import zmq
import zmq.asyncio

from ...events.sockets import bound_address, open_socket
from ...fleet.replicas.channel import MAX_MESSAGE_BYTES
from ...fleet.replicas.replica import Outgoing
from ..errors import ReplicaError
from .handshakes import Handshakes
from .mesh_keys import MeshKeys
from .mesh_lines import Lines
from .transport import LAST_WORDS_S, OnMessage, SendQueue, Traffic
from .zap import KeyAdmission

log = logging.getLogger(__name__)

Discovery = Callable[[Callable[[frozenset[str]], None]], Awaitable[None]]
"""Calls its argument with the ZMQ addresses of all replicas whenever they change, until cancelled. The own may be among them."""

MAX_SIBLINGS = 128
"""Further ones are refused: twice as many as the core takes, since connections of ended processes may linger."""

_QUEUED = 64
"""Messages in ZMQ's own queues for one sibling, in each direction; what waits beyond them waits in `SendQueue`."""

_RETRY_S = 0.005
"""Interval of trying to send what waits for a sibling."""

_HELLOS_PER_TURN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshOptions:
    """Settings of one replica's mesh.

    Attributes:
        listen: address to listen on, `tcp://` or `ipc://`; port 0 selects a free port.
        discover: finds the others.
        keys: encrypt and authenticate; None for neither.
        answers: whether to connect to siblings that connect here before discovery finds them. They are expected on the
            port that they name, at the address they come from.
    """

    listen: str
    discover: Discovery
    keys: MeshKeys | None = None
    answers: bool = False


@dataclass(slots=True)
class _Sibling:
    """One that connected: what waits for it, and where it listens if it was not discovered."""

    routing_id: bytes
    waiting: SendQueue
    address: str = ""


class Mesh:
    """Implements `Transport`.

    Args:
        options: settings.
        replica: id of this replica.
        on_message: takes the messages of the others.

    Attributes:
        address: as bound, with the actual port.

    Raises:
        ReplicaError: the address cannot be listened on.
    """

    def __init__(self, options: MeshOptions, *, replica: str, on_message: OnMessage) -> None:
        self._options, self._replica, self._on_message = options, replica, on_message
        self.traffic = Traffic()
        self._siblings: dict[str, _Sibling] = {}
        self._found: frozenset[str] = frozenset()
        self._retry: asyncio.TimerHandle | None = None
        self._context = zmq.asyncio.Context()
        self._admission: KeyAdmission | None = None
        self._listener = open_socket(
            self._context, zmq.ROUTER, receive_hwm=_QUEUED, ipv6="[" in options.listen
        )
        # The same socket without futures: sends and hellos never wait in ZMQ.
        self._plain = cast("zmq.Socket[bytes]", zmq.Socket.shadow(self._listener))  # pyright: ignore[reportUnknownMemberType]
        self._prepare(self._listener)
        self._listener.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # A sibling that lost its connection comes back before this side has noticed the loss.
        self._listener.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._listener.setsockopt(zmq.SNDHWM, _QUEUED)
        self.address = self._bind()
        self._handshakes = Handshakes(self.traffic)
        self._lines = Lines(self._open_line, self._handshakes.watch_line, self._receive, self.traffic)

    async def run(self) -> None:
        """See `Transport.run`."""
        loop = asyncio.get_running_loop()
        descriptor = self._plain.fileno()
        loop.add_reader(descriptor, self._take_hellos)
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._admission is not None:
                    tasks.create_task(self._admission.run())
                tasks.create_task(self._handshakes.watch_listener(self._listener))
                self._take_hellos()
                await self._options.discover(self._discovered)
                await asyncio.Event().wait()
        finally:
            loop.remove_reader(descriptor)
            await self._lines.close()

    async def close(self) -> None:
        """See `Transport.close`."""
        if self._retry is not None:
            self._retry.cancel()
        if self._admission is not None:
            self._admission.close()
        await asyncio.to_thread(self._context.destroy, linger=round(LAST_WORDS_S * 1000))

    def send(self, outgoing: Outgoing) -> None:
        """See `Transport.send`."""
        if outgoing.to is None:
            for replica, sibling in tuple(self._siblings.items()):
                self._give(replica, sibling, outgoing.payload)
        elif (named := self._siblings.get(outgoing.to)) is not None:
            self._give(outgoing.to, named, outgoing.payload)
        else:
            self.traffic.dropped["not_connected"] += 1
        self._take_hellos()  # sending may have taken the report of their arrival

    def _prepare(self, socket: zmq.asyncio.Socket) -> None:
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        # a host that is gone is noticed sooner than that of an engine
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
        socket.setsockopt(zmq.TCP_MAXRT, 3_000)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 3_000)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)

    def _bind(self) -> str:
        options = self._options
        if options.keys is not None:
            self._admission = KeyAdmission(self._context, options.keys.connecting.public)
            self._admission.guard(self._listener)
            self._listener.setsockopt(zmq.CURVE_SERVER, 1)
            self._listener.setsockopt(zmq.CURVE_PUBLICKEY, options.keys.listening.public)
            self._listener.setsockopt(zmq.CURVE_SECRETKEY, options.keys.listening.secret)
        try:
            self._listener.bind(options.listen)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ReplicaError(
                f"cannot listen for replicas on {options.listen!r}: {zmq.strerror(error.errno or 0)}; stop the process "
                "that listens there, or set replicas.mesh.listen to another address"
            ) from None
        return bound_address(self._listener)

    def _open_line(self) -> zmq.asyncio.Socket:
        dealer = open_socket(self._context, zmq.DEALER, receive_hwm=_QUEUED, ipv6=True)
        self._prepare(dealer)
        port = self.address.rpartition(":")[2] if self.address.startswith("tcp:") else ""
        dealer.setsockopt(zmq.ROUTING_ID, f"{port}@{self._replica}".encode())
        dealer.setsockopt(zmq.PROBE_ROUTER, 1)
        dealer.setsockopt(zmq.IMMEDIATE, 1)  # else a connection that comes back is not announced again
        if (keys := self._options.keys) is not None:
            dealer.setsockopt(zmq.CURVE_SERVERKEY, keys.listening.public)
            dealer.setsockopt(zmq.CURVE_PUBLICKEY, keys.connecting.public)
            dealer.setsockopt(zmq.CURVE_SECRETKEY, keys.connecting.secret)
        return dealer

    def _discovered(self, addresses: frozenset[str]) -> None:
        self._found = addresses
        self._connect()

    def _connect(self) -> None:
        """Connect to every address that is known, and to no other."""
        self._lines.connect(self._found | {each.address for each in self._siblings.values() if each.address})

    def _receive(self, frames: list[bytes]) -> None:
        if len(frames) != 1:
            self.traffic.refused["malformed"] += 1
            return
        self.traffic.count_received(len(frames[0]))
        self._on_message(frames[0])

    def _take_hellos(self) -> None:
        for _ in range(_HELLOS_PER_TURN):
            try:
                routing_id, *rest = self._plain.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            address = _peer_address(rest[-1]) if rest else ""
            if len(rest) == 1 and not rest[0].bytes:
                self._announced(routing_id.bytes, address)
            else:
                self.traffic.refused["malformed"] += 1
        asyncio.get_running_loop().call_soon(self._take_hellos)

    def _announced(self, routing_id: bytes, host: str) -> None:
        """Begin to send to a sibling that has connected."""
        port, _, replica = routing_id.decode(errors="replace").partition("@")
        if not replica or replica == self._replica:
            return
        if replica not in self._siblings and len(self._siblings) >= MAX_SIBLINGS:
            self.traffic.refused["too_many"] += 1
            return
        self.traffic.connections += 1
        address = f"tcp://{host}:{port}" if self._options.answers and host and port.isdigit() else ""
        self._siblings[replica] = _Sibling(routing_id, SendQueue(self.traffic), address)
        if address:
            self._connect()

    def _give(self, replica: str, sibling: _Sibling, payload: bytes) -> None:
        if not sibling.waiting and self._sent(replica, sibling, payload):
            return
        sibling.waiting.push(sibling.routing_id, payload)
        self._retry_later()

    def _sent(self, replica: str, sibling: _Sibling, payload: bytes) -> bool:
        """Send a message; return whether it is done with, since it was sent or nobody is there."""
        try:
            self._plain.send_multipart([sibling.routing_id, payload], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError:  # EHOSTUNREACH
            self.traffic.dropped["not_connected"] += 1
            sibling.waiting.clear()
            if self._siblings.pop(replica, None) is not None and sibling.address:
                self._connect()
            return True
        self.traffic.count_sent(len(payload))
        return True

    def _retry_later(self) -> None:
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._send_waiting)

    def _send_waiting(self) -> None:
        self._retry = None
        for replica, sibling in tuple(self._siblings.items()):
            while sibling.waiting and self._sent(replica, sibling, sibling.waiting.head()[1]):
                if sibling.waiting:
                    sibling.waiting.pop()
        if any(each.waiting for each in self._siblings.values()):
            self._retry_later()
        self._take_hellos()


def _peer_address(frame: zmq.Frame) -> str:
    """Return the IP address from which a message came, as written in a URL; empty for a Unix socket."""
    try:
        host = str(frame.get("Peer-Address"))
    except (zmq.ZMQError, KeyError):
        return ""
    host = host.removeprefix("::ffff:")
    return f"[{host}]" if ":" in host else host
