"""The block index in C++: results of `ReferenceIndex`, an order of magnitude faster, usable from any thread."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import _native
from .columns import HolderColumns
from .figures import Figures, HeldColumn
from .index import HolderId, IndexStatistics
from .keys import BlockKey, Extras
from .keys import prefix_keys as python_prefix_keys
from .match import PresenceRun
from .match_columns import MatchedRank, SparseMatches

_ITEMS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class NativeMatcher:
    """A `RankMatcher` that keeps the layouts in the form of the core."""

    index: _native.Index
    layouts: _native.Layouts
    block_size: int

    def fill(self, keys: array[int], figures: Figures, *, n_tokens: int) -> SparseMatches | None:
        """See `RankMatcher.fill`. One pass, without the GIL."""
        found = self.index.match_into(keys, self.layouts, n_tokens, self.block_size, figures)
        return None if found is None else SparseMatches(*found)

    def held(self, figures: Figures) -> list[HeldColumn]:
        """See `RankMatcher.held`."""
        return _native.held_columns(figures)


class NativeIndex(_native.Index):
    """A `BlockIndex` in C++.

    `close` and `clear` of a holder with many keys take effect at once; later operations remove its keys from the tables,
    a bounded number each, or `sweep` does. The number of the holder can be reused immediately.
    """

    __slots__ = ()

    def runs(self, keys: array[int]) -> list[PresenceRun]:
        """See `BlockIndex.runs`."""
        return [PresenceRun(end, holders) for end, holders in self.run_rows(keys)]

    def matcher(self, ranks: Sequence[MatchedRank], *, block_size: int) -> NativeMatcher:
        """See `BlockIndex.matcher`."""
        places = array("Q")
        for row, number, _, is_first, shares_row in ranks:
            places.extend((row, number, is_first, shares_row))
        layouts = _native.Layouts([rank.layout.packed for rank in ranks], places)
        return NativeMatcher(self, layouts, block_size)

    def items(self, holder: HolderId) -> Iterator[tuple[int, int]]:
        """See `BlockIndex.items`. Raises RuntimeError if the holder changes before the end."""
        return self._pages(holder, self.page(holder, _ITEMS_AT_ONCE, None))

    def contents(self, holder: HolderId) -> HolderColumns:
        """See `BlockIndex.contents`."""
        keys, copies = self.contents_rows(holder)
        return HolderColumns(keys=array("Q", keys), copies=array("Q", copies))

    def stats(self) -> IndexStatistics:
        """See `BlockIndex.stats`."""
        keys, residencies, _, unswept, size_bytes = self.statistics()
        return IndexStatistics(keys, residencies, unswept, size_bytes)

    def _pages(
        self, holder: HolderId, page: tuple[bytes, bytes, tuple[int, int] | None]
    ) -> Iterator[tuple[int, int]]:
        keys, copies, cursor = page
        while cursor is not None:
            yield from zip(array("Q", keys), array("Q", copies), strict=True)
            keys, copies, cursor = self.page(holder, _ITEMS_AT_ONCE, cursor)


def prefix_keys(
    tokens: array[int],
    block_size: int,
    *,
    seed: int,
    parent: BlockKey | None = None,
    extras: Extras | None = None,
) -> array[int]:
    """See `keys.prefix_keys`: same arguments, keys and errors. It also handles prompts with multimodal items.

    Cost: O(n) in tokens, about 0.02 us per block.
    """
    if extras or tokens.typecode != "I" or block_size < 1:
        return python_prefix_keys(tokens, block_size, seed=seed, parent=parent, extras=extras)
    return array("Q", _native.prefix_keys(tokens, block_size, seed, parent))
