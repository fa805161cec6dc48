"""The ledger of one publisher with its fast path in the native core.

`_native.Ledger.apply` applies plain events. It stops at the first event that is not plain, which `RankLedger` applies; so
parked events, pending copies, chunk tails and sources are handled only there. A route describes to the core how to
apply events of one tier and group. It is added after one such event went through `RankLedger`, and removed as soon as
anything that it depends on has changed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from ..events._native import Inbox
from ..events.model import BlockStored, EngineHash, Event, MediumName
from ..events.native_batch import NativeBatch
from ..events.runs import Run
from . import _native
from .groups import LEARNED_GROUP
from .hash_table import HashColumns, HashTable, Known
from .holders import FASTEST, Place, RankHolders
from .index import HolderId
from .keys import BlockKey
from .ledger import RankLedger
from .native_index import NativeIndex
from .steps import BLOCKS_PER_COST, Steps
from .tiers import TierId, TierSource


class _Kind(NamedTuple):
    """The key of a route: an event's medium, group, cache kind and window."""

    medium: MediumName
    group: int
    cache_kind: str | None
    window: int | None


_NATIVE_PIECE = 8192
"""Blocks and events that the core applies in one step, about a millisecond."""

_RUN = 2048
"""Blocks and messages after which a run ends, a fifth of a turn."""

_MAX_ROUTES = 64
"""Routes kept; the core searches them for each event. Engines need one per tier and group, others may send any medium."""

_EXPECTED_SLACK = 1024
"""Outdated expected hashes that are tolerated before they are dropped."""


class NativeTable:
    """Implements `HashTable` in the native core."""

    def __init__(self, core: _native.Ledger) -> None:
        self._core = core

    def __len__(self) -> int:
        return self._core.n_hashes()

    def get(self, engine_hash: EngineHash) -> Known | None:
        """See `HashTable.get`."""
        row = self._core.get(engine_hash)
        return None if row is None else Known(*row)

    def chain(self, engine_hash: EngineHash, n_blocks: int) -> list[BlockKey]:
        """See `HashTable.chain`."""
        return [BlockKey(key) for key in array("Q", self._core.chain(engine_hash, n_blocks))]

    def put(self, engine_hash: EngineHash, known: Known) -> None:
        """See `HashTable.put`."""
        self._core.put(engine_hash, *known)

    def pop_oldest(self) -> tuple[EngineHash, Known]:
        """See `HashTable.pop_oldest`."""
        oldest, row = self._core.pop_oldest()
        return oldest, Known(*row)

    def expect(self, engine_hash: EngineHash) -> None:
        """See `HashTable.expect`."""
        self._core.expect(engine_hash)

    def clear(self) -> None:
        """See `HashTable.clear`."""
        self._core.clear()

    def columns(self) -> HashColumns:
        """See `HashTable.columns`."""
        hashes, keys, depths, parents = self._core.columns()
        return HashColumns(array("Q", hashes), array("Q", keys), array("I", depths), array("Q", parents))

    def put_columns(self, columns: HashColumns) -> None:
        """See `HashTable.put_columns`."""
        self._core.put_columns(*columns)


class NativeLedger(RankLedger):
    """A `RankLedger` for a `NativeIndex`: same state, and a `NativeBatch` in a tenth of the time."""

    _core: _native.Ledger
    _routes: set[_Kind]
    _routed_state: object = None

    def steps(self, batch: Iterable[Event]) -> Steps:
        """See `RankLedger.steps`."""
        if not isinstance(batch, NativeBatch):
            yield from super().steps(batch)
            return
        position = batch.n_applied
        while True:
            if self._core.n_expected() > _EXPECTED_SLACK:
                yield from self._tidy_expected()
            self._renew_routes()
            position, n_evicted, n_unknown, n_blocks = self._core.apply(batch.native, position, _NATIVE_PIECE)
            self.counters.evicted += n_evicted
            self.counters.unknown_removals += n_unknown
            self._note_sessions()
            self._note_recomputed(self._core.take_recomputed())
            if position == batch.n_sent:
                return
            yield n_blocks // BLOCKS_PER_COST
            if n_blocks >= _NATIVE_PIECE:
                continue
            event = yield from self._apply_at(batch, position)
            position += 1
            if isinstance(event, BlockStored):
                self._route_like(event)

    def run(self, inbox: Inbox, seq: int) -> Run | None:
        """See `RankLedger.run`. It is the same as `steps` for each message."""
        if self._core.n_expected() > _EXPECTED_SLACK:
            return None
        self._renew_routes()
        holders = self._blocks.holders
        tiers = holders.of_tiers() if holders is not None else ()
        n_evicted, n_unknown, fields = self._core.run(inbox, seq, _RUN, tiers)
        self.counters.evicted += n_evicted
        self.counters.unknown_removals += n_unknown
        self._note_sessions()
        self._note_recomputed(self._core.take_recomputed())
        return Run(*fields)

    def _note_session(self, key: BlockKey, session: str | None) -> None:
        super()._note_session(key, session)
        self._core.expect_sessions()

    def _note_sessions(self) -> None:
        for key, session in self._core.take_sessions() or ():
            self.sessions.note(key, session)

    def reset(self) -> None:
        """See `RankLedger.reset`."""
        super().reset()
        self._routes.clear()
        self._routed_state = None

    def _new_table(self, seed: int) -> HashTable:
        self._core, self._routes = _native.Ledger(seed), set()
        return NativeTable(self._core)

    def _renew_routes(self) -> None:
        """Rebuild the routes if anything that they depend on has changed."""
        holders, block_size = self._blocks.holders, self._blocks.size.certain
        state = (self._version, self.sources.version, self._tells_extra_keys)
        if holders is None or block_size is None or state == self._routed_state:
            return
        self._routed_state = state
        kinds = sorted(self._routes, key=repr)
        self._routes.clear()
        self._core.forget_routes()
        index = holders.index
        assert isinstance(index, NativeIndex)  # noqa: S101 - they come from one core
        self._core.bind(index, block_size, holders.own(), holders.shared_in_use())
        for kind in kinds:
            self._route(kind)

    def _tidy_expected(self) -> Steps:
        """Drop expected hashes for which nothing waits any more; they would only slow events down."""
        n_waiting, n_expected = len(self._pending) + self.hashes.n_parents_awaited, self._core.n_expected()
        if n_expected > 2 * n_waiting + _EXPECTED_SLACK:
            waiting = self._pending.hashes + self.hashes.parents_awaited
            yield len(waiting) // BLOCKS_PER_COST
            self._core.expect_only(waiting)
            yield n_expected // BLOCKS_PER_COST

    def _route_like(self, event: BlockStored) -> None:
        """Let the core apply events like one that was applied."""
        kind = _Kind(event.medium, event.group, event.kind, event.window if event.kind else None)
        is_plain = "/" not in event.medium  # the core leaves events with qualified media to us
        if is_plain and kind not in self._routes and len(self._routes) < _MAX_ROUTES:
            self._renew_routes()
            self._route(kind)

    def _route(self, kind: _Kind) -> None:
        """Let the core apply events of a kind, if all that such an event needs exists."""
        holders = self._blocks.holders
        tier, group = self._tiers.of(kind.medium), self._groups.get(kind.group)
        if holders is None or self._blocks.size.certain is None:
            return
        is_followed = group is not None and group.matters and self.sources.of(tier) is TierSource.EVENTS
        if not is_followed or (kind.cache_kind is not None and group != (kind.cache_kind, kind.window)):
            return
        place = Place(tier, kind.group)
        holder = holders.at(place)
        copies = self._copies(holders) if tier == FASTEST else []
        if holder is None or copies is None:
            return
        spec = self._tiers.specs[tier]
        self._core.add_route(
            medium=kind.medium,
            group=kind.group,
            cache_kind=kind.cache_kind,
            window=kind.window or 0,
            holder=holder,
            is_fastest=tier == FASTEST,
            is_only_group=len(self._groups) == 1,
            is_shared=spec.shared,
            lookahead=self.lookahead,
            sends_extras=self._tells_extra_keys,
            takes_removals=not self._chunks.has_tails(place) and tier not in self._foreign.tiers,
            chunk=1 if self._one_tree else self._chunks.size(tier) or 0,
            is_chunk_given=self._one_tree or bool(spec.chunk_blocks),
            copies=copies,
        )
        self._routes.add(kind)

    def _copies(self, holders: RankHolders) -> list[HolderId] | None:
        """Return the holders of the tiers inferred from the fastest one; None if one has no holder yet."""
        tiers = [TierId(tier) for tier in range(1, len(self._tiers.names))]
        places = [Place(t, LEARNED_GROUP) for t in tiers if self.sources.of(t) is TierSource.INFERRED]
        copies = [holder for place in places if (holder := holders.at(place)) is not None]
        return copies if len(copies) == len(places) else None
