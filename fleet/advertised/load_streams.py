"""Subscriptions to the load that engines publish, in place of most scrapes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import zmq
import zmq.asyncio

from ...events.errors import SocketLimitError, WireError
from ...events.sockets import open_socket, receive_all
from ...events.tasks import keep
from .load_stat import LoadStat, ServerLoad, decode_load

log = logging.getLogger(__name__)

HWM = 64
"""Messages of one server that wait; only the newest of each rank counts."""

OnLoad = Callable[[str, LoadStat, ServerLoad], None]
"""Called with the name of an endpoint, a load of one of its ranks, and what its ranks have told before."""


class LoadStreams:
    """One subscription for each endpoint that publishes its load.

    Args:
        on_load: see `OnLoad`.

    Attributes:
        n_rejected: unreadable messages so far, by reason.
    """

    def __init__(self, on_load: OnLoad) -> None:
        self._on_load = on_load
        self._context: zmq.asyncio.Context | None = None
        self._followed: dict[str, tuple[tuple[str, ...], zmq.asyncio.Socket, asyncio.Task[None]]] = {}
        self.n_rejected: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._followed

    def follow(self, name: str, addresses: Sequence[str], topic: str) -> None:
        """Follow the load of an endpoint at these addresses, one per rank; the same ones again change nothing."""
        wanted = tuple(addresses)
        if name in self._followed and self._followed[name][0] == wanted:
            return
        self.forget(name)
        if not wanted:
            return
        if self._context is None:
            self._context = zmq.asyncio.Context()
        try:
            socket = open_socket(self._context, zmq.SUB, receive_hwm=HWM, ipv6=any("[" in a for a in wanted))
        except SocketLimitError as error:
            log.warning("the load of endpoint %s is not followed, only scraped: %s", name, error)
            return
        socket.subscribe(topic)
        for address in wanted:
            socket.connect(address)
        loads = ServerLoad(len(wanted))

        def take(frames: list[bytes]) -> None:
            try:
                stat = decode_load(frames)
            except WireError as error:
                self.n_rejected[error.reason] = self.n_rejected.get(error.reason, 0) + 1
                return
            self._on_load(name, stat, loads)

        task = keep(lambda: receive_all(socket, take), "load stream", of=name, needed=False)
        self._followed[name] = wanted, socket, task

    def forget(self, name: str) -> None:
        """Follow the load of an endpoint no longer; unknown names are ignored."""
        followed = self._followed.pop(name, None)
        if followed is not None:
            _, socket, task = followed
            task.cancel()
            # the task still has the socket's descriptor in the event loop; it ends in the loop's next turn
            task.add_done_callback(lambda _: socket.close())

    async def stop(self) -> None:
        """Follow none any longer, and close the sockets."""
        tasks = [task for _, _, task in self._followed.values()]
        for name in list(self._followed):
            self.forget(name)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)
