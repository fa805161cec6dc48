"""A TCP port that keeps its owner while nothing listens on it."""

from __future__ import annotations

import os
import socket
import weakref


class HeldPort:
    """A reserved TCP port, released when this object is garbage.

    A bound socket that does not listen keeps the port: the kernel gives it to nobody else and refuses connections. A
    server that sets SO_REUSEADDR (asyncio, ZeroMQ, gRPC, Envoy, Go's) can listen on it, and stop and start again.

    Args:
        host: IPv4 address or name; "0.0.0.0" reserves the port on every address.
        number: 0 takes a free one.
    Raises:
        OSError: the port is taken.
    """

    def __init__(self, host: str = "127.0.0.1", number: int = 0) -> None:
        with socket.socket() as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, number))
            self.number: int = bound.getsockname()[1]
            weakref.finalize(self, os.close, bound.detach())
