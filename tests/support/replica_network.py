"""A network of replicas on a virtual clock: messages are late, lost, repeated and overtaken; hosts die and are cut off."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kvatlas.fleet.replicas.channel import Channel
from kvatlas.fleet.replicas.identity import Identity
from kvatlas.fleet.replicas.replica import Outgoing, Replica

S = TypeVar("S")

MS = 1_000_000

Fate = Callable[[], list[int]]
"""Returns the delays in nanoseconds after which copies of a message arrive; none if it is lost."""


def make_identity(name: str = "a", boot: int = 1, pool: str = "pool", keys: str = "seed 0") -> Identity:
    return Identity(name, boot, pool, keys, version="0.1.0")


@dataclass
class Host(Generic[S]):
    """One replica with its state, and the offset of its clock."""

    replica: Replica
    state: S
    clock_ns: int
    is_cut_off: bool = False


@dataclass
class Network(Generic[S]):
    """Replicas that tick every `step`. `make` builds the state and the channels of a new one, from its id."""

    make: Callable[[str], tuple[S, Mapping[str, Channel]]]
    now_ns: int = 0
    fate: Fate = lambda: [MS]
    hosts: dict[str, Host[S]] = field(default_factory=dict[str, Host[S]])
    _boots: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _under_way: list[tuple[int, int, str, bytes]] = field(default_factory=list[tuple[int, int, str, bytes]])
    messages: int = 0

    def start(self, name: str) -> Host[S]:
        """Start a replica, again if it was there."""
        boot = next(self._boots)
        identity = make_identity(name, boot)
        state, channels = self.make(identity.id)
        host = Host(Replica(identity, channels), state, clock_ns=boot * 977_000_000_000)
        self.hosts[name] = host
        return host

    def kill(self, name: str) -> None:
        del self.hosts[name]

    def send(self, sender: str, messages: list[Outgoing]) -> None:
        if self.hosts[sender].is_cut_off:
            return
        for message in messages:
            for name, host in self.hosts.items():
                if name == sender or message.to not in (None, host.replica.identity.id):
                    continue
                self.messages += 1
                for delay in self.fate():
                    entry = (self.now_ns + delay, next(self._numbers), name, message.payload)
                    heapq.heappush(self._under_way, entry)

    def run(self, ms: int, *, step_ms: int = 5) -> None:
        """Let time pass."""
        end = self.now_ns + ms * MS
        while self.now_ns < end:
            self.now_ns += step_ms * MS
            while self._under_way and self._under_way[0][0] <= self.now_ns:
                _, _, name, payload = heapq.heappop(self._under_way)
                host = self.hosts.get(name)
                if host is not None and not host.is_cut_off:
                    self.send(name, list(host.replica.receive(payload, host.clock_ns + self.now_ns)))
            for name, host in self.hosts.items():
                self.send(name, list(host.replica.tick(host.clock_ns + self.now_ns)))
