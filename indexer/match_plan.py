"""The ranks to match prompts with, prepared once for many prompts, and the best rank of every endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from .index import BlockIndex, RankMatcher
from .match import PrefixMatch, RankLayout, RankMatch
from .prefix import Prefix


class PlannedRank(NamedTuple):
    """A rank whose blocks can be matched.

    Attributes:
        endpoint: name of its endpoint.
        rank: data-parallel rank.
        block_size: tokens per block.
        layout: its holders by tier.
    """

    endpoint: str
    rank: int
    block_size: int
    layout: RankLayout


class _SameSize(NamedTuple):
    """The ranks of one block size, in the order of `matcher`."""

    block_size: int
    ranks: list[PlannedRank]
    matcher: RankMatcher


class MatchPlan:
    """A matcher of prompts with a fixed set of ranks, valid until one is added, removed or gets another layout.

    Args:
        ranks: the ranks.
        tiers: names of the configured tiers, fastest first; every layout has the same number.
        index_for: block size -> the index for blocks of that size.
    """

    def __init__(
        self,
        ranks: Iterable[PlannedRank],
        *,
        tiers: tuple[str, ...],
        index_for: Callable[[int], BlockIndex],
    ) -> None:
        self._tiers = tiers
        self._nothing = RankMatch((0,) * len(tiers), (0,) * len(tiers), 0)
        by_size: dict[int, list[PlannedRank]] = {}
        lowest: dict[str, PlannedRank] = {}
        for planned in ranks:
            by_size.setdefault(planned.block_size, []).append(planned)
            if planned.rank <= lowest.setdefault(planned.endpoint, planned).rank:
                lowest[planned.endpoint] = planned
        self._sizes = [
            _SameSize(size, same, index_for(size).matcher([one.layout for one in same], block_size=size))
            for size, same in by_size.items()
        ]
        self._lowest: dict[tuple[int, int], list[str]] = {}
        """Endpoints by block size and number of their lowest rank."""
        for endpoint, planned in lowest.items():
            self._lowest.setdefault((planned.block_size, planned.rank), []).append(endpoint)

    def match(self, prefix: Prefix) -> dict[str, PrefixMatch]:
        """Match the prompt with the best rank of each endpoint: most usable tokens, then lowest number.

        Cost: one hash pass and one index walk per distinct block size, then O(1) per rank that holds something.
        Endpoints that hold nothing share one match.
        """
        matches: dict[str, PrefixMatch] = {}
        for (size, rank), endpoints in self._lowest.items():
            nothing = PrefixMatch(self._tiers, size, len(prefix.keys(size)), self._nothing, rank)
            matches.update(dict.fromkeys(endpoints, nothing))
        for size, ranks, matcher in self._sizes:
            keys = prefix.keys(size)
            n_blocks = len(keys)
            for position, held in matcher.match(keys, n_tokens=prefix.n_tokens).items():
                endpoint, rank, _, _ = ranks[position]
                found = PrefixMatch(self._tiers, size, n_blocks, held, rank)
                before = matches[endpoint]
                matches[endpoint] = found if before.rank == rank else _better(found, before)
        return matches


def _better(one: PrefixMatch, other: PrefixMatch) -> PrefixMatch:
    """Return the better of two ranks of an endpoint, with the usable tokens of both."""
    best = max(one, other, key=lambda match: (match.usable_tokens, -match.rank))
    usable = {**one.rank_usable_tokens, **other.rank_usable_tokens}
    usable.pop(best.rank, None)
    return msgspec.structs.replace(best, other_ranks=usable)
