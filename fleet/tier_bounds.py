"""How many blocks the tiers of endpoints are bounded to: as configured, or as is found out for each rank."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from ..indexer.atlas import Atlas
from ..indexer.holders import FASTEST, MAX_TIER_BLOCKS
from ..indexer.learned_bound import LearnedBound
from ..indexer.tiers import TierId, TierSource
from .audit import Audited, tier_reuse
from .endpoint import Endpoint
from .rank import Rank
from .settings import FleetSettings

log = logging.getLogger(__name__)


class TierBounds:
    """Bounds the tiers of every endpoint.

    Where `lruCapacityPerServer` is auto, the fastest tier goes by the engine's metrics, and tiers they do not tell of by
    its evictions and the audit.

    Args:
        atlas: the index, whose tiers it bounds.
        settings: what is configured, until `configure`.
    """

    def __init__(self, atlas: Atlas, settings: FleetSettings) -> None:
        self._atlas, self._settings = atlas, settings
        self._to_shrink: set[TierId] = set()

    def configure(self, settings: FleetSettings) -> None:
        """Bound the tiers of new endpoints otherwise from now on; `shrinking` makes the others follow."""
        before, self._settings = self._settings, settings
        for number, capacity in enumerate(settings.capacities):
            tier = TierId(number)
            self._atlas.tiers.bound(tier, capacity)
            is_auto = tier in settings.auto_capacity_tiers
            if (capacity, is_auto) != (before.capacities[number], tier in before.auto_capacity_tiers):
                self._to_shrink.add(tier)

    def shrinking(self, endpoints: Mapping[str, Endpoint]) -> Iterator[None]:
        """Bring tiers to the bounds that `configure` gave them, in steps between which endpoints may come and go.

        Cost: a step evicts at most `MAX_SURPLUS_EVICTED` blocks for each rank and group of an endpoint.
        """
        while self._to_shrink:
            tier = self._to_shrink.pop()
            while self._atlas.set_shared_capacity(tier, self._settings.capacities[tier]):
                yield
            for name in list(endpoints):
                while name in endpoints and self._shrink(endpoints[name], tier):
                    yield

    def follow(self, endpoint: Endpoint) -> None:
        """Bring its tiers to what is known of them. Cost: O(ranks * tiers)."""
        for tier in self._settings.auto_capacity_tiers:
            for rank in endpoint.ranks:
                bound = _known_bound(endpoint, rank, tier)
                if bound != rank.bounded.get(tier):
                    self._set(rank, tier, bound)

    def learn(self, endpoint: Endpoint, audited: Audited) -> None:
        """Take from one more audited request what it shows of inferred tiers.

        Nothing of an endpoint with several ranks: it is not known which of them answered.
        """
        if len(endpoint.ranks) != 1:
            return
        (rank,) = endpoint.ranks
        for tier in self._settings.auto_capacity_tiers:
            reuse = tier_reuse(audited, self._atlas.tiers.specs[tier].name)
            if reuse is None or rank.ledger.sources.of(tier) is not TierSource.INFERRED:
                continue
            learned = rank.learned.setdefault(tier, LearnedBound(highest=MAX_TIER_BLOCKS))
            bound = rank.ledger.capacity(tier) or MAX_TIER_BLOCKS
            learned.told(reuse, bound=bound, n_held=rank.ledger.residencies(tier))
        self.follow(endpoint)

    def _shrink(self, endpoint: Endpoint, tier: TierId) -> int:
        """Bound a tier that had another bound; returns blocks evicted: while there are any, more may have to go."""
        if tier in self._settings.auto_capacity_tiers:
            return sum(self._set(rank, tier, _known_bound(endpoint, rank, tier)) for rank in endpoint.ranks)
        return self._atlas.set_capacity(endpoint.name, tier, self._settings.capacities[tier])

    def _set(self, rank: Rank, tier: TierId, bound: int | None) -> int:
        if (bound is None) != (rank.bounded.get(tier) is None):
            log.info(
                "%s rank %d: tier %s is bounded to %s blocks", rank.endpoint, rank.number,
                self._atlas.tiers.specs[tier].name, "no number of" if bound is None else bound,
            )  # fmt: skip
        rank.bounded[tier] = bound
        return rank.ledger.set_capacity(tier, bound)


def _known_bound(endpoint: Endpoint, rank: Rank, tier: TierId) -> int | None:
    """Blocks to bound a tier to, None while nothing is known of it."""
    if tier == FASTEST and endpoint.gpu_blocks is not None:
        return endpoint.gpu_blocks
    return rank.auto_bound(tier)
