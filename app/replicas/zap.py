"""Admission of peers to one socket by their CurveZMQ key."""

from __future__ import annotations

from typing import cast

import zmq
import zmq.asyncio
from zmq.utils.z85 import encode

from ...events.sockets import open_socket, receive_all

_ADDRESS = "inproc://zeromq.zap.01"
_DOMAIN = b"kvatlas mesh"
"""Not empty: ZMQ asks about peers without keys only in a named domain."""


class KeyAdmission:
    """Admits peers with one key to the sockets of a context.

    Source: ZeroMQ RFC 27 (ZAP).

    Args:
        context: of the guarded socket; it has one admission.
        key: public key of the peers that may connect, as text in Z85.
    """

    def __init__(self, context: zmq.asyncio.Context, key: bytes) -> None:
        self._key = key
        self._questions = open_socket(context, zmq.ROUTER, receive_hwm=0, ipv6=False)
        self._questions.bind(_ADDRESS)
        self._answers = cast("zmq.Socket[bytes]", zmq.Socket.shadow(self._questions))  # pyright: ignore[reportUnknownMemberType]

    def guard(self, socket: zmq.asyncio.Socket) -> None:
        """Ask about the peers of a socket that is not bound yet."""
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)

    async def run(self) -> None:
        """Answer until cancelled."""
        await receive_all(self._questions, self._answer)

    def close(self) -> None:
        """Admit nobody any more."""
        self._questions.close(linger=0)

    def _answer(self, frames: list[bytes]) -> None:
        identity, _, version, request, _, _, _, mechanism, *credentials = frames
        is_known = mechanism == b"CURVE" and credentials and encode(credentials[0]) == self._key
        # A temporary error: after a permanent one ZMQ would never connect again.
        status = (b"200", b"OK") if is_known else (b"300", b"refused")
        self._answers.send_multipart([identity, b"", version, request, *status, b"", b""], zmq.NOBLOCK)
