"""The ledger of one publisher: its events become residencies in the block index.

Residency and meaning are separate. A store adds a copy of each hash to a place (tier, group); the key of the hash may
become known before, with, or after it. Until then the copies are pending, so that token-less stores, orphans and events
in any order lead to the same state.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, assert_never

from ..events.fields import MAX_HASHES
from ..events.lazy_batch import LazyBatch
from ..events.model import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    Event,
    HashSpace,
    MediumName,
)
from ..events.runs import Run
from .foreign import ForeignChunks
from .holders import FASTEST, Place
from .keys import BlockKey
from .pending import Claim
from .pooled import RETRIED
from .saved_rank import SavedRank
from .steps import BLOCK_COST, BYTES_PER_COST, EVENT_COST, PIECE, Steps, pieces
from .tiers import TierId

if TYPE_CHECKING:
    from ..events._native import Inbox as NativeMessages


LEAST_REPORTED = 3
"""Blocks of a prompt from its start that a store must have to count as a report of what is held. Source: recordings of
vLLM 0.33, whose requests may ask for such reports."""

TREE_MEDIUM = MediumName("CPU_PINNED")
"""The host tier of SGLang, which keeps one tree of pages over GPU and host; its events say so by nothing else."""


def second_event(batch: LazyBatch | tuple[Event, ...]) -> Event | None:
    """Return the second event, None if there is none or it is unreadable."""
    if isinstance(batch, LazyBatch):
        return batch.event(1) if batch.n_sent > 1 else None
    return batch[1] if len(batch) > 1 else None


class RankLedger(SavedRank):
    """State of one publisher (an endpoint's data-parallel rank), changed by its events."""

    # -- events ---------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Apply one event, the only one of its batch. Cost: O(its blocks), amortised."""
        self.apply_batch((event,))

    def apply_batch(self, batch: Iterable[Event]) -> None:
        """Apply events in order. Cost: O(blocks)."""
        for _ in self.steps(batch):
            pass

    def steps(self, batch: Iterable[Event]) -> Steps:
        """Apply events in order, step by step. All other methods may be called between two steps, but no other `steps`.

        The index is consistent after each step. Steps that are left out leave the events applied in part.
        """
        if not isinstance(batch, LazyBatch):
            events = tuple(batch)
            for position, event in enumerate(events):
                self._batch_begun = events if position == 0 else None
                yield from self._steps_of(event)
            return
        for position in range(batch.n_applied, batch.n_sent):
            yield from self._apply_at(batch, position)

    def run(self, inbox: NativeMessages, seq: int) -> Run | None:  # noqa: ARG002 - for the native ledger
        """Apply ordinary messages of the inbox, from number `seq` on; None if the ledger needs each as a batch."""
        return None

    def _apply_at(self, batch: LazyBatch, position: int) -> Generator[int, None, Event | None]:
        """Decode and apply one event of a batch; return it, None if it is unreadable."""
        self._batch_begun = batch if position == 0 else None
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
                yield from self._stored(self._salted(event))
            case BlockRemoved():
                yield from self._removed(event)
            case AllBlocksCleared():
                for tier in self._cleared_tiers(event):
                    self.n_clears += tier == FASTEST
                    yield from self._clear(tier)
            case _:
                assert_never(event)
        yield EVENT_COST

    # -- stores ---------------------------------------------------------------------------------------------------

    def _stored(self, event: BlockStored) -> Steps:
        tier = self._tiers.of(event.medium)
        if self.may_share:
            self._tiers.note(event.medium, tier)
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
        self._look_at(event, place)
        tail = tier != FASTEST and not event.tokens and not self._one_tree
        run: list[BlockKey] = []
        for hashes in pieces(event.hashes):
            n_before = len(run)
            self._take_in(hashes, Claim(place, tail=tail), run)
            yield BLOCK_COST * len(hashes) + len(run) - n_before
            if len(run) > MAX_HASHES:  # chunks: the order of blocks within the event no longer matters
                self._store(place, run)
                run.clear()
        if run:
            self._store(place, run)
        if tier == FASTEST and event.hashes and (event.session or self.sessions):
            first = self.hashes.get(event.hashes[0])
            if first is not None:
                self._note_session(first.key, event.session)
        for hashes in pieces(event.hashes):
            if self._blocks.holders is not None:
                yield BLOCK_COST * self.hashes.sweep(self._blocks.holders, n_blocks=len(hashes))

    def _is_report(self, event: BlockStored, tier: TierId) -> bool:
        """Return whether the event tells again what the rank holds (`kv_cache_report_mode=full`), and adds no copy.

        A report is the first event of its batch: the same prompt computed twice at once is stored twice in one batch. One or
        two blocks may really be there twice, and with several groups longer runs too. So may a whole prompt, as with prompt
        log probabilities; hence the first report counts as one only if the next event continues it, which a real copy
        would have contained.
        """
        if self._batch_begun is None or tier != FASTEST or event.parent is not None or len(self._groups) != 1:
            return False
        if len(event.hashes) < LEAST_REPORTED or self._blocks.holders is None:
            return False
        known = map(self.hashes.get, event.hashes)
        if not self._blocks.holders.has_all(
            Place(tier, event.group), (each.key if each else None for each in known)
        ):
            return False
        after = second_event(self._batch_begun)
        self._reports |= isinstance(after, BlockStored) and after.parent == event.hashes[-1]
        return self._reports

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
        """Return whether the event's tier and group are tracked, and it adds copies."""
        if not self.sources.believes_events(tier):
            self.counters.ignored_tiers += 1
            return False
        is_tree = self._one_tree or event.medium == TREE_MEDIUM
        if self._groups.learn(event) or is_tree != self._one_tree:
            self._one_tree = is_tree
            self._changed()
        matters, is_report = self._groups.matters(event.group), self._is_report(event, tier)
        self.counters.ignored_groups += not matters
        self.counters.reported_again += is_report
        return matters and not is_report

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
            self._settle(event.block_size)
            if event.n_lookahead != self.lookahead:
                self.lookahead = event.n_lookahead
                self._changed()
        elif event.extra_keys is None and self._tells_extra_keys:
            return False
        elif self._blocks.size.certain is None:
            # by the size in the engine's metrics; what the fastest tier tells later may show that inputs are missing
            return event.block_size == self.block_size
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
            self._settle(block_size)
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
        if self._one_tree:
            return  # engines with one tree send many blocks in one event, and move each by itself
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

    def emptied(self, tier: TierId) -> None:
        """Handle a slower tier that its engine emptied without an event, some time ago.

        Blocks that the fastest tier has stay: they were probably stored since. Cost: O(blocks of the fastest tier).
        """
        if self._blocks.holders is not None:
            self._blocks.holders.keep_copies(tier)
        self._chunks.clear(tier)
        for _ in self._pending.drop(tier):
            pass

    def _clear(self, tier: TierId) -> Steps:
        if self._blocks.holders is not None:
            self._blocks.holders.clear(tier, everyones=self.is_store)
        self._chunks.clear(tier)
        for n_dropped in self._pending.drop(tier):
            yield BLOCK_COST * n_dropped
