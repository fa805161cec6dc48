"""Blocks of one rank in the index: opened once the block size is known, bounded per tier, counted."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence

from .block_size import BlockSize
from .bounds import Bounds
from .counters import LedgerCounters
from .holders import Place, RankHolders, SavedShared, SharedHolders
from .index import BlockIndex
from .keys import BlockKey
from .tiers import TierId, TierTable


class RankBlocks:
    """Blocks of one rank at its current block size.

    Args:
        tiers: tier table.
        index_for: block size -> the index for blocks of that size.
        shared: holders of tiers that belong to no server.
        counters: of the ledger; `evicted` and `unknown_removals` are counted here.
        on_change: called when the layout changes.

    Attributes:
        size: block size of the rank.
        bounds: capacity of each tier.
        holders: holders in the index, None while no block size is known.
    """

    def __init__(
        self,
        *,
        tiers: TierTable,
        index_for: Callable[[int], BlockIndex],
        shared: SharedHolders,
        counters: LedgerCounters,
        on_change: Callable[[], None],
    ) -> None:
        self.size = BlockSize()
        self.bounds = Bounds(tiers)
        self.holders: RankHolders | None = None
        self._tiers, self._index_for, self._shared = tiers, index_for, shared
        self._counters, self._on_change = counters, on_change

    @property
    def known(self) -> RankHolders:
        """Holders of a rank that has keys; a key is known only after the block size."""
        assert self.holders is not None, "a key is known only after the block size"  # noqa: S101
        return self.holders

    def reopen(self) -> None:
        """Drop all blocks, and open empty holders for the current block size if it is known."""
        if self.holders is not None:
            self.holders.close()
        self.holders = None
        if (block_size := self.size.in_use) is not None:
            self.holders = RankHolders(
                index=self._index_for(block_size),
                block_size=block_size,
                tiers=self._tiers,
                shared=self._shared,
                capacities=self.bounds.blocks,
                on_change=self._on_change,
            )
        self._on_change()

    def settle(self, block_size: int) -> None:
        """Start with a block size that events have shown; blocks at the same size stay."""
        is_same = self.size.in_use == block_size
        self.size.certain = block_size
        if not is_same:
            self.reopen()

    def store(self, place: Place, keys: Sequence[BlockKey]) -> None:
        """Add one copy of each key."""
        self._counters.evicted += self.known.store(place, keys)

    def keep(self, place: Place, keys: Sequence[BlockKey]) -> None:
        """Hold each key once and renew its recency."""
        self._counters.evicted += self.known.keep(place, keys)

    def learn(self, place: Place, keys: array[int]) -> None:
        """Hold a prompt's blocks from its first on once, and renew their recency."""
        self._counters.evicted += self.known.learn(place, keys)

    def remove(self, place: Place, keys: Sequence[BlockKey]) -> None:
        """Remove one copy of each key."""
        self._counters.unknown_removals += self.known.remove(place, keys)

    def load_shared(self, saved: Iterable[SavedShared]) -> None:
        """Add blocks to the tiers that belong to no server."""
        self._shared.load(saved)

    def set_capacity(self, tier: TierId, n_blocks: int | None, *, is_inferred: bool) -> int:
        """Bound a tier; return the number of blocks evicted."""
        n_evicted = 0
        for each in self.bounds.set(tier, n_blocks, is_inferred=is_inferred):
            if self.holders is not None:
                n_evicted += self.holders.set_capacity(each, self.bounds.blocks.get(each))
        self._counters.evicted += n_evicted
        return n_evicted
