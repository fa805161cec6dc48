"""Holders of one rank in the block index: one per place, opened at first use."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

from ..events.model import FULL_ATTENTION_KINDS
from .columns import Column, HolderColumns, Saved, check_columns
from .index import BlockIndex, HolderId, fill
from .keys import BlockKey
from .match import RankLayout, Window
from .tiers import TierId, TierTable

FASTEST = TierId(0)
NEXT = TierId(1)

MAX_TIER_BLOCKS = 4_000_000
"""Safety bound of an unbounded tier, so that no publisher grows the index endlessly; 64 M tokens at block size 16."""

WINDOW_KINDS = frozenset({"sliding_window", "sliding_window_mla", "chunked_local_attention"})
STATE_KINDS = frozenset({"mamba"})


class Place(NamedTuple):
    """The tier and group of a publisher's copies."""

    tier: TierId
    group: int


class Group(NamedTuple):
    """The cache kind of a group; None if the engine did not send it."""

    kind: str | None = None
    window: int | None = None

    @property
    def makes_prefix(self) -> bool:
        """Whether a prefix needs every block of this group."""
        return self.kind is None or self.kind in FULL_ATTENTION_KINDS

    @property
    def matters(self) -> bool:
        """Whether the group affects which blocks are reusable."""
        return self.makes_prefix or self.kind in WINDOW_KINDS or self.kind in STATE_KINDS


class SavedShared(Saved, frozen=True):
    """Keys (u64) of one shared tier at one block size, most recently used first."""

    tier: TierId
    block_size: Annotated[int, Meta(ge=1, lt=2**31)]
    keys: Column

    def __post_init__(self) -> None:
        """Raise ValueError for a wrong column."""
        check_columns(keys=(self.keys, "Q"))


class SharedHolders:
    """Holders of tiers that belong to no server, one per tier and block size of the fleet.

    Copies are not counted: several servers announce the same block, and one removal removes it.
    """

    def __init__(self, tiers: TierTable, index_for: Callable[[int], BlockIndex]) -> None:
        self._tiers, self._index_for = tiers, index_for
        self._holders: dict[tuple[TierId, int], HolderId] = {}

    def get(self, tier: TierId, block_size: int) -> HolderId | None:
        """Return the holder of a shared tier, None for a tier of single servers."""
        spec = self._tiers.specs[tier]
        if not spec.shared:
            return None
        holder = self._holders.get((tier, block_size))
        if holder is None:
            index = self._index_for(block_size)
            holder = self._holders[tier, block_size] = index.open()
            index.set_capacity(holder, spec.capacity or MAX_TIER_BLOCKS)
        return holder

    @property
    def block_sizes(self) -> set[int]:
        """Block sizes of the holders."""
        return {block_size for _, block_size in self._holders}

    def close_empty(self, *, but: Container[int | None]) -> None:
        """Close the empty holders of all block sizes but these."""
        for tier, block_size in list(self._holders):
            index, holder = self._index_for(block_size), self._holders[tier, block_size]
            if block_size not in but and not index.size(holder):
                index.close(self._holders.pop((tier, block_size)))

    def residencies(self, tier: TierId) -> int:
        """Return the number of blocks in a shared tier, over all block sizes."""
        return sum(self._index_for(size).size(h) for (t, size), h in self._holders.items() if t == tier)

    def set_capacity(self, tier: TierId, n_blocks: int | None) -> int:
        """Bound a shared tier; return the blocks evicted."""
        return sum(
            self._index_for(size).set_capacity(holder, n_blocks or MAX_TIER_BLOCKS)
            for (shared, size), holder in self._holders.items()
            if shared == tier
        )

    def dump(self) -> tuple[SavedShared, ...]:
        """Return the contents of all shared tiers, to be saved. Cost: O(residencies)."""
        return tuple(
            SavedShared(tier=tier, block_size=size, keys=self._index_for(size).contents(holder).keys)
            for (tier, size), holder in self._holders.items()
        )

    def load(self, saved: Iterable[SavedShared]) -> None:
        """Load a dump."""
        for each in saved:
            self._tiers.told_shared(each.tier)
            holder = self.get(each.tier, each.block_size)
            if holder is not None:
                self._index_for(each.block_size).keep(holder, each.keys)

    def close(self) -> None:
        """Close all holders: no endpoint uses these tiers any more."""
        for (_, block_size), holder in self._holders.items():
            self._index_for(block_size).close(holder)
        self._holders.clear()


class RankHolders:
    """One rank's holders at one block size.

    Args:
        index: the index for blocks of that size.
        block_size: tokens per block.
        tiers: tier table.
        shared: holders of tiers that belong to no server.
        capacities: tier -> bound of this server in blocks.
        on_change: called when `layout` changes.
    """

    def __init__(
        self,
        *,
        index: BlockIndex,
        block_size: int,
        tiers: TierTable,
        shared: SharedHolders,
        capacities: Mapping[TierId, int],
        on_change: Callable[[], None],
    ) -> None:
        self._index, self._block_size, self._tiers, self._shared = index, block_size, tiers, shared
        self._capacities = capacities
        self._on_change = on_change
        self._own: dict[Place, HolderId] = {}
        self._all: tuple[HolderId, ...] | None = None
        """Cache of own and shared holders, rebuilt after a change of the own ones; shared ones stay."""
        self._mask: int | None = None
        """Cache of these as bits."""
        self._by_tier: defaultdict[TierId, list[HolderId]] = defaultdict(list)
        """The own holders of each tier."""

    @property
    def index(self) -> BlockIndex:
        """Index of the holders."""
        return self._index

    def at(self, place: Place) -> HolderId | None:
        """Return the holder of a place, for a shared tier the fleet's; None if nothing was stored there."""
        shared = self._shared.get(place.tier, self._block_size)
        return self._own.get(place) if shared is None else shared

    def own(self) -> list[HolderId]:
        """Return the holders of this rank."""
        return list(self._own.values())

    def shared_in_use(self) -> list[HolderId]:
        """Return the holders of the tiers that belong to no server."""
        tiers = range(len(self._tiers.specs))
        holders = (self._shared.get(TierId(tier), self._block_size) for tier in tiers)
        return [holder for holder in holders if holder is not None]

    def store(self, place: Place, keys: Sequence[BlockKey]) -> int:
        """Add one copy of each key; return the blocks evicted."""
        shared = self._shared.get(place.tier, self._block_size)
        if shared is not None:
            return self._index.keep(shared, array("Q", keys))
        return self._index.store(self._holder(place), array("Q", keys))

    def keep(self, place: Place, keys: Sequence[BlockKey]) -> int:
        """Hold the keys once and renew their recency; return the blocks evicted."""
        shared = self._shared.get(place.tier, self._block_size)
        return self._index.keep(self._holder(place) if shared is None else shared, array("Q", keys))

    def learn(self, place: Place, keys: array[int]) -> int:
        """Hold a prompt's blocks from its first on once, and renew their recency; return the blocks evicted."""
        return self._index.learn(self._holder(place), keys)

    def remove(self, place: Place, keys: Sequence[BlockKey]) -> int:
        """Remove one copy of each key; return the number of keys that were not held."""
        holder = self.at(place)
        return len(keys) if holder is None else self._index.remove(holder, array("Q", keys))

    def clear(self, tier: TierId, *, everyones: bool = False) -> None:
        """Remove all blocks of this rank from a tier; a shared one has none of its own, only `everyones`."""
        for holder in self._of(tier):
            self._index.clear(holder)
        if everyones and (shared := self._shared.get(tier, self._block_size)) is not None:
            self._index.clear(shared)

    def keep_copies(self, tier: TierId) -> None:
        """Remove all blocks of this rank from a tier but those that the fastest tier has. Cost: O(its blocks)."""
        for place, holder in self._own.items():
            if place.tier == tier:
                fast = self._own.get(Place(FASTEST, place.group))
                keys = () if fast is None else (key for key, _ in self._index.items(fast))
                kept = array("Q", [key for key in keys if self._index.has(holder, key)])
                self._index.clear(holder)
                self._index.store(holder, kept)

    def close(self) -> None:
        """Close all holders of this rank."""
        for holder in self._own.values():
            self._index.close(holder)
        self._own.clear()
        self._by_tier.clear()
        self._changed()

    def close_place(self, place: Place) -> None:
        """Close the holder of one place."""
        holder = self._own.pop(place, None)
        if holder is not None:
            self._index.close(holder)
            self._by_tier[place.tier].remove(holder)
            self._changed()

    def close_tier(self, tier: TierId) -> None:
        """Close the holders of all places of a tier."""
        for place in [each for each in self._own if each.tier == tier]:
            self.close_place(place)
        self._changed()

    def dump(self) -> tuple[tuple[Place, HolderColumns], ...]:
        """Return the contents of this rank's own holders, to be saved. Cost: O(residencies)."""
        return tuple((place, self._index.contents(holder)) for place, holder in self._own.items())

    def load(self, saved: Iterable[tuple[Place, HolderColumns]]) -> None:
        """Load a dump, within this rank's own bounds."""
        for place, contents in saved:
            holder = self._holder(place)
            self._index.set_capacity(holder, None)  # evict only once all is loaded
            fill(self._index, holder, contents)
            self._index.set_capacity(holder, self._capacities.get(place.tier, MAX_TIER_BLOCKS))

    def touch(self, keys: array[int], *, but: Place | None = None) -> None:
        """Renew the recency of `keys` in all tiers of this rank, shared ones included, and in all places but one."""
        skipped = None if but is None else self._own.get(but)
        for holder in self._holders():
            if holder != skipped:
                self._index.touch(holder, keys)

    def set_capacity(self, tier: TierId, n_blocks: int | None) -> int:
        """Bound a tier; return the blocks evicted."""
        return sum(self._index.set_capacity(h, n_blocks or MAX_TIER_BLOCKS) for h in self._of(tier))

    def has(self, key: BlockKey) -> bool:
        """Return whether any tier of this rank has the key."""
        if self._mask is None:
            self._mask = sum(1 << holder for holder in self._holders())
        runs = self._index.runs(array("Q", [key]))
        return bool(runs) and runs[0].holders & self._mask != 0

    def has_all(self, place: Place, keys: Iterable[BlockKey | None]) -> bool:
        """Return whether this rank has every key, none of them None, at a place. Cost: O(keys), less if it lacks an early one."""
        holder = self._own.get(place)
        return holder is not None and all(key is not None and self._index.has(holder, key) for key in keys)

    def has_in(self, tier: TierId, key: int) -> bool:
        """Return whether any group of this rank has the key in the tier."""
        return any(self._index.has(holder, key) for holder in self._of(tier))

    def leading_in(self, tier: TierId, keys: array[int]) -> int:
        """Count the leading keys that any group of this rank has in the tier. Cost: O(keys)."""
        mask, n_held = sum(1 << holder for holder in self._of(tier)), 0
        for run in self._index.runs(keys):
            if not run.holders & mask:
                break
            n_held = run.end
        return n_held

    def size(self, tier: TierId) -> int:
        """Return this rank's blocks in a tier, summed over groups; 0 for a shared tier."""
        holders = self._by_tier.get(tier)
        return sum(map(self._index.size, holders)) if holders else 0

    def sizes(self) -> list[int]:
        """Return `size` of each configured tier, fastest first."""
        size, held = self._index.size, self._by_tier.get
        return [sum(map(size, holders)) if (holders := held(tier)) else 0 for tier in self._tiers.configured]

    def of_tiers(self) -> list[Sequence[HolderId]]:
        """Return the holders behind `sizes`."""
        return [tuple(self._by_tier.get(tier, ())) for tier in self._tiers.configured]

    def total(self) -> int:
        """Return this rank's blocks in all tiers."""
        return sum(map(self._index.size, self._own.values()))

    def keys(self, tier: TierId) -> Iterator[BlockKey]:
        """Yield this rank's keys in a tier, least recently used first."""
        for holder in self._of(tier):
            for key, _ in self._index.items(holder):
                yield BlockKey(key)

    def recent_keys(self, place: Place) -> array[int]:
        """Return the keys at a place, most recently used first. Cost: O(its blocks)."""
        holder = self._own.get(place)
        return array("Q") if holder is None else array("Q", self._index.contents(holder).keys)

    def layout(self, groups: Mapping[int, Group], chunks: tuple[int, ...]) -> RankLayout:
        """Return the layout of the rank's blocks, for matching."""
        n_tiers = len(chunks)
        masks, windows = [0] * n_tiers, list[Window]()
        for place, holder in self._own.items():
            group = groups.get(place.group, Group())
            if group.makes_prefix and place.tier < n_tiers:
                masks[place.tier] |= 1 << holder
            elif not group.makes_prefix and place.tier == FASTEST:
                windows.append(self._window(group, 1 << holder, self._own.get(Place(NEXT, place.group))))
        for tier in range(n_tiers):
            shared = self._shared.get(TierId(tier), self._block_size)
            if shared is not None:
                masks[tier] = 1 << shared
        # a tier that never held anything does not limit loads to whole chunks
        chunks = tuple(chunk if mask else 1 for chunk, mask in zip(chunks, masks, strict=True))
        return RankLayout(tuple(masks), chunks, tuple(windows))

    def _window(self, group: Group, fast: int, slow: HolderId | None) -> Window:
        """Return the blocks that the group needs before a boundary: its window, or the one block with the state."""
        slow_holders = 0 if slow is None else 1 << slow
        if not group.window or group.kind in STATE_KINDS:
            return Window(fast, 1, slow_holders, 1)
        n_blocks = -(-(group.window - 1) // self._block_size)
        return Window(fast, n_blocks, slow_holders, -(-group.window // self._block_size))

    def _changed(self) -> None:
        self._all = self._mask = None
        self._on_change()

    def _holders(self) -> tuple[HolderId, ...]:
        if self._all is None:
            self._all = (*self._own.values(), *self.shared_in_use())
        return self._all

    def _of(self, tier: TierId) -> Sequence[HolderId]:
        return self._by_tier.get(tier, ())

    def _holder(self, place: Place) -> HolderId:
        holder = self._own.get(place)
        if holder is None:
            holder = self._own[place] = self._index.open()
            self._by_tier[place.tier].append(holder)
            self._changed()
            self._index.set_capacity(holder, self._capacities.get(place.tier, MAX_TIER_BLOCKS))
        return holder
