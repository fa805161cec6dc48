"""The ledger of one publisher: its events become residencies in the block index.

Residency and meaning are separate. A store adds a copy of each hash to a place (tier, group); the key of the hash may
become known before, with, or after it. Until then the copies are pending, so that token-less stores, orphans and events
in any order lead to the same state.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, assert_never

from ..events.lazy_batch import LazyBatch
from ..events.model import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, Event, HashSpace
from ..events.runs import Run
from ..events.wire import MAX_HASHES
from .foreign import ForeignChunks
from .holders import FASTEST, Place
from .keys import BlockKey
from .pending import Claim
from .pooled import RETRIED
from .rank_state import RankState
from .steps import BLOCK_COST, BYTES_PER_COST, EVENT_COST, PIECE, Steps, pieces
from .tiers import TierId

if TYPE_CHECKING:
    from ..events._native import Inbox as NativeMessages


class RankLedger(RankState):
    """State of one publisher (an endpoint's data-parallel rank), changed by its events."""

    # -- events ---------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Apply one event. Cost: O(its blocks), amortised."""
        for _ in self._steps_of(event):
            pass

    def apply_batch(self, batch: Iterable[Event]) -> None:
        """Apply events in order. Cost: O(blocks)."""
        for _ in self.steps(batch):
            pass

    def steps(self, batch: Iterable[Event]) -> Steps:
        """Apply events in order, step by step. All other methods may be called between two steps, but no other `steps`.

        The index is consistent after each step. Steps that are left out leave the events applied in part.
        """
        if not isinstance(batch, LazyBatch):
            for event in batch:
                yield from self._steps_of(event)
            return
        for position in range(batch.n_applied, batch.n_sent):
            yield from self._apply_at(batch, position)

    def run(self, inbox: NativeMessages, seq: int) -> Run | None:  # noqa: ARG002 - for the native ledger
        """Apply ordinary messages of the inbox, from number `seq` on; None if the ledger needs each as a batch."""
        return None

    def _apply_at(self, batch: LazyBatch, position: int) -> Generator[int, None, Event | None]:
        """Decode and apply one event of a batch; return it, None if it is unreadable."""
        n_before = batch.n_decoded_bytes
        event = batch.event(position)
        yield (batch.n_decoded_bytes - n_before) // BYTES_PER_COST
        if event is None:
            yield EVENT_COST
        else:
            yield from self._steps_of(event)
        return event

    def _steps_of(self, event: Event) -> Steps:
        if event.tenant is not None and self.tenant is not None and event.tenant != self.tenant:
            self.counters.other_tenants += 1
            yield EVENT_COST
            return
        match event:
            case BlockStored():
                yield from self._stored(event)
            case BlockRemoved():
                yield from self._removed(event)
            case AllBlocksCleared():
                only = None if event.medium is None else self._tiers.of(event.medium)
                for tier, spec in enumerate(self._tiers.specs):
                    is_meant = tier == FASTEST or spec.cleared_on_reset or event.everywhere
                    if is_meant if only is None else tier == only:
                        yield from self._clear(TierId(tier))
            case _:
                assert_never(event)
        yield EVENT_COST

    # -- stores ---------------------------------------------------------------------------------------------------

    def _stored(self, event: BlockStored) -> Steps:
        tier = self._tiers.of(event.medium)
        if not self._takes(event, tier):
            return
        place = Place(tier, event.group)
        if event.space is not HashSpace.OWN:
            yield from self._stored_by_others(event, place)
        elif tier != FASTEST and ForeignChunks.matches(event, self.block_size):
            self._stored_foreign(event, place)
        else:
            yield from self._stored_own(event, place)

    def _stored_own(self, event: BlockStored, place: Place) -> Steps:
        tier = place.tier
        if event.hashes and self._may_learn(event, tier):
            for learned in self.hashes.learn(event):
                for engine_hash in learned:
                    yield from self._adopt(engine_hash)
                yield BLOCK_COST * len(learned)
        if tier != FASTEST:
            yield from self._learn_chunks(tier, event)
        run: list[BlockKey] = []
        for hashes in pieces(event.hashes):
            n_before = len(run)
            self._take_in(hashes, Claim(place, tail=tier != FASTEST and not event.tokens), run)
            yield BLOCK_COST * len(hashes) + len(run) - n_before
            if len(run) > MAX_HASHES:  # chunks: the order of blocks within the event no longer matters
                self._store(place, run)
                run.clear()
        if run:
            self._store(place, run)
        for hashes in pieces(event.hashes):
            if self._blocks.holders is not None:
                yield BLOCK_COST * self.hashes.sweep(self._blocks.holders, n_blocks=len(hashes))

    def _take_in(self, hashes: Sequence[EngineHash], claim: Claim, run: list[BlockKey]) -> None:
        """Add the keys of known hashes to `run`, in a token-less event those of their chunks, and let others wait."""
        for engine_hash in hashes:
            known = self.hashes.get(engine_hash)
            if known is None:
                self.counters.pending_dropped += self._pending.add(engine_hash, claim)
                self.hashes.table.expect(engine_hash)
            elif claim.tail:
                run += self._new_chunk(claim.place, engine_hash, 1)
            else:
                run.append(known.key)

    def _takes(self, event: BlockStored, tier: TierId) -> bool:
        """Return whether the event's tier and group are tracked."""
        if not self.sources.believes_events(tier):
            self.counters.ignored_tiers += 1
            return False
        if self._groups.learn(event):
            self._changed()
        matters = self._groups.matters(event.group)
        self.counters.ignored_groups += not matters
        return matters

    def _may_learn(self, event: BlockStored, tier: TierId) -> bool:
        """Return whether the event's tokens define the keys of its hashes.

        Sliding-window groups leave blocks out, so their tokens and hashes may not correspond. Slower-tier events of
        vLLM's offloading connector carry tokens but not the other inputs of the hash (salt, multimodal items). They are
        used only if they carry these inputs, or if the engine never sends them.
        """
        if not event.block_size or len(event.tokens) != len(event.hashes) * event.block_size:
            return False
        if tier == FASTEST:
            self._tells_extra_keys |= event.extra_keys is not None
            if self._blocks.size.certain is None:
                self._blocks.settle(event.block_size)
        elif self._blocks.size.certain is None or (event.extra_keys is None and self._tells_extra_keys):
            return False
        if event.block_size != self.block_size:
            self.counters.block_size_mismatches += 1
            return False
        return True

    def _stored_foreign(self, event: BlockStored, place: Place) -> None:
        size = self.block_size
        assert size is not None, "a foreign chunk is recognised only beside a block size"  # noqa: S101
        is_first = place.tier not in self._foreign.tiers
        keys = self._foreign.learn(event, place.tier, size)
        if keys is None:
            self.counters.foreign_orphans += 1
            return
        if is_first:
            self._changed()  # removals there may be of chunks from now on
        self._chunks.learn(place.tier, event.block_size // size - 1)
        self._hold(place, keys)  # the library announces what it has again after a loss, with no second copy

    # -- hashes that others define ---------------------------------------------------------------------------------

    def _stored_by_others(self, event: BlockStored, place: Place) -> Steps:
        """Hold blocks by standard hashes, or by hashes of the engines that fill a common store."""
        if event.space is HashSpace.STANDARD:
            if event.lora_name or not self._has_standard_keys or not self._opens_at(event.block_size):
                self.counters.unkeyed += len(event.hashes)
                return
            for hashes in pieces(event.hashes):
                self._hold(place, [BlockKey(each) for each in hashes])
                yield BLOCK_COST * len(hashes)
            return
        found = [(place, each) for h in event.hashes if (each := self._pooled.add(h, place)) is not None]
        for where, block in (*found, *self._pooled.retry()):
            if self._opens_at(block.block_size):
                self._hold(where, [block.key])
            else:
                self.counters.unkeyed += 1
        yield BLOCK_COST * (len(event.hashes) + RETRIED)

    def _removed_by_others(self, event: BlockRemoved, place: Place) -> Steps:
        """Remove blocks by such hashes."""
        for hashes in pieces(event.hashes):
            keys = [
                BlockKey(each) if event.space is HashSpace.STANDARD else self._pooled.remove(each, place)
                for each in hashes
            ]
            known = [key for key in keys if key is not None]
            self.counters.unknown_removals += len(keys) - len(known)
            if known and self._blocks.holders is not None:
                self._blocks.remove(place, known)
            yield BLOCK_COST * len(hashes)

    def _opens_at(self, block_size: int) -> bool:
        """Return whether blocks of that size can be held, 0 for the known size; the first size that is told is taken."""
        if block_size and self._blocks.size.certain is None:
            self._blocks.settle(block_size)
        size = self.block_size
        self.counters.block_size_mismatches += size is not None and block_size not in (0, size)
        return size is not None and block_size in (0, size)

    def used(self, hashes: Iterable[EngineHash]) -> None:
        """Renew the recency of a cache library's chunks, in every tier that has them."""
        if self._blocks.holders is None:
            return
        for engine_hash in hashes:
            for tier in self._foreign.tiers:
                if (keys := self._foreign.get(engine_hash, tier)) is not None:
                    self._blocks.holders.touch(keys)

    def _adopt(self, engine_hash: EngineHash) -> Steps:
        """Store the copies that were pending for the hash."""
        known = self.hashes.get(engine_hash)
        for claim, copies in self._pending.pop(engine_hash).items():
            if known is not None and claim.tail:
                yield from self._learn_chunk(claim.place.tier, known.depth)
                keys = self._new_chunk(claim.place, engine_hash, copies)
                self._store(claim.place, keys)
                yield len(keys)
            elif known is not None:
                yield from self._store_copies(claim.place, known.key, copies)

    def _store_copies(self, place: Place, key: BlockKey, copies: int) -> Steps:
        while copies > 0:
            n_now = min(copies, PIECE)
            self._store(place, [key] * n_now)
            copies -= n_now
            yield BLOCK_COST * n_now

    # -- offload chunks -------------------------------------------------------------------------------------------

    def _new_chunk(self, place: Place, tail: EngineHash, copies: int) -> list[BlockKey]:
        """Record a token-less event, which names only the last block; return the chunk's keys if they are to be stored."""
        return self._chunks.keys(place.tier, tail) if self._chunks.add_tail(place, tail, copies) else []

    def _learn_chunks(self, tier: TierId, event: BlockStored) -> Steps:
        # in a token-less event every hash ends a chunk; in one with tokens only the last does
        for hashes in pieces(event.hashes[-1:] if event.tokens else event.hashes):
            for engine_hash in hashes:
                if (end := self.hashes.get(engine_hash)) is not None:
                    yield from self._learn_chunk(tier, end.depth)
            yield BLOCK_COST * len(hashes)

    def _learn_chunk(self, tier: TierId, depth: int) -> Steps:
        """Correct the chunk size by one more chunk end, and the blocks stored under the old size."""
        old = self._chunks.n_blocks(tier)
        if not self._chunks.learn(tier, depth) or self._chunks.n_blocks(tier) == old:
            return
        for place, tail in self._chunks.tails(tier):
            before, after = self.hashes.table.chain(tail, old), self._chunks.keys(place.tier, tail)
            self._blocks.remove(place, before)
            self._store(place, after)
            yield len(before) + len(after)

    # -- removals -------------------------------------------------------------------------------------------------

    def _removed(self, event: BlockRemoved) -> Steps:
        place = Place(self._tiers.of(event.medium), event.group)
        if not self.sources.believes_events(place.tier):
            return
        if event.space is not HashSpace.OWN:
            yield from self._removed_by_others(event, place)
            return
        run: list[BlockKey] = []
        for hashes in pieces(event.hashes):
            for engine_hash in hashes:
                if (
                    place.tier != FASTEST
                    and (chunk := self._foreign.forget(engine_hash, place.tier)) is not None
                ):
                    run += chunk
                    yield len(chunk)
                    continue
                known = self.hashes.get(engine_hash)
                if known is not None and self._chunks.has_tail(place, engine_hash):
                    yield self._remove_chunk(place, engine_hash)
                elif known is not None:
                    run.append(known.key)
                elif not self._pending.remove(engine_hash, place):
                    self.counters.unknown_removals += 1
            yield BLOCK_COST * len(hashes)
        if run:
            self._blocks.remove(place, run)

    def _remove_chunk(self, place: Place, tail: EngineHash) -> int:
        """Remove one copy of a chunk by its tail; return the cost."""
        if not self._chunks.drop_tail(place, tail):
            return 1  # copies are left
        keys = self._chunks.keys(place.tier, tail)
        self._blocks.remove(place, keys)
        return len(keys)

    def _clear(self, tier: TierId) -> Steps:
        if self._blocks.holders is not None:
            self._blocks.holders.clear(tier)
        self._chunks.clear(tier)
        for n_dropped in self._pending.drop(tier):
            yield BLOCK_COST * n_dropped
