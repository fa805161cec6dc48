"""Bounds of tiers whose `lruCapacityPerServer` is auto, for each rank of each endpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..indexer.atlas import Atlas
from ..indexer.holders import FASTEST, MAX_TIER_BLOCKS
from ..indexer.learned_bound import LearnedBound
from ..indexer.tiers import TierId, TierSource
from ..scorers.audit import Audited, tier_reuse
from .endpoint import Endpoint
from .publisher import Publisher

log = logging.getLogger(__name__)


class AutoCapacities:
    """Bounds the fastest tier as the engine's metrics tell, and tiers they do not tell of as its evictions and the audit do.

    Args:
        atlas: the index, whose tiers it bounds.
    """

    def __init__(self, atlas: Atlas) -> None:
        self._atlas = atlas

    def follow(self, endpoint: Endpoint, tiers: Iterable[TierId]) -> None:
        """Bring the tiers to what is known of them. Cost: O(ranks * tiers)."""
        for tier in tiers:
            for publisher in endpoint.publishers:
                bound = _bound(endpoint, publisher, tier)
                if bound != publisher.bounded.get(tier):
                    self._set(publisher, tier, bound)

    def bound(self, endpoint: Endpoint, tier: TierId) -> int:
        """As `follow`, of a tier that had another bound; returns blocks evicted: while there are any, more may have to go."""
        return sum(
            self._set(publisher, tier, _bound(endpoint, publisher, tier)) for publisher in endpoint.publishers
        )

    def learn(self, endpoint: Endpoint, audited: Audited, tiers: Iterable[TierId]) -> None:
        """Take from one more audited request what it shows of inferred tiers.

        Nothing of an endpoint with several ranks: it is not known which of them answered.
        """
        if len(endpoint.publishers) != 1:
            return
        (publisher,) = endpoint.publishers
        ledger = self._atlas.ledger(endpoint.name, publisher.rank)
        for tier in tiers:
            reuse = tier_reuse(audited, self._atlas.tiers.specs[tier].name)
            if reuse is None or ledger.sources.of(tier) is not TierSource.INFERRED:
                continue
            learned = publisher.learned.setdefault(tier, LearnedBound(highest=MAX_TIER_BLOCKS))
            bound = ledger.capacity(tier) or MAX_TIER_BLOCKS
            learned.told(reuse, bound=bound, n_held=ledger.residencies(tier))
        self.follow(endpoint, tiers)

    def _set(self, publisher: Publisher, tier: TierId, bound: int | None) -> int:
        if (bound is None) != (publisher.bounded.get(tier) is None):
            log.info(
                "%s rank %d: tier %s is bounded to %s blocks", publisher.endpoint, publisher.rank,
                self._atlas.tiers.specs[tier].name, "no number of" if bound is None else bound,
            )  # fmt: skip
        publisher.bounded[tier] = bound
        return self._atlas.ledger(publisher.endpoint, publisher.rank).set_capacity(tier, bound)


def _bound(endpoint: Endpoint, publisher: Publisher, tier: TierId) -> int | None:
    """Blocks to bound a tier to, None while nothing is known of it."""
    if tier == FASTEST and endpoint.gpu_blocks is not None:
        return endpoint.gpu_blocks
    return publisher.auto_bound(tier)
