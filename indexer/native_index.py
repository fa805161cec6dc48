"""The block index in C++: results of `ReferenceIndex`, an order of magnitude faster, usable from any thread."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

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
    lookahead: int = 0,
) -> array[int]:
    """See `keys.prefix_keys`: same arguments, keys and errors. Blocks that multimodal items touch are keyed in Python.

    Cost: O(n) in tokens, about 0.02 us per block, and 2 us per block that an item touches.
    """
    if tokens.typecode != "I" or block_size < 1:
        return python_prefix_keys(tokens, block_size, seed=seed)
    keys, n_blocks = array("Q"), max(0, len(tokens) - lookahead) // block_size
    for first, end, touching in _runs(extras or {}, n_blocks):
        part = (
            tokens if end - first == n_blocks else tokens[first * block_size : end * block_size + lookahead]
        )
        if touching:
            keys += python_prefix_keys(
                part, block_size, seed=seed, parent=parent, extras=touching, lookahead=lookahead
            )
        else:
            keys.frombytes(_native.prefix_keys(part, block_size, seed, parent, lookahead))
        parent = BlockKey(keys[-1])
    return keys


def _runs(extras: Extras, n_blocks: int) -> Iterator[tuple[int, int, Extras]]:
    """Divide the blocks by whether items touch them: begin and end of each run, and its items by block counted from its begin."""
    end = 0
    touched = sorted(block for block in extras if block < n_blocks)
    for _, members in groupby(enumerate(touched), key=lambda each: each[1] - each[0]):
        blocks = [block for _, block in members]
        if blocks[0] > end:
            yield end, blocks[0], {}
        begin, end = blocks[0], blocks[-1] + 1
        yield begin, end, {block - begin: extras[block] for block in blocks}
    if end < n_blocks:
        yield end, n_blocks, {}
