"""KV state that engines send each other, by the rules of vLLM's NixlConnector.

1. A prefill request that asks for it keeps its blocks when it ends: `KvConnector.keep`.
2. The decode engine reserves blocks for the prompt, and pulls those it lacks: `KvConnector.pull`.
3. When the last byte has arrived, `KvExchange.advance` frees the kept blocks, and the decode engine computes the prompt's last
   token again.
Kept blocks that nobody pulls are freed after `KEEP_S`. An engine that leaves takes its kept blocks along, and pulls of them fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from .kv_network import Flow, KvNetwork
from .request import RemoteKv

KEEP_S = 480.0
"""Time for which a prefill engine keeps blocks for a pull: the default of VLLM_NIXL_ABORT_REQUEST_TIMEOUT."""

Change = Callable[[], None]


@dataclass(slots=True, eq=False)
class Pull:
    """`Arrival` of KV state from another engine."""

    source: KvConnector
    target: KvConnector
    request_id: str
    is_done: bool = False
    has_failed: bool = False

    def end(self) -> None:
        """The last byte has arrived."""
        self.is_done = not self.has_failed

    def fail(self) -> None:
        """Nothing will arrive."""
        self.has_failed = not self.is_done


class KvConnector:
    """One engine's part of the exchange.

    Args:
        engine_id: unique for this life of the engine.
        server: its name in the network.
        exchange: all engines.
        address: host and port that others connect to, for its responses.

    Attributes:
        apply: calls a change of the engine's state at a time; an engine with its own clock replaces it.
    """

    def __init__(
        self, engine_id: str, server: str, exchange: KvExchange, *, address: tuple[str, int]
    ) -> None:
        self.engine_id, self.server, self.address = engine_id, server, address
        self._exchange = exchange
        self._kept: dict[str, tuple[Change, float]] = {}
        self.apply: Callable[[Change, float], None] = lambda change, _now: change()

    @property
    def n_kept(self) -> int:
        """Requests whose blocks are kept."""
        return len(self._kept)

    def keep(self, request_id: str, release: Change, *, now: float) -> None:
        """Keep a request's blocks until they are pulled, and then call `release`."""
        self._kept[request_id] = release, now + KEEP_S

    def free_expired(self, now: float) -> None:
        """Free the blocks that were kept too long. Cost: O(freed requests)."""
        while self._kept:
            request_id, (_release, until) = next(iter(self._kept.items()))
            if until > now:
                return
            self.free(request_id)

    def free(self, request_id: str) -> None:
        """Free the blocks of a request; no effect if they are free already."""
        release, _until = self._kept.pop(request_id, (None, 0.0))
        if release is not None:
            release()

    def holds(self, request_id: str) -> bool:
        """Return whether the blocks of a request are kept."""
        return request_id in self._kept

    def pull(self, remote: RemoteKv, n_tokens: int, *, now: float) -> Pull:
        """Begin to pull the last `n_tokens` tokens' blocks; the pull fails if the other engine no longer keeps them."""
        return self._exchange.begin(self, remote, n_tokens, now=now)

    def next_at(self) -> float:
        """Return when the next transfer of the exchange may end if this engine waits for one; infinite if it does not."""
        return self._exchange.next_at() if self._exchange.awaits(self) else inf

    def advance(self, now: float) -> None:
        """Continue all transfers of the exchange until `now`."""
        self._exchange.advance(now)


class KvExchange:
    """Engines that send KV state to each other, and the network between them.

    Args:
        network: of the servers.
        bytes_per_token: size of one token's KV state on all GPUs of an engine.
    """

    def __init__(self, network: KvNetwork, *, bytes_per_token: float) -> None:
        self._network, self._bytes_per_token = network, bytes_per_token
        self._engines: dict[str, KvConnector] = {}
        self._pulls: dict[Flow, Pull] = {}

    def join(self, engine_id: str, server: str, *, address: tuple[str, int] = ("", 0)) -> KvConnector:
        """Add an engine; for the arguments see `KvConnector`."""
        connector = self._engines[engine_id] = KvConnector(engine_id, server, self, address=address)
        return connector

    def leave(self, connector: KvConnector) -> None:
        """Remove an engine: pulls from it fail. Engines on a virtual clock never leave."""
        del self._engines[connector.engine_id]
        for pull in self._pulls.values():
            if pull.source is connector:
                pull.target.apply(pull.fail, 0.0)

    def begin(self, target: KvConnector, remote: RemoteKv, n_tokens: int, *, now: float) -> Pull:
        """See `KvConnector.pull`."""
        source = self._engines.get(remote.engine_id)
        if source is None or not source.holds(remote.request_id):
            return Pull(source or target, target, remote.request_id, has_failed=True)
        flow = self._network.begin(source.server, target.server, n_tokens * self._bytes_per_token, now=now)
        pull = self._pulls[flow] = Pull(source, target, remote.request_id)
        return pull

    def awaits(self, connector: KvConnector) -> bool:
        """Return whether an engine waits for a transfer. Cost: O(transfers)."""
        return any(pull.target is connector for pull in self._pulls.values())

    def next_at(self) -> float:
        """Return when the next transfer may end; infinite if there is none."""
        return self._network.next_at()

    def advance(self, now: float) -> None:
        """Continue all transfers until `now`, and tell both engines of each completed one."""
        ended: dict[KvConnector, list[Pull]] = {}
        for flow in self._network.advance(now):
            pull = self._pulls.pop(flow)
            pull.source.apply(partial(pull.source.free, pull.request_id), now)
            ended.setdefault(pull.target, []).append(pull)
        for target, pulls in ended.items():  # once per engine, whose next step then has all of them
            target.apply(partial(_end, pulls), now)


def _end(pulls: Sequence[Pull]) -> None:
    for pull in pulls:
        pull.end()
