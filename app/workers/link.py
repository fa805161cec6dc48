"""The ZMQ sockets between the workers of one kvatlas."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import zmq
import zmq.asyncio

from ...events.sockets import receive_all
from ...events.tasks import keep
from ...scorers.core.model import InFlightLoad
from .request_reply import TIMEOUT_S, RequestReply
from .sibling_loads import SiblingLoads

FLUSH_S = 0.005
"""Longest wait of a change for others, which are sent with it."""

FULL_STATE_S = 1.0
"""Interval between two messages with everything in flight."""

MAX_MESSAGE_BYTES = 128 * 2**20
"""More than any reply."""

MAX_QUEUED = 1000
"""Messages queued for a worker that does not receive; the rest is dropped or waits."""

_RETRY_S = 0.005
"""Pause before a message is sent again to a worker that is away or whose queue is full."""

_CATCH_UP_S = 0.02
"""Interval of looking whether a worker that missed a message can receive again."""

_LOADS, _REQUESTS = b"l", b"r"
"""First frame of every message: its subject."""


class WorkerSockets:
    """The folder of the workers' sockets, made before the workers are; only this user may enter it.

    Args:
        n_workers: how many.
    """

    def __init__(self, n_workers: int) -> None:
        self._n_workers = n_workers
        self._folder = Path(tempfile.mkdtemp(prefix="kvatlas-"))

    def link(self, worker: int) -> WorkerLink:
        """Return the link of a worker, to be entered in its own process."""
        return WorkerLink(worker, {number: self.address(number) for number in range(self._n_workers)})

    def address(self, worker: int) -> str:
        """Return the ZMQ address of a worker."""
        return f"ipc://{self._folder / str(worker)}"

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


class WorkerLink:
    """Sends the other workers what is in flight here, receives theirs, and carries requests, within `async with`.

    Implements `fleet.in_flight.Siblings`.

    Args:
        worker: its own number.
        addresses: ZMQ address of every worker, its own included.
    """

    def __init__(self, worker: int, addresses: dict[int, str]) -> None:
        self.worker = worker
        others = tuple(number for number in addresses if number != worker)
        self.requests = RequestReply(worker, others, self._send_request)
        """Requests to the others, and replies to theirs."""
        self._loads = SiblingLoads(worker, life=time.time())
        self._addresses = addresses
        self._context = zmq.asyncio.Context()
        self._outgoing: dict[int, zmq.Socket[bytes]] = {}
        self._flush: asyncio.TimerHandle | None = None
        self._behind: set[int] = set()
        """Workers that missed a message of loads."""
        self._catch_up: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def of(self, endpoint: str) -> InFlightLoad:
        """See `Siblings.of`."""
        return self._loads.of(endpoint)

    def listen(self, on_change: Callable[[str], None]) -> None:
        """See `Siblings.listen`."""
        self._loads.listen(on_change)

    def publish(self, endpoint: str, load: InFlightLoad) -> None:
        """See `Siblings.publish`."""
        self._loads.publish(endpoint, load)
        if self._flush is None and self._tasks:
            self._flush = asyncio.get_running_loop().call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Send the changes that have waited for others."""
        self._flush = None
        if self._loads.has_changes:
            self._broadcast(self._loads.changes())

    async def __aenter__(self) -> Self:
        incoming = self._context.socket(zmq.PULL)
        incoming.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        incoming.bind(self._addresses[self.worker])
        for worker, address in self._addresses.items():
            if worker != self.worker:
                self._outgoing[worker] = self._connect(address)
        self._tasks = [
            keep(lambda: receive_all(incoming, self._receive), "messages of other workers"),
            keep(self._send_full_states, "in flight of this worker"),
        ]
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for timer in (self._flush, self._catch_up):
            if timer is not None:
                timer.cancel()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.requests.close()
        for socket in self._outgoing.values():
            socket.close(linger=0)
        self._outgoing.clear()
        # Ends with the sockets' files removed, so that a next worker of this number can bind its own.
        self._context.destroy(linger=0)

    def _connect(self, address: str) -> zmq.Socket[bytes]:
        # Without futures: sends never wait in ZMQ.
        socket = cast("zmq.Socket[bytes]", zmq.Socket.shadow(self._context.socket(zmq.PUSH)))  # pyright: ignore[reportUnknownMemberType]
        # Nothing is queued for a worker that is away: it would come late, and what it says would be old.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.SNDHWM, MAX_QUEUED)
        socket.setsockopt(zmq.RECONNECT_IVL, 10)
        socket.connect(address)
        return socket

    async def _send_full_states(self) -> None:
        while True:
            self._broadcast(self._loads.full_state())
            self._loads.forget_silent(now=time.monotonic())
            await asyncio.sleep(FULL_STATE_S)

    def _broadcast(self, messages: Iterable[bytes]) -> None:
        for message in messages:
            for worker in self._outgoing:
                self._send_loads(worker, message)
        if self._behind and self._catch_up is None:
            self._catch_up = asyncio.get_running_loop().call_later(_CATCH_UP_S, self._bring_up_to_date)

    def _send_loads(self, worker: int, message: bytes) -> None:
        try:
            self._outgoing[worker].send_multipart([_LOADS, message], zmq.NOBLOCK)
        except zmq.Again:  # away, hanging, or not connected yet
            self._behind.add(worker)

    def _bring_up_to_date(self) -> None:
        """Send the full state to workers that missed a message and can receive again."""
        self._catch_up = None
        for worker in tuple(self._behind):
            if self._outgoing[worker].poll(0, zmq.POLLOUT):
                self._behind.discard(worker)
                for message in self._loads.full_state():
                    self._send_loads(worker, message)
        if self._behind:
            self._catch_up = asyncio.get_running_loop().call_later(_CATCH_UP_S, self._bring_up_to_date)

    async def _send_request(self, worker: int, message: bytes) -> None:
        """Send a request or reply, also to a worker that is away or full for a moment."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                while worker in self._outgoing:
                    try:
                        self._outgoing[worker].send_multipart([_REQUESTS, message], zmq.NOBLOCK)
                    except zmq.Again:
                        await asyncio.sleep(_RETRY_S)
                    else:
                        return

    def _receive(self, frames: list[bytes]) -> None:
        match frames:
            case [subject, message] if subject == _LOADS:
                self._loads.receive(message, now=time.monotonic())
            case [subject, message] if subject == _REQUESTS:
                self.requests.receive(message)
            case _:
                pass  # nothing that a worker sends
