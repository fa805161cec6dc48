"""How many blocks each tier of one rank can hold."""

from __future__ import annotations

from collections.abc import Mapping

from .holders import FASTEST
from .tiers import TierId, TierTable


class Bounds:
    """Capacity of each tier.

    Without removals only recency empties an inferred tier, so it needs a bound in any case: one that was given none has
    the fastest tier's.

    Args:
        tiers: tier table with the configured capacities.
    """

    def __init__(self, tiers: TierTable) -> None:
        specs = enumerate(tiers.specs)
        self._blocks = {TierId(tier): spec.capacity for tier, spec in specs if spec.capacity is not None}
        self._followers: set[TierId] = set()

    @property
    def blocks(self) -> Mapping[TierId, int]:
        """Tier -> blocks, of the tiers that are bounded; changes as they do."""
        return self._blocks

    def set(self, tier: TierId, n_blocks: int | None, *, is_inferred: bool) -> list[TierId]:
        """Give the tier a bound, or with None take it away; returns the tiers whose bound that is."""
        self._followers.discard(tier)
        if n_blocks is None and is_inferred and tier != FASTEST:
            self._followers.add(tier)
            n_blocks = self._blocks.get(FASTEST)
        changed = [tier, *(self._followers if tier == FASTEST else ())]
        for each in changed:
            if n_blocks is None:
                self._blocks.pop(each, None)
            else:
                self._blocks[each] = n_blocks
        return changed

    def followers(self) -> list[TierId]:
        """Tiers that have the fastest tier's bound for want of their own."""
        return list(self._followers)
