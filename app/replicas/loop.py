"""The loop of a replica: drives the core by the clock, and carries its messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from ...events.tasks import keep
from ...fleet.replicas.replica import HEARTBEAT_NS, Outgoing, Replica
from .transport import OnMessage, Transport

FLUSH_S = 0.005
"""Least time between two messages with changes: the first change is sent at once, those that follow go together."""


class ReplicaLoop:
    """One replica at work.

    At rest it wakes for heartbeats only.

    Args:
        core: this replica.
        open_transport: makes the transport, whose messages its argument takes.
        clock: monotonic nanoseconds.

    Attributes:
        core: as above.
        transport: as made.

    Raises:
        ReplicaError: the transport cannot be opened.
    """

    def __init__(
        self,
        core: Replica,
        open_transport: Callable[[OnMessage], Transport],
        *,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.core, self._clock = core, clock
        self.transport = open_transport(self._receive)
        self._flush: asyncio.TimerHandle | None = None
        self._flushed_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        core.on_change = self._wake

    def start(self) -> None:
        """Begin to talk to the siblings."""
        self._tasks = [
            keep(self.transport.run, "messages of replicas", needed=False),
            keep(self._beat, "heartbeats of this replica", needed=False),
        ]

    async def stop(self) -> None:
        """Take leave of the siblings and close the transport."""
        tasks, self._tasks = self._tasks, []
        if tasks:
            self._tick()
            self.send(self.core.leave())
        if self._flush is not None:
            self._flush.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.transport.close()

    def _wake(self) -> None:
        """Send what changed soon, together with what changes until then."""
        if self._flush is None and self._tasks:
            self._flush = asyncio.get_running_loop().call_at(self._flushed_at + FLUSH_S, self._flush_now)

    def _flush_now(self) -> None:
        self._flush, self._flushed_at = None, asyncio.get_running_loop().time()
        self._tick()

    async def _beat(self) -> None:
        while True:
            self._tick()
            await asyncio.sleep(HEARTBEAT_NS / 1e9)

    def _tick(self) -> None:
        self.send(self.core.tick(self._clock()))

    def _receive(self, payload: bytes) -> None:
        self.send(self.core.receive(payload, self._clock()))

    def send(self, messages: Iterable[Outgoing]) -> None:
        """Send messages of the core."""
        for each in messages:
            self.transport.send(each)
