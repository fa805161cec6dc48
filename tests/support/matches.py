"""Matches for tests of their users."""

from __future__ import annotations

from collections.abc import Mapping

from kvatlas.indexer.match import PrefixMatch, RankMatch


def prefix_match(tier_blocks: Mapping[str, int], *, n_blocks: int = 10, block_size: int = 16) -> PrefixMatch:
    """Build a match whose tiers, fastest first, hold these numbers of leading blocks; all are usable."""
    union: list[int] = []
    for held in tier_blocks.values():
        union.append(max(0, held - sum(union)))
    rank = RankMatch(tuple(tier_blocks.values()), tuple(union), sum(union))
    return PrefixMatch(tuple(tier_blocks), block_size, n_blocks, rank)
