"""Bounds of tiers in blocks: configured, or derived per rank."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from ..indexer.atlas import Atlas
from ..indexer.holders import FASTEST, MAX_TIER_BLOCKS, NEXT
from ..indexer.tiers import TierId, TierSource
from .audit import Audited, tier_reuse
from .endpoint import Endpoint
from .rank import Rank
from .settings import FleetSettings
from .shared_bounds import SharedBounds

log = logging.getLogger(__name__)


class TierBounds:
    """Sets the bounds of all tiers.

    If `lruCapacityPerServer` is auto, the bound of the fastest tier comes from the engine's metrics. Bounds of other tiers
    come from observed evictions and the audit.

    Args:
        atlas: the index.
        settings: initial settings; `configure` replaces them.
        endpoints: of the fleet, always the same mapping.

    Attributes:
        shared: what other processes know of the bounds.
    """

    def __init__(self, atlas: Atlas, settings: FleetSettings, endpoints: Mapping[str, Endpoint]) -> None:
        self._atlas, self._settings = atlas, settings
        self.shared = SharedBounds(endpoints, atlas.tiers)
        self._to_shrink: set[TierId] = set()

    def configure(self, settings: FleetSettings) -> None:
        """Replace the settings, at once for new endpoints; `shrinking` applies them to the others."""
        before, self._settings = self._settings, settings
        for number, capacity in enumerate(settings.capacities):
            tier = TierId(number)
            self._atlas.tiers.bound(tier, capacity)
            is_auto = tier in settings.auto_capacity_tiers
            if (capacity, is_auto) != (before.capacities[number], tier in before.auto_capacity_tiers):
                self._to_shrink.add(tier)

    def shrinking(self, endpoints: Mapping[str, Endpoint]) -> Iterator[None]:
        """Evict blocks beyond the bounds that `configure` set; endpoints may be added and removed between the steps.

        Cost: a step evicts at most `MAX_SURPLUS_EVICTED` blocks per rank and group of an endpoint.
        """
        while self._to_shrink:
            tier = self._to_shrink.pop()
            while self._atlas.set_shared_capacity(tier, self._settings.capacities[tier]):
                yield
            for name in list(endpoints):
                while name in endpoints and self._shrink(endpoints[name], tier):
                    yield

    def follow(self, endpoint: Endpoint) -> None:
        """Set the derived bounds of an endpoint's tiers. Cost: O(ranks * tiers)."""
        for rank in endpoint.ranks:
            self.shared.follow(rank)
        for tier in self._settings.auto_capacity_tiers:
            for rank in endpoint.ranks:
                bound = self._known_bound(endpoint, rank, tier)
                if bound != rank.bounded.get(tier):
                    self._set(rank, tier, bound)

    def learn(self, endpoint: Endpoint, audited: Audited) -> None:
        """Learn bounds of inferred tiers from an audited request.

        Endpoints with several ranks are skipped, since it is unknown which rank ran the request.
        """
        if len(endpoint.ranks) != 1:
            return
        (rank,) = endpoint.ranks
        for tier in self._settings.auto_capacity_tiers:
            name = self._atlas.tiers.specs[tier].name
            reuse = tier_reuse(audited, name)
            if reuse is None or rank.ledger.sources.of(tier) is not TierSource.INFERRED:
                continue
            bound = rank.ledger.capacity(tier) or MAX_TIER_BLOCKS
            learned = self.shared.begun(rank, name)
            learned.update(reuse, bound=bound, n_held=rank.ledger.residencies(tier))
            self.shared.taught(rank, name)
        self.follow(endpoint)

    def _shrink(self, endpoint: Endpoint, tier: TierId) -> int:
        """Set a changed bound; return the evicted blocks. More may have to go until that is 0."""
        if tier in self._settings.auto_capacity_tiers:
            return sum(
                self._set(rank, tier, self._known_bound(endpoint, rank, tier)) for rank in endpoint.ranks
            )
        return self._atlas.set_capacity(endpoint.name, tier, self._settings.capacities[tier])

    def _set(self, rank: Rank, tier: TierId, bound: int | None) -> int:
        if (bound is None) != (rank.bounded.get(tier) is None):
            log.info(
                "%s rank %d: tier %s is bounded to %s blocks", rank.endpoint, rank.number,
                self._atlas.tiers.specs[tier].name, "no number of" if bound is None else bound,
            )  # fmt: skip
        rank.bounded[tier] = bound
        return rank.ledger.set_capacity(tier, bound)

    def _known_bound(self, endpoint: Endpoint, rank: Rank, tier: TierId) -> int | None:
        """Return the derived bound of a tier in blocks, None while it is unknown."""
        if tier == FASTEST and rank.ledger.learns_from_routing:
            return self._settings.approximate.capacity(endpoint.gpu_blocks, endpoint.told_block_size)
        if tier == FASTEST and endpoint.gpu_blocks is not None:
            return endpoint.gpu_blocks
        if tier == NEXT and endpoint.slow_blocks is not None and not self._atlas.tiers.specs[tier].shared:
            return endpoint.slow_blocks
        if len(endpoint.ranks) == 1 and rank.ledger.sources.of(tier) is TierSource.INFERRED:
            self.shared.learned(rank, self._atlas.tiers.specs[tier].name)
        return rank.auto_bound(tier)
