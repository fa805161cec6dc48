"""Connections of the mesh to the addresses of the siblings, from which their messages come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import zmq
import zmq.asyncio

from ...events.sockets import receive_all
from ...events.tasks import keep
from .transport import Traffic

log = logging.getLogger(__name__)

SILENT_S = 3.0
"""Time without a message after which a connection is made anew; siblings that are there send five heartbeats a second."""

_LONGEST_SILENT_S = 12.0
"""The same for an address at which nobody has been heard for long; ZMQ itself connects there again each second."""


class Lines:
    """One socket for each address, so that one that is silent is known and opened anew.

    ZMQ's own heartbeats would notice too, but libzmq 4.3.5 ends the process when it is to send one on a connection that its peer
    has closed while the socket's queue was full, as after SIGCONT.

    Args:
        open_line: opens a socket that is not connected.
        watch: watches a socket until cancelled.
        take: takes the frames of each message.
        traffic: gets the problem of an address that cannot be connected to.
    """

    def __init__(
        self,
        open_line: Callable[[], zmq.asyncio.Socket],
        watch: Callable[[zmq.asyncio.Socket], Awaitable[None]],
        take: Callable[[list[bytes]], None],
        traffic: Traffic,
    ) -> None:
        self._open_line, self._watch, self._take, self._traffic = open_line, watch, take, traffic
        self._lines: dict[str, asyncio.Task[None]] = {}

    def connect(self, wanted: frozenset[str]) -> None:
        """Connect to these addresses, and to no other."""
        for address in wanted - self._lines.keys():
            self._lines[address] = keep(
                partial(self._follow, address), "messages of a replica", of=address, needed=False
            )
        for address in self._lines.keys() - wanted:
            self._lines.pop(address).cancel()

    async def close(self) -> None:
        """Close all connections."""
        lines, self._lines = self._lines, {}
        for task in lines.values():
            task.cancel()
        await asyncio.gather(*lines.values(), return_exceptions=True)

    async def _follow(self, address: str) -> None:
        """Receive from an address; connect again whenever it is silent."""
        silent_s = SILENT_S
        while True:
            was_heard = await self._connection(address, silent_s)
            silent_s = SILENT_S if was_heard else min(2 * silent_s, _LONGEST_SILENT_S)

    async def _connection(self, address: str, silent_s: float) -> bool:
        """Receive from one connection until it is silent; return whether anything came."""
        was_heard = is_heard = False

        def take(frames: list[bytes]) -> None:
            nonlocal is_heard
            is_heard = True
            self._take(frames)

        socket = self._open_line()
        work = [asyncio.ensure_future(self._watch(socket)), asyncio.ensure_future(receive_all(socket, take))]
        try:
            self._connect(socket, address)
            while True:
                ended, _ = await asyncio.wait(work, timeout=silent_s, return_when=asyncio.FIRST_COMPLETED)
                for each in ended:
                    each.result()  # raises: both go on until cancelled
                if not is_heard:
                    return was_heard
                was_heard, is_heard, silent_s = True, False, SILENT_S
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            socket.close()

    def _connect(self, socket: zmq.asyncio.Socket, address: str) -> None:
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            problem = f"cannot connect to {address!r}: {zmq.strerror(error.errno or 0)}"
            if problem != self._traffic.problem:
                self._traffic.problem = problem
                log.warning("replicas: %s", problem)
