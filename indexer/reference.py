"""The block index in plain Python: the specification of its semantics, and the fallback without the native core."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from sys import getsizeof

from .columns import HolderColumns
from .figures import BLOCK_SIZE, N_BESIDE_TIERS, N_BLOCKS, RANK, USABLE, Figures, HeldColumn, held_columns
from .index import MAX_SURPLUS_EVICTED, HolderId, IndexStatistics
from .match import PresenceRun, RankMatch, measure
from .match_columns import MatchedRank, Runs, SparseMatches


@dataclass(slots=True)
class _Holder:
    copies: OrderedDict[int, int] = field(default_factory=OrderedDict[int, int])
    """key -> copies, least recently used first."""
    repeated: OrderedDict[int, None] = field(default_factory=OrderedDict[int, None])
    """Keys with several copies, in the order in which they got the second one."""
    n_copies: int = 0
    capacity: int | None = None


class ReferenceIndex:
    """A `BlockIndex` with one dict from key to a bit mask of holders, and one ordered dict per holder for recency."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}
        self._holders: dict[int, _Holder] = {}
        self._free: list[int] = []

    def open(self) -> HolderId:
        """See `BlockIndex.open`."""
        holder = self._free.pop() if self._free else len(self._holders)
        self._holders[holder] = _Holder()
        return HolderId(holder)

    def close(self, holder: HolderId) -> None:
        """See `BlockIndex.close`."""
        self.clear(holder)
        del self._holders[holder]
        self._free.append(holder)

    def store(self, holder: HolderId, keys: array[int]) -> int:
        """See `BlockIndex.store`."""
        state, bit, masks = self._holders[holder], 1 << holder, self._masks
        copies = state.copies
        for key in reversed(keys):
            count = copies.get(key, 0)
            copies[key] = count + 1
            if count:
                copies.move_to_end(key)
                state.repeated[key] = None
            else:
                masks[key] = masks.get(key, 0) | bit
        state.n_copies += len(keys)
        return self._shrink(holder, n_stored=len(keys))

    def keep(self, holder: HolderId, keys: array[int]) -> int:
        """See `BlockIndex.keep`."""
        state, bit, masks = self._holders[holder], 1 << holder, self._masks
        for key in reversed(keys):
            if key in state.copies:
                state.copies.move_to_end(key)
            else:
                state.copies[key] = 1
                state.n_copies += 1
                masks[key] = masks.get(key, 0) | bit
        return self._shrink(holder, n_stored=len(keys))

    def learn(self, holder: HolderId, keys: array[int]) -> int:
        """See `BlockIndex.learn`."""
        return self.keep(holder, keys)

    def remove(self, holder: HolderId, keys: array[int]) -> int:
        """See `BlockIndex.remove`."""
        state = self._holders[holder]
        unknown = 0
        for key in keys:
            count = state.copies.get(key, 0)
            if count == 0:
                unknown += 1
            elif count == 1:
                self._drop(holder, key)
            else:
                self._take_copy(state, key, count)
        return unknown

    def clear(self, holder: HolderId) -> None:
        """See `BlockIndex.clear`."""
        state = self._holders[holder]
        for key in state.copies:
            self._unmask(holder, key)
        self._holders[holder] = _Holder(capacity=state.capacity)

    def touch(self, holder: HolderId, keys: array[int]) -> None:
        """See `BlockIndex.touch`."""
        copies = self._holders[holder].copies
        for key in reversed(keys):
            if key in copies:
                copies.move_to_end(key)

    def set_capacity(self, holder: HolderId, n_blocks: int | None) -> int:
        """See `BlockIndex.set_capacity`."""
        self._holders[holder].capacity = n_blocks
        return self._shrink(holder, n_stored=0)

    def has(self, holder: HolderId, key: int) -> bool:
        """See `BlockIndex.has`."""
        return key in self._holders[holder].copies

    def size(self, holder: HolderId) -> int:
        """See `BlockIndex.size`."""
        return len(self._holders[holder].copies)

    def runs(self, keys: array[int]) -> list[PresenceRun]:
        """See `BlockIndex.runs`."""
        runs: list[PresenceRun] = []
        current = end = 0
        for end, key in enumerate(keys, start=1):
            mask = self._masks.get(key, 0)
            if mask != current and current:
                runs.append(PresenceRun(end - 1, current))
            current = mask
            if not mask:
                return runs
        if current:
            runs.append(PresenceRun(end, current))
        return runs

    def matcher(self, ranks: Sequence[MatchedRank], *, block_size: int) -> ReferenceMatcher:
        """See `BlockIndex.matcher`."""
        for layout in (rank.layout for rank in ranks):
            if not layout.tiers or layout.slow_chunk < 1:
                raise ValueError(
                    f"a layout needs at least one tier, and chunks of at least 1 block: {layout}"
                )
        return ReferenceMatcher(self, tuple(ranks), block_size)

    def items(self, holder: HolderId) -> Iterator[tuple[int, int]]:
        """See `BlockIndex.items`."""
        return iter(self._holders[holder].copies.items())

    def sweep(self, n_keys: int) -> int:  # noqa: ARG002 (BlockIndex)
        """Return 0: `close` and `clear` leave nothing to sweep."""
        return 0

    def stats(self) -> IndexStatistics:
        """See `BlockIndex.stats`. The memory is that of the dicts, without the integers in them."""
        holders = self._holders.values()
        tables = (self._masks, *(h.copies for h in holders), *(h.repeated for h in holders))
        return IndexStatistics(
            keys=len(self._masks),
            residencies=sum(len(holder.copies) for holder in holders),
            unswept=0,
            size_bytes=sum(map(getsizeof, tables)),
        )

    def contents(self, holder: HolderId) -> HolderColumns:
        """See `BlockIndex.contents`."""
        state = self._holders[holder]
        repeated = [key for key in reversed(state.repeated) for _ in range(state.copies[key])]
        return HolderColumns(keys=array("Q", reversed(state.copies)), copies=array("Q", repeated))

    def _shrink(self, holder: HolderId, *, n_stored: int) -> int:
        """Evict until the holder is within its capacity, or nearer to it.

        A server cannot hold more copies than blocks, so copies beyond the capacity were announced but do not exist
        (vLLM's full cache reports do that). They are removed first, oldest first, and only then blocks by recency.
        """
        state = self._holders[holder]
        surplus = 0 if state.capacity is None else max(0, state.n_copies - state.capacity)
        evicted = 0
        for _ in range(min(surplus, n_stored + MAX_SURPLUS_EVICTED)):
            if state.repeated:
                key = next(iter(state.repeated))
                self._take_copy(state, key, state.copies[key])
            else:
                self._drop(holder, next(iter(state.copies)))
                evicted += 1
        return evicted

    def _take_copy(self, state: _Holder, key: int, count: int) -> None:
        state.copies[key] = count - 1
        state.n_copies -= 1
        if count == 2:
            del state.repeated[key]

    def _drop(self, holder: HolderId, key: int) -> None:
        state = self._holders[holder]
        del state.copies[key]
        state.n_copies -= 1
        self._unmask(holder, key)

    def _unmask(self, holder: HolderId, key: int) -> None:
        mask = self._masks[key] & ~(1 << holder)
        if mask:
            self._masks[key] = mask
        else:
            del self._masks[key]


@dataclass(frozen=True, slots=True)
class ReferenceMatcher:
    """A `RankMatcher` that measures every layout separately."""

    index: ReferenceIndex
    ranks: tuple[MatchedRank, ...]
    block_size: int

    def fill(self, keys: array[int], figures: Figures, *, n_tokens: int) -> SparseMatches | None:
        """See `RankMatcher.fill`."""
        presence = self.index.runs(keys)
        interleaved: list[tuple[int, int, Runs]] = []
        shared = array("i")
        lines = figures[len(figures) - N_BESIDE_TIERS :]
        for row, number, layout, is_first, shares_row in self.ranks:
            if (
                is_first and lines[RANK, row] == number
            ):  # else another rank was found with blocks of another size
                lines[N_BLOCKS, row] = len(keys)
            match = measure(presence, layout, n_tokens=n_tokens, block_size=self.block_size)
            if not any(match.tier_blocks):
                continue
            if shares_row:
                tokens = match.usable_blocks * self.block_size
                shared.extend((row, number, tokens))
                shown = (int(lines[USABLE, row]) * int(lines[BLOCK_SIZE, row]), -int(lines[RANK, row]))
                if (tokens, -number) < shown:
                    continue
            self._put(figures, row, number, match, len(keys))
            if match.interleaved:
                interleaved.append((row, number, match.interleaved))
        return SparseMatches(interleaved, shared.tobytes()) if interleaved or shared else None

    def held(self, figures: Figures) -> list[HeldColumn]:
        """See `RankMatcher.held`."""
        return held_columns(figures)

    def _put(self, figures: Figures, row: int, number: int, match: RankMatch, n_blocks: int) -> None:
        spare = (0,) * ((len(figures) - N_BESIDE_TIERS) // 2 - len(match.tier_blocks))
        figures[:, row] = (
            *match.tier_blocks, *spare, *match.union_blocks, *spare,
            match.usable_blocks, number, 0, n_blocks, self.block_size,
        )  # fmt: skip
