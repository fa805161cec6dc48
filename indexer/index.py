"""The block index contract: which holder has which block key, counted and bounded."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, NewType, Protocol

from .columns import HolderColumns
from .match import PresenceRun, RankLayout, RankMatch

HolderId = NewType("HolderId", int)
"""One place that holds blocks: (endpoint, rank, tier, group). Dense; reused after `close`."""

MAX_SURPLUS_EVICTED = 4096
"""Copies that one call takes from a holder beyond those it stores: a bound lowered by millions must not take a second."""


class IndexStatistics(NamedTuple):
    """Size of an index.

    Attributes:
        keys: distinct block keys.
        residencies: (holder, key) pairs.
        unswept: keys of closed and cleared holders that still take memory.
        size_bytes: memory of all tables.
    """

    keys: int
    residencies: int
    unswept: int
    size_bytes: int


class RankMatcher(Protocol):
    """Ranks whose layouts are known, to be matched with many prompts."""

    def match(self, keys: array[int], *, n_tokens: int) -> dict[int, RankMatch]:
        """What each rank holds of a prompt: `measure` of the index's `runs` for every layout.

        Args:
            keys: the prompt's full blocks, in order.
            n_tokens: tokens of the prompt.
        Returns:
            position of the rank's layout -> match, in that order; ranks without the first block are absent.
        Cost: O(blocks + ranks * runs).
        """
        ...


class BlockIndex(Protocol):
    """Residencies of one block size. Keys arrive as `array('Q')` in prompt order."""

    def open(self) -> HolderId:
        """A new empty holder without capacity bound. Cost: O(1)."""
        ...

    def close(self, holder: HolderId) -> None:
        """Forget the holder and all it has. Cost: O(its residencies)."""
        ...

    def store(self, holder: HolderId, keys: array[int]) -> int:
        """One more copy of each key, newest last touched; returns residencies evicted to keep the capacity.

        Within one call the first key is the most recent: eviction takes prompts from their tail, as engines do.
        Cost: O(n).
        """
        ...

    def keep(self, holder: HolderId, keys: array[int]) -> int:
        """Hold each key at least once: as `store`, but a key the holder has is only renewed. Cost: O(n)."""
        ...

    def remove(self, holder: HolderId, keys: array[int]) -> int:
        """One copy less of each key; a key without copies is gone. Returns keys the holder did not have. Cost: O(n)."""
        ...

    def clear(self, holder: HolderId) -> None:
        """Drop everything the holder has; its capacity stays."""
        ...

    def touch(self, holder: HolderId, keys: array[int]) -> None:
        """Renew the recency of those `keys` that the holder has, the first key most recent."""
        ...

    def set_capacity(self, holder: HolderId, n_blocks: int | None) -> int:
        """Bound the holder's copies, None for no bound; returns residencies evicted.

        A bound that is far below what the holder has is reached in steps: this call, and every later `store`, `keep` and
        `set_capacity` of the holder, evicts up to `MAX_SURPLUS_EVICTED` more than it stores.
        """
        ...

    def has(self, holder: HolderId, key: int) -> bool:
        """Whether the holder has `key`."""
        ...

    def size(self, holder: HolderId) -> int:
        """Keys the holder has."""
        ...

    def runs(self, keys: array[int]) -> list[PresenceRun]:
        """Holders along `keys` up to the first key nobody has, as maximal runs. Cost: O(n)."""
        ...

    def matcher(self, layouts: Sequence[RankLayout], *, block_size: int) -> RankMatcher:
        """Ranks of this index to be matched; good for as long as their layouts are. Cost: O(ranks).

        Args:
            layouts: where the blocks of each rank are.
            block_size: tokens a block of this index.
        Raises:
            ValueError: a layout has no tier, or a chunk below 1 block.
        """
        ...

    def items(self, holder: HolderId) -> Iterator[tuple[int, int]]:
        """(key, copies) of the holder, least recently used first."""
        ...

    def sweep(self, n_keys: int) -> int:
        """Free memory of up to `n_keys` keys that closed and cleared holders left; returns how many are left.

        Cost: O(n_keys). Nothing that others see changes.
        """
        ...

    def stats(self) -> IndexStatistics:
        """Sizes and memory. Cost: O(holders)."""
        ...

    def contents(self, holder: HolderId) -> HolderColumns:
        """All the holder has, order included; `fill` makes an empty holder equal to it. Cost: O(its residencies)."""
        ...


def fill(index: BlockIndex, holder: HolderId, contents: HolderColumns) -> None:
    """Give an empty holder without bound what `contents` of another told. Cost: O(n), in two calls of the index."""
    index.store(holder, contents.copies)
    index.keep(holder, contents.keys)
