"""Applies what LMCache's servers post to the endpoints that load from them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric

from ...events.model import AllBlocksCleared, BlockRemoved, BlockStored
from ..families import counter
from ..fleet import Fleet
from ..rank import Rank
from .batches import L1, CacheBatch, Gate, LeftOut, Outcome, events_of

EVENTS_PER_TURN = 32
"""Events applied before other tasks get a turn: one is a chunk of some sixteen blocks for each rank."""


class LmcachePublishers:
    """The LMCache servers of a fleet.

    Args:
        fleet: has the endpoints.
        instances: LMCache instance -> names of the endpoints that load from it; absent: the endpoint of the same name.
        models: names of the served model; chunks of others are ignored. Empty takes all.

    Attributes:
        counts: what became of batches and chunks so far: outcomes of batches, `lost` batches, batches of an `unknown_instance`
            or for `other_model`, chunks left out (`LeftOut`), and chunks that came to ranks with `no_block_size`.
    """

    def __init__(
        self, fleet: Fleet, instances: Mapping[str, tuple[str, ...]], models: frozenset[str]
    ) -> None:
        self._fleet, self._instances, self._models = fleet, instances, models
        self._gate = Gate()
        self._lock = asyncio.Lock()
        self._chunk_bytes: dict[str, int] = {}
        """Bytes of one chunk's part on one rank, by instance."""
        self._revisions: dict[str, int] = {}
        """Revision of the newest capacity, by instance."""
        self._waiting: dict[str, CacheBatch] = {}
        """Capacities that came before the size of a chunk is known, by instance."""
        self.counts: Counter[str] = Counter()
        fleet.forgotten.append(self._forget)

    def families(self) -> Iterator[Metric]:
        """Yield the counts as metrics."""
        found = counter(
            "lmcache_events", "Batches and chunks of LMCache servers, by what became of them.", "outcome"
        )
        for outcome, count in sorted(self.counts.items()):
            found.add_metric([outcome], count)
        yield found

    async def take(self, batches: list[CacheBatch]) -> Counter[Outcome]:
        """Apply batches in order; return their outcomes. Calls wait for each other."""
        outcomes: Counter[Outcome] = Counter()
        async with self._lock:
            for batch in batches:
                before = self._gate.position(batch.instance_id)
                lost = before.n_lost if before is not None else 0
                verdict = self._gate.judge(batch)
                outcomes[verdict.outcome] += 1
                self.counts[verdict.outcome] += 1
                after = self._gate.position(batch.instance_id)
                if after is before and after is not None:
                    self.counts["lost"] += after.n_lost - lost
                if verdict.outcome is Outcome.APPLIED:
                    await self._apply(batch, restarted=verdict.restarted)
        return outcomes

    async def _apply(self, batch: CacheBatch, *, restarted: bool) -> None:
        ranks = self._ranks(batch.instance_id)
        if not ranks:
            self.counts["unknown_instance"] += 1
            return
        if restarted:
            self.counts["restarts"] += 1
            self._revisions.pop(batch.instance_id, None)  # the new process counts from the beginning
            self._waiting.pop(batch.instance_id, None)
            for rank in ranks:
                if await is_free(rank, self._fleet):
                    rank.ledger.apply(AllBlocksCleared(medium=L1))
            ranks = self._ranks(batch.instance_id)  # others may have come and gone meanwhile
            if not ranks:
                return
        if self._models and any(entry.key.model_name not in self._models for entry in batch.entries):
            self.counts["other_model"] += 1
            return
        match batch.event_type:
            case "access":
                for rank in ranks:
                    rank.ledger.used(entry.key.engine_hash for entry in batch.entries)
            case "config":
                self._bound(batch, ranks)
            case _:
                await self._store_or_delete(batch, ranks)

    async def _store_or_delete(self, batch: CacheBatch, ranks: list[Rank]) -> None:
        if batch.event_type == "store" and batch.entries and batch.tier == "l1":
            entry = batch.entries[0]
            self._chunk_bytes[batch.instance_id] = entry.size_bytes
        n_applied = 0
        for event in events_of(batch):
            if isinstance(event, LeftOut):
                self.counts[event] += 1
                continue
            for rank in ranks:
                if await is_free(rank, self._fleet):
                    self._apply_to(rank, event)
                n_applied += 1
                if n_applied % EVENTS_PER_TURN == 0:
                    await asyncio.sleep(0)
        if (capacity := self._waiting.get(batch.instance_id)) is not None:
            self._bound(capacity, ranks)

    def _apply_to(self, rank: Rank, event: BlockStored | BlockRemoved) -> None:
        if rank.ledger.block_size is None:
            self.counts["no_block_size"] += 1
            return
        rank.ledger.apply(event)

    def _bound(self, batch: CacheBatch, ranks: list[Rank]) -> None:
        """Bound the tier of a server's memory by its capacity, now or once the size of a chunk is known."""
        name, tier = batch.instance_id, self._fleet.atlas.tiers.of(batch.medium)
        if batch.tier != "l1" or batch.capacity_revision < self._revisions.get(name, -1):
            return
        self._revisions[name] = batch.capacity_revision
        size = self._chunk_bytes.get(name)
        known = [(rank, blocks) for rank in ranks if (blocks := rank.ledger.chunk_blocks(tier))]
        if not size or not known:
            self._waiting[name] = batch
            return
        self._waiting.pop(name, None)
        if self._fleet.settings.configured_capacity(tier) == "auto":
            for rank, blocks in known:
                rank.ledger.set_capacity(tier, max(1, batch.capacity_bytes // size * blocks))

    def _forget(self, endpoint: str) -> None:
        """Forget what the instances of an endpoint said, unless another endpoint loads from them too."""
        named = [instance for instance, loading in self._instances.items() if endpoint in loading]
        for instance in (endpoint, *named):
            if not self._ranks(instance):
                for each in (self._chunk_bytes, self._revisions, self._waiting):
                    each.pop(instance, None)

    def _ranks(self, instance_id: str) -> list[Rank]:
        names = self._instances.get(instance_id, (instance_id,))
        return [rank for name in names if (each := self._fleet.get(name)) is not None for rank in each.ranks]


async def is_free(rank: Rank, fleet: Fleet) -> bool:
    """Wait until no message of the rank's engine is applied in part; return whether the fleet still has the rank."""
    while rank.subscription is not None and rank.subscription.is_amid_batch:  # noqa: ASYNC110 - a few turns
        await asyncio.sleep(0)
    endpoint = fleet.get(rank.endpoint)
    return endpoint is not None and endpoint.rank(rank.number) is rank
