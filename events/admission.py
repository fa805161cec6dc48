"""Who may publish to the bound socket: its peers' networks, keys and number, decided by ZMQ's authentication protocol."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path

import zmq
import zmq.asyncio
from zmq.auth import load_certificate, load_certificates  # pyright: ignore[reportUnknownVariableType]  # pyzmq
from zmq.utils.monitor import recv_monitor_message
from zmq.utils.z85 import encode

from .byte_budget import ByteBudget
from .errors import SubscriptionError, describe
from .inbox import inbox_within
from .receiver import Receiver
from .sockets import open_monitor, open_socket
from .tasks import keep
from .turns import Turns

log = logging.getLogger(__name__)

_ADDRESS = "inproc://zeromq.zap.01"
_DOMAIN = b"kvatlas"
"""Not empty: ZMQ asks about peers without keys only in a named domain."""

_HANDSHAKE_MS = 3_000
"""Time for a peer's handshake. A peer that was refused is disconnected after it, and may try again."""

_MONITORED = (
    zmq.Event.HANDSHAKE_SUCCEEDED
    | zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.DISCONNECTED
)

_MAX_LOGGED = 64
"""Refused addresses that are logged, once each; every refusal is counted."""


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """CurveZMQ keys.

    Attributes:
        public: own public key, as text in Z85.
        secret: own secret key, as text in Z85.
        peers: public keys of the publishers that may connect.
    """

    public: bytes
    secret: bytes = field(repr=False)
    peers: frozenset[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may connect.

    Attributes:
        networks: of the peers; a Unix socket is guarded by its folder instead.
        max_connections: connections at one time; further ones are refused.
        curve: keys for encryption and mutual authentication, None to take peers without keys.
    """

    networks: tuple[IPv4Network | IPv6Network, ...]
    max_connections: int = 4096
    curve: CurveKeys | None = None

    def refusal(self, address: str, key: bytes | None, *, n_connections: int) -> str | None:
        """Return why a peer may not connect, one bounded word; None if it may.

        Args:
            address: its IP address, empty for a Unix socket.
            key: its public key, None if it has none.
            n_connections: admitted before.
        """
        if address and not self._is_allowed(address):
            return "address"
        if self.curve is not None and (key is None or encode(key) not in self.curve.peers):
            return "key"
        return "connections" if n_connections >= self.max_connections else None

    def _is_allowed(self, address: str) -> bool:
        try:
            peer = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(peer, IPv6Address) and peer.ipv4_mapped is not None:
            peer = peer.ipv4_mapped
        return any(peer in network for network in self.networks)


LOCAL = Access(networks=(ip_network("127.0.0.0/8"), ip_network("::1/128")))
"""Peers on this machine."""


def load_curve(key_file: str, peers_folder: str) -> CurveKeys:
    """Load keys in the files that `zmq.auth.create_certificates` writes.

    Args:
        key_file: own public and secret key.
        peers_folder: folder of `*.key` files with the publishers' public keys.
    Raises:
        SubscriptionError: a file cannot be read, or there is no key of a publisher.
    """
    try:
        public, secret = load_certificate(key_file)
        peers = frozenset(load_certificates(peers_folder))
    except (OSError, ValueError) as error:
        raise SubscriptionError(f"cannot read the keys of events.curve: {error}") from None
    if secret is None:
        raise SubscriptionError(f"events.curve.keyFile: {Path(key_file).name!r} has no secret-key")
    if not peers:
        raise SubscriptionError("events.curve.peersFolder: no *.key file in it has a public-key")
    return CurveKeys(public, secret, peers)


class Admission:
    """Admits the peers of one bound socket. Implements `receiver.Taker`. Create it before the socket is bound.

    Source: ZeroMQ RFC 27 (ZAP).

    Args:
        context: of the socket.
        turns: when to receive.
        socket: is prepared for authentication.
        access: who may connect.

    Attributes:
        refused: refused connections by reason.
    """

    def __init__(
        self, context: zmq.asyncio.Context, turns: Turns, socket: zmq.asyncio.Socket, access: Access
    ) -> None:
        self._access, self._guarded = access, socket
        self._connections = Connections()
        self._logged: set[str] = set()
        self.refused: Counter[str] = Counter()
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        if access.curve is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, access.curve.public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, access.curve.secret)
        self._requests = open_socket(context, zmq.ROUTER, receive_hwm=0, ipv6=False)
        self._requests.bind(_ADDRESS)
        self._monitor = open_monitor(socket, _MONITORED)
        self._receiver = Receiver(self._requests, turns, self, open_inbox=inbox_within(ByteBudget(1 << 20)))
        self._watching = keep(self._watch, "admission")

    def close(self) -> None:
        """Admit nobody any more; call it before the socket is closed."""
        self._receiver.close()
        self._watching.cancel()
        self._guarded.disable_monitor()
        self._monitor.close(linger=0)
        self._requests.close(linger=0)

    def take(self, frames: list[bytes]) -> None:
        """Answer whether a peer may connect."""
        identity, _, version, request, _, address, _, mechanism, *credentials = frames
        key = credentials[0] if mechanism == b"CURVE" and credentials else None
        text = address.decode(errors="replace")
        reason = self._access.refusal(text, key, n_connections=self._connections.n_admitted)
        if reason is None:
            self._connections.n_expected += 1
        else:
            self.refused[reason] += 1
            self._log_once(text, reason)
        # "temporary" error: after a permanent one ZMQ would never connect again, even if we allow it later
        status = (b"200", b"OK") if reason is None else (b"300", b"refused")
        reply = [identity, b"", version, request, *status, b"", b""]
        zmq.Socket.shadow(self._requests).send_multipart(reply, zmq.NOBLOCK)  # pyright: ignore[reportUnknownMemberType]

    def dropped(self, frames: list[bytes], reason: str) -> bool:  # noqa: ARG002 - a method of Taker
        """Count a question past a limit; its peer's handshake times out."""
        self.refused[reason] += 1
        return False

    def failed(self, error: Exception) -> None:
        """Log a failed question; its peer's handshake times out."""
        self.refused["internal_error"] += 1
        self._log_once(describe(error), "internal_error")

    def is_ready(self) -> bool:
        """See `Taker.is_ready`."""
        return True

    def _log_once(self, who: str, reason: str) -> None:
        if who not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(who)
            log.warning("events: a connection of %s was refused (%s), see events.bindAllow", who, reason)

    async def _watch(self) -> None:
        while True:
            message = await recv_monitor_message(self._monitor)
            self._connections.note(zmq.Event(message["event"]))


@dataclass(slots=True)
class Connections:
    """Number of the connections of a bound socket, from the reports of its monitor.

    Attributes:
        n_open: connections after their handshake.
        n_expected: connections that were admitted, and whose handshake has not ended.
    """

    n_open: int = 0
    n_expected: int = 0
    _failed: bool = False

    @property
    def n_admitted(self) -> int:
        """Connections that are or will be open."""
        return self.n_open + self.n_expected

    def note(self, event: zmq.Event) -> None:
        """Handle a report. That of a failed handshake comes just before that of its disconnection."""
        if event is zmq.Event.DISCONNECTED:
            self.n_open -= not self._failed
            self._failed = False
            return
        if event is zmq.Event.HANDSHAKE_SUCCEEDED:
            self.n_open += 1
        else:
            self._failed = True
        if event is not zmq.Event.HANDSHAKE_FAILED_AUTH:
            self.n_expected = max(0, self.n_expected - 1)
