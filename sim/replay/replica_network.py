"""Replicas of a router on a virtual clock, whose messages take time and may be lost."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from ...fleet.replicas.channel import Channel
from ...fleet.replicas.identity import Identity
from ...fleet.replicas.replica import HEARTBEAT_NS, Outgoing, Replica

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Sharing:
    """What replicas share, and how fast.

    Attributes:
        channels: names of the channels; None for all, empty for nothing.
        delay_s: seconds from the sending of a message to its receipt.
        batch_s: seconds for which changes are collected after a message; the first change after a pause is sent at once.
        interval_s: fixed interval at which changes are sent instead; None for that.
        loss: share of the messages that are lost.
    """

    channels: frozenset[str] | None = None
    delay_s: float = 0.005
    batch_s: float = 0.005
    interval_s: float | None = None
    loss: float = 0.0


class ReplicaNetwork:
    """Replicas, each with the channels that it shares; simulated seconds from 0.

    Args:
        sharing: what is shared.
        rng: decides which messages are lost.

    Attributes:
        now: simulated seconds.
    """

    def __init__(self, sharing: Sharing, rng: Random) -> None:
        self.now = 0.0
        self._sharing, self._rng = sharing, rng
        self._replicas: list[Replica] = []
        self._due: list[float] = []
        """Time of the next tick by replica."""
        self._sent: list[float] = []
        """Time of the last change sent by replica."""
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._n_sent = 0
        self.messages = self.n_bytes = 0
        """Messages received by all replicas, and their bytes."""

    def clock(self) -> float:
        """Return the simulated seconds."""
        return self.now

    @property
    def next_id(self) -> str:
        """Id of the replica that joins next."""
        return self._identity(len(self._replicas)).id

    def join(self, channels: dict[str, Channel]) -> None:
        """Add a replica with these channels, those among them that are shared."""
        number, wanted = len(self._replicas), self._sharing.channels
        shared = {name: each for name, each in channels.items() if wanted is None or name in wanted}
        replica = Replica(self._identity(number), shared, silent_ns=5 * NS)
        replica.on_change = self._changed(number)
        self._replicas.append(replica)
        self._due.append(0.0)
        self._sent.append(-1.0)

    def _identity(self, number: int) -> Identity:
        return Identity(f"replica-{number}", 1, "pool", "keys")

    def run(self, until: float) -> None:
        """Let time pass: send what is due, and deliver what arrives."""
        if self._sharing.channels is not None and not self._sharing.channels:
            self.now = until
            return
        while True:
            arrives_at = self._under_way[0][0] if self._under_way else until
            due_at = min(self._due, default=until)
            if min(arrives_at, due_at) > until or (not self._under_way and due_at > until):
                break
            self.now = max(self.now, min(arrives_at, due_at))
            if self._under_way and arrives_at <= due_at:
                _, _, to, payload = heapq.heappop(self._under_way)
                self.messages += 1
                self.n_bytes += len(payload)
                self._send(to, self._replicas[to].receive(payload, self._now_ns))
            else:
                self._tick(self._due.index(due_at))
        self.now = max(self.now, until)

    @property
    def _now_ns(self) -> int:
        return round(self.now * NS)

    def _changed(self, number: int) -> Callable[[], None]:
        def changed() -> None:
            if self._sharing.interval_s is None:
                wanted = max(self.now, self._sent[number] + self._sharing.batch_s)
                self._due[number] = min(self._due[number], wanted)

        return changed

    def _tick(self, number: int) -> None:
        self._due[number] = self.now + (self._sharing.interval_s or HEARTBEAT_NS / NS)
        self._sent[number] = self.now
        self._send(number, self._replicas[number].tick(self._now_ns))

    def _send(self, sender: int, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            for number, replica in enumerate(self._replicas):
                if number == sender or message.to not in (None, replica.identity.id):
                    continue
                if self._sharing.loss and self._rng.random() < self._sharing.loss:
                    continue
                self._n_sent += 1
                arrival = self.now + self._sharing.delay_s
                heapq.heappush(self._under_way, (arrival, self._n_sent, number, message.payload))
