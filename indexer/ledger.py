"""One publisher's books: its events become residencies in the block index.

Residency and meaning are kept apart. A store adds a copy of each hash to a place (tier, group); what key the hash
stands for may be learned before, with, or after that. Until then the copies wait as pending, so that token-less
stores, orphans and events in any order end in the same state.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple, assert_never

from ..events.model import (
    FULL_ATTENTION_KINDS,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    Event,
)
from .hashmap import HashMap
from .index import BlockIndex, HolderId
from .keys import BlockKey
from .match import RankLayout, Window
from .tiers import TierId, TierTable

FASTEST = TierId(0)
MAX_PENDING_HASHES = 65_536
"""Hashes with copies but without a key that are remembered per publisher."""

_WINDOW_KINDS = frozenset({"sliding_window", "sliding_window_mla", "chunked_local_attention"})
_STATE_KINDS = frozenset({"mamba"})


class Place(NamedTuple):
    """Where a publisher's copies are."""

    tier: TierId
    group: int


class _Claim(NamedTuple):
    """Copies of a hash at a place; `tail`: the hash stands for its whole offload chunk."""

    place: Place
    tail: bool


@dataclass(slots=True)
class LedgerCounters:
    """What could not be done with events, since the publisher was registered."""

    unknown_removals: int = 0
    block_size_mismatches: int = 0
    ignored_groups: int = 0
    pending_dropped: int = 0
    evicted: int = 0


class RankLedger:
    """Books of one publisher (an endpoint's data-parallel rank).

    Args:
        tiers: tier table shared by the fleet.
        seed: seed of the block keys.
        index_for: block size -> the index for blocks of that size.
        capacities: tier -> blocks bound of this server, filled and changed by the owner through `set_capacity`.
    """

    def __init__(
        self,
        *,
        tiers: TierTable,
        seed: int,
        index_for: Callable[[int], BlockIndex],
        capacities: dict[TierId, int],
    ) -> None:
        self.counters = LedgerCounters()
        self.block_size: int | None = None
        self.hashes = HashMap(seed=seed)
        self._tiers = tiers
        self._index_for = index_for
        self._capacities = dict(capacities)
        self._index: BlockIndex | None = None
        self._holders: dict[Place, HolderId] = {}
        self._groups: dict[int, tuple[str | None, int | None]] = {}
        self._chunks: dict[TierId, int] = {}
        self._tails: dict[Place, dict[EngineHash, int]] = {}
        self._pending: OrderedDict[EngineHash, dict[_Claim, int]] = OrderedDict()
        self._tells_extra_keys = False
        self._layout: RankLayout | None = None

    # -- events ---------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take one event into the books. Cost: O(its blocks), amortised."""
        match event:
            case BlockStored():
                self._stored(event)
            case BlockRemoved():
                self._removed(event)
            case AllBlocksCleared():
                self._cleared(FASTEST)
            case _:
                assert_never(event)

    def reset(self) -> None:
        """The publisher began a new life: nothing of the old one holds."""
        for holder in self._holders.values():
            self._require_index().close(holder)
        self._holders.clear()
        self.hashes.clear()
        self._groups.clear()
        self._chunks.clear()
        self._tails.clear()
        self._pending.clear()
        self._index = self._layout = self.block_size = None
        self._tells_extra_keys = False

    # -- what others ask ------------------------------------------------------------------------------------------

    def layout(self) -> RankLayout | None:
        """Where this rank's blocks are, None while no block size is known."""
        if self._layout is None and self.block_size is not None:
            self._layout = self._make_layout(self.block_size)
        return self._layout

    def set_capacity(self, tier: TierId, n_blocks: int | None) -> None:
        """Bound the tier; takes effect at once."""
        if n_blocks is None:
            self._capacities.pop(tier, None)
        else:
            self._capacities[tier] = n_blocks
        for place, holder in self._holders.items():
            if place.tier == tier:
                self.counters.evicted += self._require_index().set_capacity(holder, n_blocks)

    def capacity(self, tier: TierId) -> int | None:
        """Blocks the tier is bounded to, None for no bound."""
        return self._capacities.get(tier)

    def touch(self, keys: array[int]) -> None:
        """Renew the recency of `keys` in every tier: the engine is about to use them."""
        for holder in self._holders.values():
            self._require_index().touch(holder, keys)

    def residencies(self, tier: TierId) -> int:
        """Blocks held in a tier, summed over groups."""
        return sum(self._require_index().size(h) for place, h in self._holders.items() if place.tier == tier)

    def chunk_blocks(self, tier: TierId) -> int | None:
        """Blocks the engine moves together to and from `tier`, None while neither configured nor learned."""
        return self._tiers.specs[tier].chunk_blocks or self._chunks.get(tier)

    @property
    def n_pending(self) -> int:
        """Hashes with copies whose key is not known."""
        return len(self._pending)

    # -- stores ---------------------------------------------------------------------------------------------------

    def _stored(self, event: BlockStored) -> None:
        tier = self._tiers.of(event.medium)
        place = Place(tier, event.group)
        if not self._take_group(event):
            return
        if event.hashes and self._may_learn(event, tier):
            for engine_hash in self.hashes.learn(event):
                self._adopt(engine_hash)
        tail = tier != FASTEST and not event.tokens
        run: list[BlockKey] = []
        for engine_hash in event.hashes:
            known = self.hashes.get(engine_hash)
            if known is None:
                self._wait(engine_hash, _Claim(place, tail))
            elif tail:
                self._store_tail(place, engine_hash, known.depth)
            else:
                run.append(known.key)
        if run:
            self._store(place, run)
            if tier != FASTEST and event.hashes and (last := self.hashes.get(event.hashes[-1])):
                self._learn_chunk(tier, last.depth)
        self.hashes.sweep(n_resident=self._n_resident(), is_held=self._is_held)

    def _take_group(self, event: BlockStored) -> bool:
        """Note what kind of cache the event's group is; False for kinds that never make a prefix reusable."""
        group = self._groups.get(event.group)
        if group is None or (event.kind is not None and group != (event.kind, event.window)):
            group = self._groups[event.group] = (event.kind, event.window)
            self._layout = None
        if group[0] is None or group[0] in FULL_ATTENTION_KINDS | _WINDOW_KINDS | _STATE_KINDS:
            return True
        self.counters.ignored_groups += 1
        return False

    def _may_learn(self, event: BlockStored, tier: TierId) -> bool:
        """Whether the event's tokens tell the meaning of its hashes.

        Sliding-window groups leave blocks out, so their tokens and hashes may not line up. Slower-tier events of
        vLLM's offloading connector carry tokens but not what else entered the hash (salt, multimodal items), so they
        are read only from engines that never tell such things, or when they do tell.
        """
        if not event.block_size or len(event.tokens) != len(event.hashes) * event.block_size:
            return False
        if tier == FASTEST:
            self._tells_extra_keys |= event.extra_keys is not None
            if self.block_size is None:
                self.block_size = event.block_size
                self._index = self._index_for(event.block_size)
        elif event.extra_keys is None and (self._tells_extra_keys or self.block_size is None):
            return False
        if event.block_size != self.block_size:
            self.counters.block_size_mismatches += 1
            return False
        return True

    def _wait(self, engine_hash: EngineHash, claim: _Claim) -> None:
        claims = self._pending.setdefault(engine_hash, {})
        claims[claim] = claims.get(claim, 0) + 1
        if len(self._pending) > MAX_PENDING_HASHES:
            self._pending.popitem(last=False)
            self.counters.pending_dropped += 1

    def _adopt(self, engine_hash: EngineHash) -> None:
        """Store the copies that waited for the hash's key."""
        known = self.hashes.get(engine_hash)
        for claim, copies in self._pending.pop(engine_hash, {}).items():
            for _ in range(copies if known else 0):
                assert known is not None  # noqa: S101 - just learned
                if claim.tail:
                    self._store_tail(claim.place, engine_hash, known.depth)
                else:
                    self._store(claim.place, [known.key])

    def _store(self, place: Place, keys: Sequence[BlockKey]) -> None:
        self.counters.evicted += self._require_index().store(self._holder(place), array("Q", keys))

    # -- offload chunks -------------------------------------------------------------------------------------------

    def _store_tail(self, place: Place, engine_hash: EngineHash, depth: int) -> None:
        """A token-less store names only the last block of the chunk it moved."""
        self._learn_chunk(place.tier, depth)
        if self.chunk_blocks(place.tier) != 1:
            tails = self._tails.setdefault(place, {})
            tails[engine_hash] = tails.get(engine_hash, 0) + 1
        self._store(place, self._chunk_keys(place.tier, engine_hash))

    def _chunk_keys(self, tier: TierId, engine_hash: EngineHash) -> list[BlockKey]:
        n_blocks = self.chunk_blocks(tier) or 1
        chain = self.hashes.chain(engine_hash)
        return [known.key for known, _ in zip(chain, range(n_blocks), strict=False)][::-1]

    def _learn_chunk(self, tier: TierId, depth: int) -> None:
        """Chunks are aligned, so the number of blocks before a chunk's end is a multiple of the chunk's size."""
        if self._tiers.specs[tier].chunk_blocks:
            return
        old = self._chunks.get(tier, 0)
        new = gcd(old, depth + 1)
        if new == old:
            return
        moved = [
            (place, tail, copies)
            for place, tails in self._tails.items()
            for tail, copies in tails.items()
            if place.tier == tier
        ]
        for place, tail, copies in moved:
            for _ in range(copies):
                self._take(place, self._chunk_keys(tier, tail))
        self._chunks[tier] = new
        self._layout = None
        for place, tail, copies in moved:
            for _ in range(copies):
                self._store(place, self._chunk_keys(tier, tail))

    # -- removals -------------------------------------------------------------------------------------------------

    def _removed(self, event: BlockRemoved) -> None:
        place = Place(self._tiers.of(event.medium), event.group)
        tails = self._tails.get(place, {})
        run: list[BlockKey] = []
        for engine_hash in event.hashes:
            known = self.hashes.get(engine_hash)
            if known is None:
                self._unwait(engine_hash, place)
            elif engine_hash in tails:
                self._take(place, self._chunk_keys(place.tier, engine_hash))
                tails[engine_hash] -= 1
                if not tails[engine_hash]:
                    del tails[engine_hash]
            else:
                run.append(known.key)
        if run:
            self._take(place, run)

    def _unwait(self, engine_hash: EngineHash, place: Place) -> None:
        claims = self._pending.get(engine_hash, {})
        claim = next((claim for claim in claims if claim.place == place), None)
        if claim is None:
            self.counters.unknown_removals += 1
            return
        claims[claim] -= 1
        if not claims[claim]:
            del claims[claim]
        if not claims:
            del self._pending[engine_hash]

    def _take(self, place: Place, keys: Sequence[BlockKey]) -> None:
        holder = self._holders.get(place)
        if holder is None:
            self.counters.unknown_removals += len(keys)
        else:
            self.counters.unknown_removals += self._require_index().remove(holder, array("Q", keys))

    def _cleared(self, tier: TierId) -> None:
        for place, holder in self._holders.items():
            if place.tier == tier:
                self._require_index().clear(holder)
                self._tails.pop(place, None)
        for engine_hash, claims in list(self._pending.items()):
            kept = {claim: copies for claim, copies in claims.items() if claim.place.tier != tier}
            if kept:
                self._pending[engine_hash] = kept
            else:
                del self._pending[engine_hash]

    # -- places ---------------------------------------------------------------------------------------------------

    def _require_index(self) -> BlockIndex:
        assert self._index is not None, "a key is known only after the block size"  # noqa: S101
        return self._index

    def _holder(self, place: Place) -> HolderId:
        holder = self._holders.get(place)
        if holder is None:
            holder = self._holders[place] = self._require_index().open()
            self._require_index().set_capacity(holder, self._capacities.get(place.tier))
            self._layout = None
        return holder

    def _n_resident(self) -> int:
        return sum(self._require_index().size(holder) for holder in self._holders.values())

    def _is_held(self, key: BlockKey) -> bool:
        return any(self._require_index().has(holder, key) for holder in self._holders.values())

    def _make_layout(self, block_size: int) -> RankLayout:
        n_tiers = len(self._tiers.names)
        tiers, windows = [0] * n_tiers, list[Window]()
        for place, holder in self._holders.items():
            kind, window = self._groups.get(place.group, (None, None))
            if kind is None or kind in FULL_ATTENTION_KINDS:
                if place.tier < n_tiers:
                    tiers[place.tier] |= 1 << holder
            elif place.tier == FASTEST:
                n_blocks = -(-(window - 1) // block_size) if window and kind not in _STATE_KINDS else 1
                windows.append(Window(1 << holder, n_blocks))
        chunks = tuple(self.chunk_blocks(TierId(tier)) or 1 for tier in range(n_tiers))
        return RankLayout(tuple(tiers), chunks, tuple(windows))
