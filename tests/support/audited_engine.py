"""An engine of known size in a real fleet: its events, its prompts, and its reported reuse."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.events.model import Batch
from kvatlas.events.stream import Trust
from kvatlas.fleet.audit import TierState, judge
from kvatlas.fleet.endpoint import Endpoint
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.rank import Rank
from kvatlas.indexer.capacity import ObservedCapacity
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.tiers import TierId, TierSource
from kvatlas.scorers.core.decision import Decision
from kvatlas.sim.block_cache import BlockCache
from kvatlas.sim.kv_events import AllBlocksCleared, Event, EventBatch
from kvatlas.sim.request import Request
from kvatlas.sim.scheduler import Scheduler
from kvatlas.sim.service_times import ServiceTimes
from support.fleets import NOWHERE
from support.rating import routed_to
from support.sim_steps import serve_to_end

BLOCK = 4
GPU, CPU = TierId(0), TierId(1)


@dataclass
class AuditedEndpoint:
    """The only endpoint of a fleet, which gets its events without sockets."""

    fleet: Fleet

    def __post_init__(self) -> None:
        self.fleet.add(
            "e", EndpointAddresses(HostPort("10.0.0.1", 8000), None, (RankAddresses(0, NOWHERE, None),)), {}
        )

    @property
    def endpoint(self) -> Endpoint:
        endpoint = self.fleet.get("e")
        assert endpoint is not None
        return endpoint

    @property
    def rank(self) -> Rank:
        return self.endpoint.ranks[0]

    def bound(self, tier: TierId) -> int | None:
        return self.fleet.atlas.ledger("e", 0).capacity(tier)

    def observed(self, tier: TierId) -> ObservedCapacity | None:
        return self.rank.observed(tier)

    def publish(self, batch: Batch) -> None:
        for _ in self.rank.apply(batch, live=True) or ():
            pass
        self.fleet.tick(now=0.0)

    def expect(self, prefix: Prefix) -> Decision:
        """Send it a prompt."""
        (candidate,) = self.fleet.candidates(prefix, now=0.0)
        self.fleet.routed(candidate, prefix, now=0.0)
        candidate = msgspec.structs.replace(candidate, trust=Trust.LIVE)
        return routed_to(candidate, n_tokens=prefix.n_tokens)

    def audit(self, decision: Decision, *, cached_tokens: int) -> None:
        """Finish a request, with the reuse that the engine reports."""
        ledger = self.fleet.atlas.ledger("e", 0)
        sources = {
            name: ledger.sources.of(TierId(tier)) for tier, name in enumerate(self.fleet.atlas.tiers.names)
        }
        found = judge(
            decision,
            prompt_tokens=decision.n_tokens,
            cached_tokens=cached_tokens,
            ran_on=0,
            tiers={
                name: TierState(source, is_full=source is TierSource.EVENTS)
                for name, source in sources.items()
            },
        )
        if found is not None:
            self.fleet.audited(found, now=0.0)


@dataclass
class SimulatedEngine(AuditedEndpoint):
    """An engine that serves prompts one after another.

    Attributes:
        scheduler: the engine.
        media: those whose events it publishes.
    """

    scheduler: Scheduler
    media: frozenset[str]

    def serve(self, prompts: Iterable[Sequence[int]]) -> None:
        for number, prompt in enumerate(prompts):
            request = Request(f"r{number}", array("I", prompt), array("I", [1]))
            decision = self.expect(self.fleet.atlas.prefix(array("I", prompt)))
            for events in serve_to_end(self.scheduler, request):
                published = tuple(event for event in events if self._publishes(event))
                self.publish(index_core().decode_batch(msgspec.msgpack.encode(EventBatch(0.0, published))))
            assert request.cached_tokens is not None
            self.audit(decision, cached_tokens=request.cached_tokens)

    def _publishes(self, event: Event) -> bool:
        return isinstance(event, AllBlocksCleared) or event.medium in self.media


def simulated_engine(
    fleet: Fleet,
    *,
    gpu_blocks: int,
    cpu_blocks: int,
    chunk_blocks: int = 1,
    media: Iterable[str] = ("GPU", "CPU"),
) -> SimulatedEngine:
    cache = BlockCache(
        block_size=BLOCK, gpu_blocks=gpu_blocks, cpu_blocks=cpu_blocks, chunk_blocks=chunk_blocks
    )
    return SimulatedEngine(fleet, Scheduler(cache, times=ServiceTimes()), frozenset(media))


def conversations(draw: random.Random, *, n_users: int, n_turns: int) -> Iterator[list[int]]:
    """Yield turns of users who return the sooner the more often they came, and start over after a while."""
    users = [_text(draw, 60) for _ in range(n_users)]
    while True:
        user = min(int(draw.expovariate(3 / n_users)), n_users - 1)
        users[user] += _text(draw, 8)
        if len(users[user]) > 60 * n_turns:
            users[user] = _text(draw, 60)
        yield list(users[user])


def documents(draw: random.Random, *, n_documents: int, skew: float) -> Iterator[list[int]]:
    """Yield questions on documents; the frequency of document k is proportional to k ** -skew."""
    texts = [_text(draw, draw.randrange(60, 120)) for _ in range(n_documents)]
    weights = [rank**-skew for rank in range(1, n_documents + 1)]
    while True:
        yield draw.choices(texts, weights)[0] + _text(draw, 6)


def _text(draw: random.Random, n_tokens: int) -> list[int]:
    return draw.choices(range(1000), k=n_tokens)
