"""One publisher's books: its events become residencies in the block index.

Residency and meaning are kept apart. A store adds a copy of each hash to a place (tier, group); what key the hash
stands for may be learned before, with, or after that. Until then the copies wait as pending, so that token-less
stores, orphans and events in any order end in the same state.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from ..events.model import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, Event
from .block_size import BlockSize
from .bounds import Bounds
from .chunks import Chunks
from .counters import LedgerCounters
from .foreign import ForeignChunks
from .groups import LEARNED_GROUP, Groups
from .hash_table import DictTable, HashTable
from .hashmap import HashMap
from .holders import FASTEST, Place, RankHolders, SharedHolders
from .index import BlockIndex
from .keys import BlockKey, PrefixKeys
from .match import RankLayout
from .pending import Claim, Pending
from .saved import SavedBooks
from .sources import SourceChange, Sources
from .tiers import TierId, TierSource, TierTable


class RankLedger:
    """Books of one publisher (an endpoint's data-parallel rank).

    Args:
        tiers: tier table shared by the fleet.
        seed: seed of the block keys.
        make_keys: makes them.
        index_for: block size -> the index for blocks of that size.
        shared: holders of tiers that belong to no server.
        on_source: told when a tier is known from elsewhere than before.
        on_layout: told when `layout` is no longer what it was.
    """

    def __init__(
        self,
        *,
        tiers: TierTable,
        seed: int,
        make_keys: PrefixKeys,
        index_for: Callable[[int], BlockIndex],
        shared: SharedHolders,
        on_source: Callable[[SourceChange], None],
        on_layout: Callable[[], None],
    ) -> None:
        self.counters = LedgerCounters()
        self.hashes = HashMap(seed=seed, make_keys=make_keys, table=self._new_table(seed))
        self.sources = Sources(tiers)
        self._size = BlockSize()
        self._tiers, self._index_for, self._shared = tiers, index_for, shared
        self._on_source, self._on_layout = on_source, on_layout
        self._bounds = Bounds(tiers)
        self._holders: RankHolders | None = None
        self._groups = Groups()
        self._version = 0
        self._layout: RankLayout | None = None
        self._chunks = Chunks(tiers, self.hashes, on_change=self._changed)
        self._foreign = ForeignChunks(seed=seed, make_keys=make_keys)
        self._pending, self._tells_extra_keys = Pending(), False

    # -- events ---------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take one event into the books. Cost: O(its blocks), amortised."""
        match event:
            case BlockStored():
                self._stored(event)
            case BlockRemoved():
                self._removed(event)
            case AllBlocksCleared():
                for tier, spec in enumerate(self._tiers.specs):
                    if tier == FASTEST or spec.cleared_on_reset:
                        self._clear(TierId(tier))
            case _:
                assert_never(event)

    def apply_batch(self, batch: Iterable[Event]) -> None:
        """Take events in order. Cost: O(blocks)."""
        for event in batch:
            self.apply(event)

    def reset(self) -> None:
        """The publisher began a new life: nothing of the old one holds."""
        self._size.certain = None
        self._open_holders()
        self.hashes.clear()
        self.sources.clear()
        for tier in self._bounds.followers():
            self.set_capacity(tier, None)
        self._groups.clear()
        self._chunks.clear()
        self._foreign.clear()
        self._pending.clear()
        self._tells_extra_keys = False

    # -- what is known without events ------------------------------------------------------------------------------

    def use_block_size(self, block_size: int) -> None:
        """Block size that the endpoint's metrics tell: for good where it learns from routing, else until events show one."""
        before, self._size.expected = self.block_size, block_size
        if self.learns_from_routing:
            self._size.settle()
        if self.block_size != before:
            self._open_holders()

    def without_events(self) -> None:
        """The endpoint has no event stream: learn from routing what it has."""
        self._note(self.sources.no_events())
        if self.learns_from_routing:
            self._size.settle()

    def offloads(self, *, now: float) -> None:
        """The engine's metrics show that it offloads; `now` in monotonic seconds."""
        change = self.sources.offloads(now=now)
        if change is not None:
            self._note(change)
            if self._holders is not None:
                self._infer(list(self._holders.keys(FASTEST)))

    @property
    def learns_from_routing(self) -> bool:
        """Whether the fastest tier is known from routing alone."""
        return self.sources.of(FASTEST) is TierSource.ROUTING

    def routed(self, keys: array[int]) -> None:
        """A prompt with these keys was sent here: the engine is about to use or to compute its blocks."""
        if self._holders is None:
            return
        if self.learns_from_routing:
            known = [BlockKey(key) for key in keys]
            self.counters.evicted += self._holders.keep(Place(FASTEST, LEARNED_GROUP), known)
            self._infer(known)
        self._holders.touch(keys)

    # -- what others ask ------------------------------------------------------------------------------------------

    @property
    def block_size(self) -> int | None:
        """Tokens a block, as events show or, before them, as the endpoint's metrics tell; None while not known."""
        return self._size.in_use

    def layout(self) -> RankLayout | None:
        """Where this rank's blocks are, None while no block size is known."""
        if self._layout is None and self._holders is not None:
            chunks = tuple(self._chunks.size(TierId(tier)) or 1 for tier in range(len(self._tiers.names)))
            self._layout = self._holders.layout(self._groups, chunks)
        return self._layout

    def set_capacity(self, tier: TierId, n_blocks: int | None) -> int:
        """Bound the tier; returns blocks evicted: where there were any, more may have to go, and later calls go on."""
        is_inferred = self.sources.found(tier) is TierSource.INFERRED
        n_evicted = 0
        for each in self._bounds.set(tier, n_blocks, is_inferred=is_inferred):
            if self._holders is not None:
                n_evicted += self._holders.set_capacity(each, self.capacity(each))
        self.counters.evicted += n_evicted
        return n_evicted

    def has(self, key: int) -> bool:
        """Whether the fastest tier has the block key. Cost: O(groups)."""
        return self._holders is not None and self._holders.has_in(FASTEST, key)

    def capacity(self, tier: TierId) -> int | None:
        """Blocks the tier is bounded to, None for no bound but the safety one."""
        return self._bounds.blocks.get(tier)

    def residencies(self, tier: TierId) -> int:
        """Blocks held in a tier, summed over groups."""
        return 0 if self._holders is None else self._holders.size(tier)

    def chunk_blocks(self, tier: TierId) -> int | None:
        """Blocks the engine moves together to and from `tier`, None while neither configured nor learned."""
        return self._chunks.size(tier)

    @property
    def n_pending(self) -> int:
        """Hashes with copies whose key is not known."""
        return len(self._pending)

    def dump(self, *, now: float) -> SavedBooks:
        """All that was learned, to be saved; `now` in monotonic seconds. Cost: O(hashes + residencies)."""
        return SavedBooks(
            block_size=self._size.certain,
            tells_extra_keys=self._tells_extra_keys,
            groups=dict(self._groups),
            sources=self.sources.dump(now=now),
            hashes=self.hashes.dump(),
            chunks=self._chunks.dump(),
            foreign=self._foreign.dump(),
            pending=self._pending.dump(),
            holders=() if self._size.certain is None else self._known_holders().dump(),
        )

    def load(self, saved: SavedBooks, *, now: float) -> None:
        """Take over what `dump` of another gave, within the bounds of these books, which must be empty."""
        for change in self.sources.load(saved.sources, now=now):
            self._note(change)
        self._tells_extra_keys = saved.tells_extra_keys
        self._groups.update(saved.groups)
        self.hashes.load(saved.hashes)
        self._chunks.load(saved.chunks)
        self._foreign.load(saved.foreign)
        self._pending.load(saved.pending)
        for engine_hash in self._pending:
            self.hashes.table.expect(engine_hash)
        if saved.block_size is not None:
            self._show_block_size(saved.block_size)
            self._known_holders().load(saved.holders)

    # -- stores ---------------------------------------------------------------------------------------------------

    def _stored(self, event: BlockStored) -> None:
        tier = self._tiers.of(event.medium)
        if not self._takes(event, tier):
            return
        place = Place(tier, event.group)
        if tier != FASTEST and ForeignChunks.speaks(event, self._size.certain):
            self._stored_foreign(event, place)
            return
        if event.hashes and self._may_learn(event, tier):
            for engine_hash in self.hashes.learn(event):
                self._adopt(engine_hash)
        tail = tier != FASTEST and not event.tokens
        if tier != FASTEST:
            self._learn_chunks(tier, event)
        run: list[BlockKey] = []
        for engine_hash in event.hashes:
            known = self.hashes.get(engine_hash)
            if known is None:
                self.counters.pending_dropped += self._pending.add(engine_hash, Claim(place, tail))
                self.hashes.table.expect(engine_hash)
            elif tail:
                run += self._tail_keys(place, engine_hash)
            else:
                run.append(known.key)
        if run:
            self._store(place, run)
        if self._holders is not None:
            self.hashes.sweep(self._holders, n_blocks=len(event.hashes))

    def _takes(self, event: BlockStored, tier: TierId) -> bool:
        """Whether the event's tier and group are followed."""
        if not self.sources.believes_events(tier):
            self.counters.ignored_tiers += 1
            return False
        if self._groups.told(event):
            self._changed()
        matters = self._groups.matters(event.group)
        self.counters.ignored_groups += not matters
        return matters

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
            if self._size.certain is None:
                self._show_block_size(event.block_size)
        elif self._size.certain is None or (event.extra_keys is None and self._tells_extra_keys):
            return False
        if event.block_size != self.block_size:
            self.counters.block_size_mismatches += 1
            return False
        return True

    def _stored_foreign(self, event: BlockStored, place: Place) -> None:
        size = self._size.certain
        assert size is not None, "a foreign chunk is recognised only beside a block size"  # noqa: S101
        keys = self._foreign.learn(event, size)
        if keys is None:
            self.counters.foreign_orphans += 1
            return
        self._chunks.learn(place.tier, event.block_size // size - 1)
        self._store(place, keys)

    def _adopt(self, engine_hash: EngineHash) -> None:
        """Store the copies that waited for the hash's key."""
        known = self.hashes.get(engine_hash)
        for claim, copies in self._pending.pop(engine_hash).items():
            for _ in range(copies if known else 0):
                assert known is not None  # noqa: S101 - just learned
                if claim.tail:
                    self._learn_chunk(claim.place.tier, known.depth)
                    self._store(claim.place, self._tail_keys(claim.place, engine_hash))
                else:
                    self._store(claim.place, [known.key])

    def _store(self, place: Place, keys: Sequence[BlockKey]) -> None:
        self._note(self.sources.usable_event(place.tier))
        self.counters.evicted += self._known_holders().store(place, keys)
        if place.tier == FASTEST:
            self._infer(keys)

    def _infer(self, keys: Sequence[BlockKey]) -> None:
        """Copy what was stored in the fastest tier to the tiers whose copies the engine does not announce."""
        for tier in map(TierId, range(1, len(self._tiers.names))):
            if self.sources.of(tier) is TierSource.INFERRED:
                self.counters.evicted += self._known_holders().keep(Place(tier, LEARNED_GROUP), keys)

    # -- offload chunks -------------------------------------------------------------------------------------------

    def _tail_keys(self, place: Place, engine_hash: EngineHash) -> list[BlockKey]:
        """Keys to store for a token-less event: it names only the last block of the chunk that moved."""
        self._chunks.add_tail(place, engine_hash)
        return self._chunks.keys(place.tier, engine_hash)

    def _learn_chunks(self, tier: TierId, event: BlockStored) -> None:
        # every hash of a token-less event ends a chunk; of one with tokens, the last does
        for engine_hash in event.hashes[-1:] if event.tokens else event.hashes:
            if (end := self.hashes.get(engine_hash)) is not None:
                self._learn_chunk(tier, end.depth)

    def _learn_chunk(self, tier: TierId, depth: int) -> None:
        """Correct the chunk size by one more chunk end, and with it what was stored under the old size."""
        if not self._chunks.corrects(tier, depth):
            return
        moved = [
            (place, self._chunks.keys(tier, tail), tail, n) for place, tail, n in self._chunks.tails(tier)
        ]
        self._chunks.learn(tier, depth)
        for place, keys, _, copies in moved:
            for _ in range(copies):
                self._take(place, keys)
        for place, _, tail, copies in moved:
            for _ in range(copies):
                self._store(place, self._chunks.keys(tier, tail))

    # -- removals -------------------------------------------------------------------------------------------------

    def _removed(self, event: BlockRemoved) -> None:
        place = Place(self._tiers.of(event.medium), event.group)
        if not self.sources.believes_events(place.tier):
            return
        run: list[BlockKey] = []
        for engine_hash in event.hashes:
            known = self.hashes.get(engine_hash)
            if known is not None and self._chunks.drop_tail(place, engine_hash):
                self._take(place, self._chunks.keys(place.tier, engine_hash))
            elif known is not None:
                run.append(known.key)
            elif (chunk := self._foreign.forget(engine_hash)) is not None:
                run += chunk
            elif not self._pending.remove(engine_hash, place):
                self.counters.unknown_removals += 1
        if run:
            self._take(place, run)

    def _take(self, place: Place, keys: Sequence[BlockKey]) -> None:
        self.counters.unknown_removals += self._known_holders().take(place, keys)

    def _clear(self, tier: TierId) -> None:
        if self._holders is not None:
            self._holders.clear(tier)
        self._chunks.clear(tier)
        self._pending.drop(tier)

    # -- sources and sizes ----------------------------------------------------------------------------------------

    def _note(self, change: SourceChange | None) -> None:
        """Act on a tier's new source: what was learned without events gives way to events."""
        if change is None:
            return
        if self._holders is not None:
            self._holders.close_place(Place(change.tier, LEARNED_GROUP))
        if self.capacity(change.tier) is None or change.tier in self._bounds.followers():
            # the fastest tier's bound comes with inference, and goes with it
            self.set_capacity(change.tier, None)
        self._on_source(change)

    def _show_block_size(self, block_size: int) -> None:
        self._size.certain = block_size
        self._open_holders()

    def _open_holders(self) -> None:
        """Begin to hold blocks of the size in use; nothing is held before that is certain."""
        if self._holders is not None:
            self._holders.close()
        self._holders = None
        if (block_size := self.block_size) is not None:
            self._holders = RankHolders(
                index=self._index_for(block_size),
                block_size=block_size,
                tiers=self._tiers,
                shared=self._shared,
                capacities=self._bounds.blocks,
                on_change=self._changed,
            )
        self._changed()

    def _changed(self) -> None:
        """Something changed that the layout, or how events are taken, rests on."""
        self._version += 1
        self._layout = None
        self._on_layout()

    def _new_table(self, seed: int) -> HashTable:  # noqa: ARG002 - tables that make keys themselves need it
        return DictTable()

    def _known_holders(self) -> RankHolders:
        assert self._holders is not None, "a key is known only after the block size"  # noqa: S101
        return self._holders
