"""The ranks to match prompts with, prepared once for many prompts, and the best rank of every endpoint."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .figures import BLOCK_SIZE, N_BESIDE_TIERS, RANK, USABLE
from .index import BlockIndex, RankMatcher
from .match import PrefixMatch, RankLayout, RankMatch
from .match_columns import MatchColumns, MatchedRank, SparseMatches
from .prefix import Prefix

_NO_RANKS: Mapping[int, Mapping[int, int]] = MappingProxyType({})


class PlannedRank(NamedTuple):
    """A rank whose blocks can be matched.

    Attributes:
        endpoint: name of its endpoint.
        rank: data-parallel rank.
        block_size: tokens per block.
        layout: its holders by tier.
        lookahead: tokens after a block that belong to its key.
    """

    endpoint: str
    rank: int
    block_size: int
    layout: RankLayout
    lookahead: int = 0


class MatchPlan:
    """A matcher of prompts with a fixed set of ranks, valid until one is added, removed or gets another layout.

    Args:
        ranks: the ranks.
        tiers: names of the configured tiers, fastest first; every layout has the same number.
        index_for: block size -> the index for blocks of that size.
        endpoints: endpoints by row; None for those of the ranks.

    Attributes:
        endpoints: as above.
    """

    def __init__(
        self,
        ranks: Iterable[PlannedRank],
        *,
        tiers: tuple[str, ...],
        index_for: Callable[[int], BlockIndex],
        endpoints: tuple[str, ...] | None = None,
    ) -> None:
        ranks = list(ranks)
        if endpoints is None:
            endpoints = tuple(dict.fromkeys(rank.endpoint for rank in ranks))
        self._tiers, self.endpoints = tiers, endpoints
        rows = {name: row for row, name in enumerate(endpoints)}
        lowest: dict[str, PlannedRank] = {}
        for planned in ranks:
            if planned.rank <= lowest.setdefault(planned.endpoint, planned).rank:
                lowest[planned.endpoint] = planned
        n_ranks = Counter(planned.endpoint for planned in ranks)
        by_keys: dict[tuple[int, int], list[MatchedRank]] = {}
        for planned in ranks:
            endpoint, number, size, layout, lookahead = planned
            place = MatchedRank(
                rows[endpoint], number, layout, planned is lowest[endpoint], n_ranks[endpoint] > 1
            )
            by_keys.setdefault((size, lookahead), []).append(place)
        self._matchers: dict[tuple[int, int], RankMatcher] = {
            (size, lookahead): index_for(size).matcher(same, block_size=size)
            for (size, lookahead), same in by_keys.items()
        }
        """Matchers by block size and lookahead, which define a prompt's keys."""
        self._nothing = np.zeros((2 * len(tiers) + N_BESIDE_TIERS, len(rows)), np.int32)
        """What a prompt shows of which nobody holds anything, but for the number of its blocks."""
        self._lowest: dict[tuple[int, int, int], list[str]] = {}
        """Endpoints by block size, lookahead, and number of their lowest rank."""
        for endpoint, planned in lowest.items():
            self._nothing[2 * len(tiers) + RANK, rows[endpoint]] = planned.rank
            self._nothing[2 * len(tiers) + BLOCK_SIZE, rows[endpoint]] = planned.block_size
            self._lowest.setdefault((planned.block_size, planned.lookahead, planned.rank), []).append(
                endpoint
            )
        self._has_ranks = any(planned.rank for planned in ranks)
        self._hybrid = np.array(sorted({rows[p.endpoint] for p in ranks if p.layout.windows}), np.intp)
        self._drops = any(planned.layout.dropped for planned in ranks)
        self._is_known: NDArray[np.bool_] | None = None
        if len(lowest) < len(rows):
            self._is_known = np.array([name in lowest for name in rows], np.bool_)

    def columns(self, prefix: Prefix) -> MatchColumns | None:
        """Match the prompt with the best rank of each endpoint; None without ranks.

        Cost: one hash pass and one index walk per distinct block size and lookahead, then O(1) per rank that holds something.
        """
        if not self._matchers:
            return None
        figures = self._nothing.copy()
        sizes: tuple[int, int] | None = None
        sparse: list[SparseMatches] = []
        for (size, lookahead), matcher in self._matchers.items():
            keys = prefix.keys(size, lookahead)
            found = matcher.fill(keys, figures, n_tokens=prefix.n_tokens)
            if found is not None:
                sparse.append(found)
            sizes = (len(keys), size)
        columns = MatchColumns(
            self._tiers,
            figures,
            self._is_known,
            sizes if len(self._matchers) == 1 else None,
            {},
            _NO_RANKS,
            self._has_ranks,
            self._drops,
        )
        if sparse:
            _add_sparse(columns, sparse)
        if self._hybrid.size:
            self._leave_last_token(columns, prefix.n_tokens)
        return columns

    def _leave_last_token(self, columns: MatchColumns, n_tokens: int) -> None:
        """Have hybrid models compute the last token of a prompt that they have as a whole; others need not with slower tiers."""
        usable = columns.line(USABLE)[self._hybrid] * columns.line(BLOCK_SIZE)[self._hybrid]
        columns.all_but_last = (
            frozenset(self._hybrid[usable == n_tokens].tolist()) if n_tokens else frozenset()
        )
        if not columns.other_ranks:
            return
        hybrid: set[int] = set(self._hybrid.tolist())
        columns.other_ranks = {
            row: {rank: tokens - (row in hybrid and tokens == n_tokens) for rank, tokens in ranks.items()}
            for row, ranks in columns.other_ranks.items()
        }

    def match(self, prefix: Prefix) -> dict[str, PrefixMatch]:
        """Match the prompt as `columns` does, with an object per endpoint; those that hold nothing share one.

        Endpoints with unknown block size are absent. Cost: as `columns`, and 0.7 us per endpoint that holds something.
        """
        matches: dict[str, PrefixMatch] = {}
        columns = self.columns(prefix)
        if columns is None:
            return matches
        n_tiers = len(self._tiers)
        nothing = RankMatch((0,) * n_tiers, (0,) * n_tiers, 0)
        for (size, lookahead, rank), endpoints in self._lowest.items():
            shared = PrefixMatch(self._tiers, size, len(prefix.keys(size, lookahead)), nothing, rank)
            matches.update(dict.fromkeys(endpoints, shared))
        runs, others = columns.interleaved.get, columns.other_ranks.get
        rows = list(columns.other_ranks)  # some show no block, where the rank that has any can use none
        for row, match in zip(rows, columns.matches(rows), strict=True) if rows else ():
            matches[self.endpoints[row]] = match
        matcher = next(iter(self._matchers.values()))
        for row, tiers, union, usable, rank, predicted, n_blocks, size in matcher.held(columns.figures):
            held = RankMatch(tiers, union, usable, runs(row, ()))
            matches[self.endpoints[row]] = PrefixMatch(
                self._tiers,
                size,
                n_blocks,
                held,
                rank,
                others(row, {}),
                predicted,
                int(row in columns.all_but_last),
            )
        return matches


def _add_sparse(columns: MatchColumns, sparse: list[SparseMatches]) -> None:
    shown: list[int] = columns.line(RANK).tolist()
    usable: dict[int, dict[int, int]] = {}
    for found in sparse:
        columns.interleaved.update((row, runs) for row, rank, runs in found.interleaved if shown[row] == rank)
        triples = iter(array("i", found.shared))
        for row, rank, tokens in zip(triples, triples, triples, strict=True):
            if shown[row] != rank:
                usable.setdefault(row, {})[rank] = tokens
    columns.other_ranks = usable
