"""Replicas that start, without I/O: their letters and their clock are in the hands of a test."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvatlas.fleet.replicas.warm_letters import Stage
from kvatlas.fleet.replicas.warm_start import WarmStart
from kvatlas.fleet.replicas.warm_taker import Taker

MS = 1_000_000
STEP_NS = 10 * MS


@dataclass
class Starting:
    """One replica."""

    warm: WarmStart
    pieces: list[bytes]
    """Of its snapshot."""
    is_alive: bool = True
    making: deque[bytes] = field(default_factory=deque[bytes])
    transfer: tuple[str, int] | None = None
    n_begun: int = 0


class Nursery:
    """Replicas by id on one network.

    Args:
        loses: says of each letter, by its running number, whether it is lost.
    """

    def __init__(self, *, loses: Callable[[int], bool] = lambda _: False) -> None:
        self.now_ns, self._loses, self._n_sent = 0, loses, 0
        self.replicas: dict[str, Starting] = {}
        self.on_its_way: deque[tuple[str, str, bytes]] = deque()

    def ready(self, name: str, pieces: Iterable[bytes]) -> Starting:
        """Add a replica with a snapshot."""
        replica = self.replicas[name] = Starting(WarmStart(), list(pieces))
        replica.warm.giver.stage = Stage.READY
        return replica

    def starting(self, name: str) -> Taker:
        """Add a replica that starts now, and return what it does."""
        replica = self.replicas[name] = Starting(WarmStart(), [])
        taker = Taker(name, lambda: self.living(name), now_ns=self.now_ns)
        replica.warm.taker = taker
        return taker

    def living(self, but: str) -> list[str]:
        return [name for name, each in self.replicas.items() if each.is_alive and name != but]

    def step(self) -> None:
        """Let 10 ms pass, and deliver what was sent before."""
        self.now_ns += STEP_NS
        for _ in range(len(self.on_its_way)):
            sender, to, payload = self.on_its_way.popleft()
            replica = self.replicas[to]
            if replica.is_alive:
                self._send(to, replica.warm.received(sender, payload, self.now_ns))
        for name, replica in self.replicas.items():
            if replica.is_alive:
                self._make(name, replica)
                self._send(name, replica.warm.giver.tick(self.now_ns))
                if replica.warm.taker is not None:
                    self._send(name, replica.warm.taker.tick(self.now_ns))

    def run(self, is_over: Callable[[], bool], *, limit_s: float = 60) -> None:
        end_ns = self.now_ns + int(limit_s * 1000) * MS
        while not is_over():
            assert self.now_ns < end_ns, "it does not come to an end"
            self.step()

    def _make(self, name: str, replica: Starting) -> None:
        """Do what the shell does for the taker of a snapshot."""
        giver = replica.warm.giver
        if giver.taker is None or giver.taker != replica.transfer:
            replica.transfer, replica.making = giver.taker, deque(replica.pieces)
            replica.n_begun += giver.taker is not None
            if giver.taker is None:
                return
        while replica.making and giver.has_room:
            self._send(name, giver.push(replica.making.popleft(), self.now_ns))
            if not replica.making:
                self._send(name, giver.finish(self.now_ns))

    def _send(self, sender: str, letters: Sequence[tuple[str, bytes]]) -> None:
        for to, payload in letters:
            self._n_sent += 1
            if to in self.replicas and not self._loses(self._n_sent):
                self.on_its_way.append((sender, to, payload))
