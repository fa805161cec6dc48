"""Replicas in one event loop, joined by a network that a test can cut: real cores, and messages that pass through the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Self

from kvatlas.fleet.replicas.channel import Channel, Letters
from kvatlas.fleet.replicas.identity import Identity
from kvatlas.fleet.replicas.replica import Outgoing, Replica

TICK_S = 0.005
MS = 1_000_000


class Linked:
    """One replica on a network."""

    def __init__(self, network: LinkedReplicas, name: str, *, boot: int, silent_ns: int) -> None:
        self._network, self._silent_ns = network, silent_ns
        self.identity = Identity(name, boot, "pool", "seed=0")
        self.channels: dict[str, Channel] = {}
        self.letters: dict[str, Letters] = {}
        self.core: Replica | None = None

    @property
    def id(self) -> str:
        return self.identity.id

    def living(self) -> list[str]:
        return list(self.core.live) if self.core is not None else []

    def post(self, name: str, to: str, payload: bytes) -> None:
        assert self.core is not None
        self.send(self.core.letter(name, to, payload))

    def start(self) -> None:
        """Take part, with the channels and letters that are there now."""
        self.core = Replica(self.identity, self.channels, letters=self.letters, silent_ns=self._silent_ns)

    def send(self, messages: Iterable[Outgoing]) -> None:
        self._network.send(self, messages)


class LinkedReplicas:
    """The network, within `async with`."""

    def __init__(self, *, silent_ms: int = 300) -> None:
        self.silent_ms = silent_ms
        self.replicas: dict[str, Linked] = {}
        self.cut: set[str] = set()
        """Names of replicas that neither send nor receive."""
        self._task: asyncio.Task[None] | None = None

    def add(self, name: str, *, boot: int = 0) -> Linked:
        replica = self.replicas[name] = Linked(self, name, boot=boot, silent_ns=self.silent_ms * MS)
        return replica

    def send(self, sender: Linked, messages: Iterable[Outgoing]) -> None:
        loop = asyncio.get_running_loop()
        for message in messages:
            for replica in self.replicas.values():
                if replica is not sender and message.to in (None, replica.id):
                    loop.call_soon(self._deliver, sender, replica, message.payload)

    def _deliver(self, sender: Linked, replica: Linked, payload: bytes) -> None:
        if replica.core is not None and not self.cut & {sender.identity.name, replica.identity.name}:
            replica.send(replica.core.receive(payload, time.monotonic_ns()))

    async def _tick(self) -> None:
        while True:
            for replica in self.replicas.values():
                if replica.core is not None:
                    replica.send(replica.core.tick(time.monotonic_ns()))
            await asyncio.sleep(TICK_S)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
