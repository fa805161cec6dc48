"""Our indexes alone, without the ledgers that turn engines' events into block keys."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np

from kvatlas.indexer.factory import index_core
from kvatlas.indexer.figures import N_BESIDE_TIERS
from kvatlas.indexer.match import RankLayout
from kvatlas.indexer.match_columns import MatchedRank

from .columns import Answer, Column, Matcher
from .fleet import BLOCK_SIZE, N_TIERS, Blocks

_SWEPT_AT_ONCE = 4096
"""As in the server."""


class MeasuredIndex(Matcher, Protocol):
    """An index to store into. A holder is an (endpoint, tier) pair, `N_TIERS * endpoint + tier`."""

    def store(self, holder: int, blocks: Blocks) -> None:
        """Apply a store event of up to `EVENT_BLOCKS` blocks."""
        ...

    def remove(self, holder: int, blocks: Blocks) -> None:
        """Apply a removal."""
        ...

    def forget(self, endpoint: int) -> None:
        """Drop everything that an endpoint holds."""
        ...

    def sweep(self) -> bool:
        """Do a small part of what earlier operations left for later; returns whether more is left."""
        ...


class OurIndex:
    """A `BlockIndex` with a holder for each endpoint and tier. Implements `MeasuredIndex`."""

    def __init__(self, column: Column, n_endpoints: int) -> None:
        self.index = index_core(column).make_index()
        self.holders = [self.index.open() for _ in range(N_TIERS * n_endpoints)]
        pairs = zip(self.holders[::N_TIERS], self.holders[1::N_TIERS], strict=True)
        ranks = [
            MatchedRank(row, 0, RankLayout((1 << gpu, 1 << cpu), (1, 1)))
            for row, (gpu, cpu) in enumerate(pairs)
        ]
        self._matcher = self.index.matcher(ranks, block_size=BLOCK_SIZE)
        self._nothing = np.zeros((2 * N_TIERS + N_BESIDE_TIERS, n_endpoints), np.int32)

    def store(self, holder: int, blocks: Blocks) -> None:
        """See `MeasuredIndex.store`."""
        self.index.store(self.holders[holder], blocks.keys)

    def remove(self, holder: int, blocks: Blocks) -> None:
        """See `MeasuredIndex.remove`."""
        self.index.remove(self.holders[holder], blocks.keys)

    def forget(self, endpoint: int) -> None:
        """See `MeasuredIndex.forget`."""
        for holder in range(endpoint * N_TIERS, endpoint * N_TIERS + N_TIERS):
            self.index.close(self.holders[holder])

    def sweep(self) -> bool:
        """See `MeasuredIndex.sweep`."""
        return self.index.sweep(_SWEPT_AT_ONCE) > 0

    async def timed_match(self, prompt: Blocks) -> tuple[float, Answer]:
        """See `Matcher.timed_match`."""
        begin = time.perf_counter()
        figures = self._nothing.copy()
        self._matcher.fill(prompt.keys, figures, n_tokens=prompt.n_tokens)
        seconds = time.perf_counter() - begin
        fastest, union = figures[0].tolist(), figures[N_TIERS : 2 * N_TIERS].sum(axis=0).tolist()
        return seconds, {row: each for row, each in enumerate(zip(fastest, union, strict=True)) if each[1]}
