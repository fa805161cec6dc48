"""The state of one publisher: what its events have taught, what is known without them, and queries."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import cast

from ..events.lazy_batch import LazyBatch
from ..events.model import STORE_MEDIA_PREFIX, AllBlocksCleared, BlockStored, EngineHash, Event, MediumName
from .chunks import Chunks
from .counters import LedgerCounters
from .foreign import ForeignChunks
from .groups import LEARNED_GROUP, Groups
from .hash_table import DictTable, HashTable
from .hashmap import HashMap
from .holders import FASTEST, Place, SharedHolders
from .index import BlockIndex
from .keys import BlockKey, PrefixKeys
from .match import RankLayout
from .pending import Pending
from .pooled import FindHash, PooledHashes
from .rank_blocks import RankBlocks
from .recomputed import Recomputed, evidence_of
from .sessions import Sessions
from .sources import SourceChange, Sources
from .tiers import TierId, TierSource, TierTable

LEARNED = Place(FASTEST, LEARNED_GROUP)
"""Place of blocks of the fastest tier that are known from routing alone."""


class RankState:
    """State of one publisher (an endpoint's data-parallel rank).

    Args:
        tiers: tier table shared by the fleet.
        seed: seed of the block keys.
        make_keys: computes block keys.
        index_for: block size -> the index for blocks of that size.
        shared: holders of tiers that belong to no server.
        on_source: called when the source of a tier changes.
        on_layout: called when `layout` changes.
        find: finds blocks that other publishers of the space have told; None: none is found.

    Attributes:
        lookahead: tokens after a block that belong to its key, from the events.
        tenant: tenant of the publisher; events of other tenants are ignored. None takes all.
        own_salt: salt of the publisher itself; blocks that an envelope names with it are found without salt.
        is_store: whether the publisher is a store: what it says of a shared tier holds for the fleet.
        sessions: sessions whose requests stored its blocks.
        n_clears: resets of the fastest tier that events have told.
        may_share: whether its events can make a tier shared; those of other models and tenants cannot.
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
        find: FindHash | None = None,
    ) -> None:
        self.counters = LedgerCounters()
        self.tenant: str | None = None
        self.own_salt: str | None = None
        self.is_store = False
        self.n_clears: int = 0
        self.may_share = True
        self.hashes = HashMap(seed=seed, make_keys=make_keys, table=self._new_table(seed))
        self.sources = Sources(tiers)
        self._tiers, self._on_source, self._on_layout = tiers, on_source, on_layout
        self._blocks = RankBlocks(
            tiers=tiers,
            index_for=index_for,
            shared=shared,
            counters=self.counters,
            on_change=self._changed,
        )
        self._groups = Groups()
        self._version = 0
        self._layout: RankLayout | None = None
        self._chunks = Chunks(tiers, self.hashes, on_change=self._changed)
        self._foreign = ForeignChunks(seed=seed, make_keys=make_keys)
        self._pending = Pending()
        self._pooled = PooledHashes(find or (lambda _: None))
        self.sessions = Sessions()
        self._has_standard_keys = seed == 0
        self._tells_extra_keys: bool = False
        self._one_tree: bool = False
        self._reports: bool = False
        """Whether requests of this engine have asked for reports of what is held."""
        self._batch_begun: LazyBatch | tuple[Event, ...] | None = None
        """The batch whose first event is being applied, None at its other events."""
        self._dropped, self._whole_prompts = 0, cast("bool | None", None)
        self._drop_is_guess = True
        self._recomputed = Recomputed()
        self.lookahead = 0
        self._assumable: int | None = None

    def reset(self) -> None:
        """Forget everything: the publisher started a new life."""
        self._blocks.size.certain = None
        self._blocks.reopen()
        self.hashes.clear()
        self.sources.clear()
        for tier in self._blocks.bounds.followers():
            self.set_capacity(tier, None)
        self._groups.clear()
        self._chunks.clear()
        self._foreign.clear()
        self._pending.clear()
        self._pooled.clear()
        self.sessions.clear()
        self._tells_extra_keys = self._one_tree = self._reports = False
        self.lookahead = 0
        self._recomputed = Recomputed()

    # -- knowledge without events ----------------------------------------------------------------------------------

    def use_block_size(self, block_size: int) -> None:
        """Set the block size from the endpoint's metrics: for good if it learns from routing, else until events show one."""
        before, self._blocks.size.expected = self.block_size, block_size
        if self.learns_from_routing:
            self._blocks.size.settle()
        if self.block_size != before:
            self._forget_keys()
            self._blocks.reopen()

    def without_events(self) -> None:
        """Learn from routing, since the endpoint has no event stream."""
        self._note(self.sources.no_events())
        if self.learns_from_routing:
            self._blocks.size.settle()
        self._assume()

    def assume_block_size(self, block_size: int | None) -> None:
        """Set the block size for the time in which the rank learns from routing and no other size is known; None for none."""
        self._assumable = block_size
        self._assume()

    def _assume(self) -> None:
        before = self.block_size
        self._blocks.size.assumed = self._assumable if self.learns_from_routing else None
        if self.block_size != before:
            self._blocks.reopen()

    def offloads(self, *, now: float) -> None:
        """Record that the engine's metrics show offloading; `now` in monotonic seconds."""
        change = self.sources.offloads(now=now)
        if change is not None:
            self._note(change)
            if self._blocks.holders is not None:
                self._infer(list(self._blocks.holders.keys(FASTEST)))

    @property
    def learns_from_routing(self) -> bool:
        """Whether the fastest tier is known from routing alone."""
        return self.sources.of(FASTEST) is TierSource.ROUTING

    @property
    def follows_routing(self) -> bool:
        """Whether the blocks of some tier are known from what is routed here, or leave it in an order that routing renews."""
        inferring = (TierSource.ROUTING, TierSource.INFERRED)
        return any(self.sources.of(tier) in inferring for tier in self._tiers.configured)

    def learned_keys(self) -> array[int]:
        """Return the blocks of the fastest tier if they are known from routing alone, most recently used first, else none."""
        if self._blocks.holders is None or not self.learns_from_routing:
            return array("Q")
        return self._blocks.holders.recent_keys(LEARNED)

    def learn_more(self, keys: array[int]) -> None:
        """Learn blocks that others have learned; those that are known keep their place in the order of use.

        Args:
            keys: part of `learned_keys` of another replica.
        """
        known = set(self.learned_keys())
        new = [BlockKey(key) for key in keys if key not in known]
        if new and self._blocks.holders is not None and self.learns_from_routing:
            self._blocks.keep(LEARNED, new)
            self._infer(new)

    def routed(self, keys: array[int]) -> None:
        """Renew, or learn from routing, the blocks of a prompt that was sent here, from its first block on."""
        if self._blocks.holders is None:
            return
        if self.learns_from_routing:
            self._blocks.learn(LEARNED, keys)
            self._infer(cast("Sequence[BlockKey]", keys))  # a list of them would cost as much as the rest
            self._blocks.holders.touch(keys, but=LEARNED)
        else:
            self._blocks.holders.touch(keys)

    # -- queries --------------------------------------------------------------------------------------------------

    @property
    def block_size(self) -> int | None:
        """Tokens per block, from events or, before the first, from the endpoint's metrics; None while unknown."""
        return self._blocks.size.in_use

    def _salted(self, event: BlockStored) -> BlockStored:
        """Return the event with the salt of its envelope as that of the prompt, unless it is the publisher's own."""
        if event.additional_salt in (None, self.own_salt):
            return event
        return replace(event, salt=event.additional_salt)

    def _cleared_tiers(self, event: AllBlocksCleared) -> Iterable[TierId]:
        """Return the tiers that a reset empties."""
        if event.medium is not None:
            names = (event.medium, MediumName(STORE_MEDIA_PREFIX + event.medium))
            return {self._tiers.of(name) for name in (names if self.is_store else names[:1])}
        slower = event.everywhere or self._one_tree
        specs = enumerate(self._tiers.specs)
        return [TierId(at) for at, spec in specs if at == FASTEST or slower or spec.cleared_on_reset]

    @property
    def told_block_size(self) -> int | None:
        """Tokens per block by the endpoint's metrics or configuration, None if they have none."""
        return self._blocks.size.expected

    def layout(self) -> RankLayout | None:
        """Return the layout of this rank's blocks, None while no block size is known."""
        if self._layout is None and self._blocks.holders is not None:
            chunks = tuple(self._chunks.size(TierId(tier)) or 1 for tier in range(len(self._tiers.names)))
            layout = self._blocks.holders.layout(self._groups, chunks)
            is_tree = self._one_tree if self._whole_prompts is None else not self._whole_prompts
            self._layout = replace(layout, dropped=self._blocks_dropped(), one_tree=is_tree)
        return self._layout

    def tiers_by_events(self) -> dict[str, TierId]:
        """Return the slower tiers of this server alone whose blocks are known from its events, by name."""
        tiers = zip(
            self._tiers.names, map(TierId, range(len(self._tiers.names))), self._tiers.specs, strict=False
        )
        return {
            name: tier
            for name, tier, spec in tiers
            if tier != FASTEST and not spec.shared and self.sources.of(tier) is TierSource.EVENTS
        }

    def _blocks_dropped(self) -> int:
        if self.lookahead:  # such hashes are for drafters
            return 0
        if not self._drop_is_guess:
            return self._dropped
        return int(self._recomputed.shown or (self._dropped > 0 and not self._recomputed.denied))

    def _look_at(self, event: BlockStored, place: Place) -> None:
        if place.tier == FASTEST and len(self._groups) == 1 and not self.lookahead:
            self._note_recomputed(evidence_of(event, place, self.hashes.get, self._blocks.holders))

    def _note_recomputed(self, evidence: Iterable[bool | int]) -> None:
        if self._recomputed.learn(evidence):
            self._changed()

    def set_reuse(self, dropped: int, *, is_guess: bool = False, whole_prompts: bool | None = None) -> None:
        """Set the blocks at the end of a match that the engine computes again, as drafters need it.

        Args:
            dropped: their number.
            is_guess: whether the rank's events may show otherwise.
            whole_prompts: whether slower tiers may supply a prompt's last block; None: as its events show.
        """
        if (dropped, is_guess, whole_prompts) != (self._dropped, self._drop_is_guess, self._whole_prompts):
            self._dropped, self._drop_is_guess, self._whole_prompts = dropped, is_guess, whole_prompts
            self._changed()

    def set_capacity(self, tier: TierId, n_blocks: int | None) -> int:
        """Bound the tier; return the blocks evicted. If there were any, later calls may evict more."""
        is_inferred = self.sources.found(tier) is TierSource.INFERRED
        return self._blocks.set_capacity(tier, n_blocks, is_inferred=is_inferred)

    def tier_is_shared(self, tier: TierId) -> None:
        """Give up the places of a tier that belongs to no server from now on; they hold nothing."""
        if self._blocks.holders is not None:
            self._blocks.holders.close_tier(tier)
        self._changed()

    def has(self, key: int) -> bool:
        """Return whether the fastest tier has the block key. Cost: O(groups)."""
        return self._blocks.holders is not None and self._blocks.holders.has_in(FASTEST, key)

    def leading(self, keys: array[int]) -> int:
        """Count the leading keys that the fastest tier has. Cost: O(keys)."""
        return 0 if self._blocks.holders is None else self._blocks.holders.leading_in(FASTEST, keys)

    def capacity(self, tier: TierId) -> int | None:
        """Return the bound of the tier in blocks, None if only the safety bound applies."""
        return self._blocks.bounds.blocks.get(tier)

    @property
    def n_gpu_tokens(self) -> int:
        """Tokens of the blocks held in the fastest tier, summed over groups; 0 while the block size is unknown."""
        return self.residencies(TierId(0)) * (self.block_size or 0)

    def residencies(self, tier: TierId) -> int:
        """Return the number of blocks held in a tier, summed over groups."""
        return 0 if self._blocks.holders is None else self._blocks.holders.size(tier)

    @property
    def copies_blocks(self) -> bool:
        """Whether a slower tier of this server alone holds anything; engines copy there what they compute."""
        slower = range(1, len(self._tiers.specs))
        return any(not self._tiers.specs[tier].shared and self.residencies(TierId(tier)) for tier in slower)

    def sizes(self) -> Sequence[int]:
        """Return `residencies` of each configured tier, fastest first."""
        holders = self._blocks.holders
        return [0] * len(self._tiers.configured) if holders is None else holders.sizes()

    def chunk_blocks(self, tier: TierId) -> int | None:
        """Return the blocks that the engine moves together to and from `tier`, None if neither configured nor learned."""
        return self._chunks.size(tier)

    @property
    def n_pending(self) -> int:
        """Number of hashes that have copies but no known key."""
        return len(self._pending)

    # -- changes --------------------------------------------------------------------------------------------------

    def _note(self, change: SourceChange | None) -> None:
        """Handle a tier's new source: blocks learned without events are dropped."""
        if change is None:
            return
        if self._blocks.holders is not None:
            self._blocks.holders.close_place(Place(change.tier, LEARNED_GROUP))
        if self.capacity(change.tier) is None or change.tier in self._blocks.bounds.followers():
            # an inferred tier borrows the fastest tier's bound only while it is inferred
            self.set_capacity(change.tier, None)
        self._on_source(change)

    def _settle(self, block_size: int) -> None:
        """Take the block size that events of the fastest tier show, if none has yet."""
        if self._blocks.size.certain is not None:
            return
        if self.block_size not in (None, block_size):
            self._forget_keys()
        self._blocks.settle(block_size)

    def _forget_keys(self) -> None:
        """Forget the keys of slower tiers' blocks, learned at a block size that was expected and is wrong."""
        self.hashes.clear()
        self._chunks.clear()
        self._foreign.clear()
        self._expect_pending()

    def _expect_pending(self) -> None:
        """Expect the hashes whose copies wait for their key."""
        for engine_hash in self._pending.hashes:
            self.hashes.table.expect(EngineHash(engine_hash))

    def _changed(self) -> None:
        """Invalidate the layout and the routes of the native core."""
        self._version += 1
        self._layout = None
        self._on_layout()

    def _new_table(self, seed: int) -> HashTable:  # noqa: ARG002 - the native table needs it
        return DictTable()

    def _note_session(self, key: BlockKey, session: str | None) -> None:
        self.sessions.note(key, session)

    def _store(self, place: Place, keys: Sequence[BlockKey]) -> None:
        self._note(self.sources.usable_event(place.tier))
        self._blocks.store(place, keys)
        if place.tier == FASTEST:
            self._infer(keys)

    def _hold(self, place: Place, keys: Sequence[BlockKey]) -> None:
        """Hold each key once, however often it is announced."""
        self._note(self.sources.usable_event(place.tier))
        self._blocks.keep(place, keys)

    def _infer(self, keys: Sequence[BlockKey]) -> None:
        """Copy blocks of the fastest tier to the tiers for which the engine sends no events."""
        for tier in self._tiers.configured[1:]:
            if keys and self.sources.of(tier) is TierSource.INFERRED:
                self._blocks.keep(Place(tier, LEARNED_GROUP), keys)
