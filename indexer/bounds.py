"""Capacities of the tiers of one rank."""

from __future__ import annotations

from collections.abc import Mapping

from .holders import FASTEST
from .tiers import TierId, TierTable


class Bounds:
    """Bounds of each tier, in blocks.

    An inferred tier gets no removals and is emptied by recency alone, so it always needs a bound: without its own it
    follows the fastest tier's.

    Args:
        tiers: tier table with the configured capacities.
    """

    def __init__(self, tiers: TierTable) -> None:
        specs = enumerate(tiers.specs)
        self._blocks = {TierId(tier): spec.capacity for tier, spec in specs if spec.capacity is not None}
        self._followers: set[TierId] = set()

    @property
    def blocks(self) -> Mapping[TierId, int]:
        """Tier -> blocks, for the bounded tiers; a live view."""
        return self._blocks

    def set(self, tier: TierId, n_blocks: int | None, *, is_inferred: bool) -> list[TierId]:
        """Set the tier's bound, or remove it with None; return the tiers whose bound changed."""
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
        """Return the tiers without a bound of their own, which follow the fastest tier's."""
        return list(self._followers)
