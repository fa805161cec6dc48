"""The contract of a block index: block keys per holder, counted and bounded."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, NewType, Protocol

from .columns import HolderColumns
from .figures import Figures, HeldColumn
from .match import PresenceRun
from .match_columns import MatchedRank, SparseMatches

HolderId = NewType("HolderId", int)
"""Number of one holder of blocks: (endpoint, rank, tier, group). Dense; reused after `close`."""

MAX_SURPLUS_EVICTED = 4096
"""Copies that one call evicts beyond those it stores: a bound lowered by millions must not block for a second."""


class IndexStatistics(NamedTuple):
    """Size of an index.

    Attributes:
        keys: distinct block keys; those that `learn` keeps as they came count for each holder.
        residencies: (holder, key) pairs.
        unswept: keys of closed and cleared holders that still take memory.
        size_bytes: memory of all tables.
    """

    keys: int
    residencies: int
    unswept: int
    size_bytes: int


class RankMatcher(Protocol):
    """A fixed set of ranks to match with many prompts."""

    def fill(self, keys: array[int], figures: Figures, *, n_tokens: int) -> SparseMatches | None:
        """Match a prompt with each rank: `measure` of the index's `runs` for every layout.

        Args:
            keys: the prompt's full blocks, in order.
            figures: gets a column per row of the ranks; ranks that hold nothing leave theirs, except for the number of the
                prompt's blocks. Of several ranks in a row, and what the column shows before, the better one stays.
            n_tokens: tokens of the prompt.
        Returns:
            what does not fit into columns, None if everything does.
        Cost: O(blocks + ranks that hold something * tiers) for prompts whose blocks the ranks have without many gaps.
        """
        ...

    def held(self, figures: Figures) -> list[HeldColumn]:
        """Return the columns with a block in any tier, whichever matcher filled them."""
        ...


class BlockIndex(Protocol):
    """Residencies of one block size. Keys arrive as `array('Q')` in prompt order."""

    def open(self) -> HolderId:
        """Open a new empty holder without capacity bound. Cost: O(1)."""
        ...

    def close(self, holder: HolderId) -> None:
        """Remove the holder and its blocks. Cost: O(its residencies)."""
        ...

    def store(self, holder: HolderId, keys: array[int]) -> int:
        """Add one copy of each key and renew its recency; return residencies evicted to keep the capacity.

        Within one call the first key is the most recent: prompts are evicted from their tail, as engines do.
        Cost: O(n).
        """
        ...

    def keep(self, holder: HolderId, keys: array[int]) -> int:
        """Hold each key at least once: as `store`, but a key that the holder has is only renewed. Cost: O(n)."""
        ...

    def learn(self, holder: HolderId, keys: array[int]) -> int:
        """Hold a prompt's blocks from the first one on: as `keep`, for chained keys.

        An implementation may keep blocks that no other prompt shares as they came. Such blocks of another caller's keys,
        which stand for nothing before them, may count twice.

        Cost: O(n), of which blocks that are new and not shared are the cheapest.
        """
        ...

    def remove(self, holder: HolderId, keys: array[int]) -> int:
        """Remove one copy of each key, and keys without copies; return keys that the holder did not have. Cost: O(n)."""
        ...

    def clear(self, holder: HolderId) -> None:
        """Remove all blocks of the holder; its capacity stays."""
        ...

    def touch(self, holder: HolderId, keys: array[int]) -> None:
        """Renew the recency of the `keys` that the holder has; the first key becomes the most recent."""
        ...

    def set_capacity(self, holder: HolderId, n_blocks: int | None) -> int:
        """Bound the holder's copies, None for no bound; return residencies evicted.

        A bound far below the holder's size is reached in steps: this call, and every later `store`, `keep` and
        `set_capacity` of the holder, evicts up to `MAX_SURPLUS_EVICTED` more than it stores.
        """
        ...

    def has(self, holder: HolderId, key: int) -> bool:
        """Return whether the holder has `key`."""
        ...

    def size(self, holder: HolderId) -> int:
        """Return the number of keys of the holder."""
        ...

    def runs(self, keys: array[int]) -> list[PresenceRun]:
        """Return the holders along `keys`, up to the first key without holder, as maximal runs. Cost: O(n)."""
        ...

    def matcher(self, ranks: Sequence[MatchedRank], *, block_size: int) -> RankMatcher:
        """Return a matcher of ranks of this index, valid until a layout changes. Cost: O(ranks).

        Args:
            ranks: their layouts and places.
            block_size: tokens per block of this index.
        Raises:
            ValueError: a layout has no tier, or a chunk below 1 block.
        """
        ...

    def items(self, holder: HolderId) -> Iterator[tuple[int, int]]:
        """Yield (key, copies) of the holder, least recently used first."""
        ...

    def sweep(self, n_keys: int) -> int:
        """Free the memory of up to `n_keys` keys of closed and cleared holders; return how many remain.

        Cost: O(n_keys). No result of another method changes.
        """
        ...

    def stats(self) -> IndexStatistics:
        """Return sizes and memory. Cost: O(holders)."""
        ...

    def contents(self, holder: HolderId) -> HolderColumns:
        """Return all blocks of the holder in order, from which `fill` rebuilds it. Cost: O(its residencies)."""
        ...


def fill(index: BlockIndex, holder: HolderId, contents: HolderColumns) -> None:
    """Fill an empty, unbounded holder with the contents of another. Cost: O(n), in two calls of the index."""
    index.store(holder, contents.copies)
    index.keep(holder, contents.keys)
