"""The block index in C++: same results as `ReferenceIndex`, an order of magnitude faster, usable from any thread."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from . import _native
from .index import HolderId, PresenceRun
from .keys import BlockKey, Extras
from .keys import prefix_keys as python_prefix_keys
from .match import RankLayout

Layouts = _native.Layouts
"""Layouts of several ranks in the form that `NativeIndex.match` reads; made by `compile_layouts`."""

_ITEMS_AT_ONCE = 4096


class RankRow(NamedTuple):
    """What one rank holds of a prompt; the figures are those of `RankMatch`.

    Attributes:
        rank: position of the rank's layout.
        tier_blocks: gap-free blocks by tier.
        runs: union prefix as (tier, blocks).
        usable_blocks: blocks the engine itself would reuse.
    """

    rank: int
    tier_blocks: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    usable_blocks: int


class IndexStatistics(NamedTuple):
    """Size of an index.

    Attributes:
        keys: distinct block keys.
        residencies: (holder, key) pairs.
        sets: distinct sets of holders.
        unswept: keys of closed and cleared holders that still take memory.
        size_bytes: memory of all tables.
    """

    keys: int
    residencies: int
    sets: int
    unswept: int
    size_bytes: int


class NativeIndex(_native.Index):
    """Implements `BlockIndex`.

    `close` and `clear` of a holder with many keys are O(1) for who looks: the keys leave the tables with the following
    operations, a bounded number each, or by `sweep`. Until then the number of a holder is open for reuse all the same.
    """

    __slots__ = ()

    def runs(self, keys: array[int]) -> list[PresenceRun]:
        """See `BlockIndex.runs`."""
        return [PresenceRun(end, holders) for end, holders in self.run_rows(keys)]

    def match(self, keys: array[int], layouts: Layouts, *, n_tokens: int, block_size: int) -> list[RankRow]:
        """What each rank holds of a prompt: `measure` of `runs` for every layout, in one pass.

        Args:
            keys: the prompt's full blocks, in order.
            layouts: the ranks, from `compile_layouts`.
            n_tokens: tokens of the prompt.
            block_size: tokens a block.
        Returns:
            Ranks that hold the first block in any tier, in the order of `layouts`.
        Cost: O(blocks + ranks * runs), without the GIL.
        """
        make = RankRow._make
        return [make(row) for row in self.match_rows(keys, layouts, n_tokens, block_size)]

    def items(self, holder: HolderId) -> Iterator[tuple[int, int]]:
        """See `BlockIndex.items`. Raises RuntimeError when the holder changes before the end."""
        return self._pages(holder, self.page(holder, _ITEMS_AT_ONCE, None))

    def stats(self) -> IndexStatistics:
        """Sizes and memory. Cost: O(holders)."""
        return IndexStatistics._make(self.statistics())

    def _pages(
        self, holder: HolderId, page: tuple[bytes, bytes, tuple[int, int] | None]
    ) -> Iterator[tuple[int, int]]:
        keys, copies, cursor = page
        while cursor is not None:
            yield from zip(array("Q", keys), array("Q", copies), strict=True)
            keys, copies, cursor = self.page(holder, _ITEMS_AT_ONCE, cursor)


def compile_layouts(layouts: Iterable[RankLayout]) -> Layouts:
    """`layouts` for `NativeIndex.match`; worth keeping until a rank's layout changes.

    Raises:
        ValueError: a layout without tiers, or with a chunk below 1 block.
    """
    return Layouts(
        [
            (
                [_mask_bytes(holders) for holders in layout.tiers],
                max(layout.chunks[1:], default=1),
                [(_mask_bytes(window.holders), window.n_blocks) for window in layout.windows],
            )
            for layout in layouts
        ]
    )


def prefix_keys(
    tokens: array[int],
    block_size: int,
    *,
    seed: int,
    parent: BlockKey | None = None,
    extras: Extras | None = None,
) -> array[int]:
    """See `keys.prefix_keys`: same arguments, keys and errors. Prompts with multimodal items are left to it.

    Cost: O(n) in tokens, about 0.02 us a block.
    """
    if extras or tokens.typecode != "I" or block_size < 1:
        return python_prefix_keys(tokens, block_size, seed=seed, parent=parent, extras=extras)
    return array("Q", _native.prefix_keys(tokens, block_size, seed, parent))


def _mask_bytes(holders: int) -> bytes:
    return holders.to_bytes((holders.bit_length() + 7) // 8, "little")
