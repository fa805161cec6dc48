"""The global index: the blocks of every endpoint in every tier, and their match with a prompt."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ..events.model import EngineHash, Event
from .errors import UnknownEndpointError
from .factory import IndexCore
from .holders import SavedShared, SharedHolders
from .index import BlockIndex, IndexStatistics
from .keys import Namespace
from .ledger import RankLedger
from .match import PrefixMatch
from .match_columns import MatchColumns
from .match_plan import MatchPlan, PlannedRank
from .pooled import Found
from .prefix import MediaSpan, Prefix, TextLimits, words_of
from .saved import SavedLedger
from .sources import SourceChange
from .tiers import TierId, TierSource, TierTable


@dataclass(frozen=True, slots=True)
class TierOccupancy:
    """Blocks that one endpoint holds in one tier, over all its ranks."""

    tier_id: TierId
    tier: str
    """Name of the tier."""
    residencies: int
    capacity: int | None
    chunk_blocks: int | None
    source: TierSource | None
    """Source of the first rank; None without evidence."""
    dark: bool
    """Whether the engine is known to use the tier without usable events of it."""


class Atlas:
    """The ledgers of all endpoints, and the indexes they write to.

    Args:
        tiers: configured tiers, fastest first.
        seed: seed of the block keys.
        core: implementation of the index.
        on_source: called with endpoint, rank and change when the source of a tier changes.
    """

    def __init__(
        self,
        *,
        tiers: TierTable,
        seed: int,
        core: IndexCore,
        on_source: Callable[[str, int, SourceChange], None] | None = None,
    ) -> None:
        self.tiers = tiers
        self.seed = seed
        self.text_limits = TextLimits()
        """How much of prompts that are keyed by their bytes is matched."""
        self.assumed_block_size: int | None = None
        """Tokens per block of ranks that learn from routing and whose engine tells no size; None assumes none."""
        self._core = core
        self._on_source = on_source
        self._shared: dict[str, SharedHolders] = {}
        self._spaces: dict[str, str] = {}
        self._indexes: dict[int, BlockIndex] = {}
        self._endpoints: dict[str, dict[int, RankLedger]] = {}
        self._plan: MatchPlan | None = None
        """Cache, rebuilt at the first match after a change of any rank's layout."""
        self._planned: dict[tuple[str, int], PlannedRank] = {}
        """Ranks with a layout, by endpoint and number, but for those in `_changed`."""
        self._changed: set[tuple[str, int]] = set()
        self.mixed_tiers: set[TierId] = set()
        """Tiers whose blocks are a server's own on one server, and no server's own by the events of another."""
        tiers.on_remote = self._is_remote

    @property
    def core(self) -> IndexCore:
        """Implementation of the index, and of what goes with it."""
        return self._core

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Block sizes of all endpoints."""
        return tuple(self._indexes)

    def add(self, endpoint: str, *, n_ranks: int = 1, space: str = "") -> None:
        """Register an endpoint with empty ledgers; a registered one is emptied.

        Args:
            endpoint: unique name.
            n_ranks: data-parallel ranks.
            space: group of endpoints that share shared tiers; other spaces serve other models or tenants.
        """
        self.remove(endpoint)
        self._spaces[endpoint] = space
        self._endpoints[endpoint] = {rank: self._new_ledger(endpoint, rank) for rank in range(n_ranks)}

    def remove(self, endpoint: str) -> None:
        """Remove the endpoint and its blocks; unknown names are ignored. Cost: O(its residencies).

        Blocks in a shared tier outlive their endpoints, except after the last endpoint of a space other than the main one.
        """
        for ledger in self._endpoints.pop(endpoint, {}).values():
            ledger.reset()
        space = self._spaces.pop(endpoint, "")
        if space and space not in self._spaces.values() and space in self._shared:
            self._shared.pop(space).close()
        self._drop_unused_indexes()

    def add_rank(self, endpoint: str, rank: int) -> None:
        """Add an empty ledger for one more rank of a registered endpoint."""
        self._endpoints[endpoint][rank] = self._new_ledger(endpoint, rank)

    def remove_rank(self, endpoint: str, rank: int) -> None:
        """Remove one rank of the endpoint and its blocks. Cost: O(its residencies)."""
        self._endpoints[endpoint].pop(rank).reset()

    def reset(self, endpoint: str, rank: int) -> None:
        """Forget everything of a rank: its publisher started a new life."""
        self.ledger(endpoint, rank).reset()
        self._drop_unused_indexes()

    def apply(self, endpoint: str, rank: int, events: Iterable[Event]) -> None:
        """Apply a publisher's events, in order. Cost: O(blocks)."""
        self.ledger(endpoint, rank).apply_batch(events)

    def ledger(self, endpoint: str, rank: int) -> RankLedger:
        """Return the ledger of one rank.

        Raises:
            UnknownEndpointError: the endpoint or rank is not registered.
        """
        try:
            return self._endpoints[endpoint][rank]
        except KeyError:
            raise UnknownEndpointError(f"no endpoint {endpoint!r} with rank {rank} is registered") from None

    def set_capacity(self, endpoint: str, tier: TierId, n_blocks: int | None) -> int:
        """Bound one tier of every rank of the endpoint; return the sum of `RankLedger.set_capacity`."""
        return sum(ledger.set_capacity(tier, n_blocks) for ledger in self._endpoints[endpoint].values())

    def set_shared_capacity(self, tier: TierId, n_blocks: int | None) -> int:
        """Bound a tier that belongs to no server; return the blocks evicted."""
        return sum(shared.set_capacity(tier, n_blocks) for shared in self._shared.values())

    def routed(self, endpoint: str, prefix: Prefix, match: PrefixMatch | None = None) -> None:
        """Renew the recency of a routed prompt's blocks, and learn its blocks if routing is the endpoint's source.

        Args:
            endpoint: receiver of the prompt; an unknown one is ignored.
            prefix: its block keys.
            match: the endpoint's match, so that ranks that hold nothing are skipped; None updates every rank.
        Cost: O(blocks) per updated rank.
        """
        for rank, ledger in self._endpoints.get(endpoint, {}).items():
            if (match is None or match.is_held_on(rank) or ledger.learns_from_routing) and (
                size := ledger.block_size
            ) is not None:
                ledger.routed(prefix.keys(size, ledger.lookahead))

    def ledgers_of(self, endpoint: str) -> Iterable[RankLedger]:
        """Return the ledgers of all ranks of an endpoint, none if it is not registered."""
        return self._endpoints.get(endpoint, {}).values()

    def learners(self) -> Iterator[tuple[str, RankLedger]]:
        """Yield endpoint and ledger of each rank whose fastest tier is known from routing alone."""
        for endpoint, ledgers in self._endpoints.items():
            for ledger in ledgers.values():
                if ledger.learns_from_routing:
                    yield endpoint, ledger

    def ledgers(self, endpoint: str) -> Collection[RankLedger]:
        """Return the ledgers of all ranks of the endpoint."""
        return self._endpoints[endpoint].values()

    def dump(self, endpoint: str, rank: int, *, now: float) -> SavedLedger:
        """Return one rank's ledger, to be saved; `now` in monotonic seconds. Cost: O(hashes + residencies)."""
        return self.ledger(endpoint, rank).dump(now=now)

    def load(self, endpoint: str, rank: int, saved: SavedLedger, *, now: float) -> None:
        """Load a saved ledger into an empty rank. Cost: as `dump`."""
        self.ledger(endpoint, rank).load(saved, now=now)

    def dump_shared(self, space: str) -> tuple[SavedShared, ...]:
        """Return the contents of a space's shared tiers, to be saved after the ranks that store there. Cost: O(residencies)."""
        return self._shared_in(space).dump()

    def load_shared(self, space: str, saved: Iterable[SavedShared]) -> None:
        """Load the saved contents of a space's shared tiers."""
        self._shared_in(space).load(saved)

    def prefix(
        self,
        tokens: array[int],
        *,
        media: Sequence[MediaSpan] = (),
        lora: str | None = None,
        salt: str | None = None,
        more: bool = False,
    ) -> Prefix:
        """Build the block keys of a prompt for this index; the arguments are those of `Prefix`."""
        return Prefix(
            tokens,
            media=media,
            lora=lora,
            salt=salt,
            more=more,
            seed=self.seed,
            make_keys=self._core.prefix_keys,
        )

    def byte_prefix(self, text: bytes, *, lora: str | None = None, salt: str | None = None) -> Prefix:
        """Build the block keys of a prompt from its bytes; only tiers learned from routing have such keys."""
        return Prefix(
            words_of(text),
            lora=lora,
            salt=salt,
            limits=self.text_limits,
            namespace=Namespace.BYTES,
            seed=self.seed,
            make_keys=self._core.prefix_keys,
        )

    @property
    def learns_from_routing(self) -> bool:
        """Whether routing is the source of any endpoint's fastest tier."""
        return any(
            ledger.learns_from_routing for ledgers in self._endpoints.values() for ledger in ledgers.values()
        )

    def match(self, prefix: Prefix) -> dict[str, PrefixMatch]:
        """Match the prompt with each endpoint; endpoints with unknown block size are absent.

        Cost: one hash pass and one index walk per distinct block size, then O(1) per endpoint; the first call after a
        change of a layout costs O(endpoints) more.
        """
        plan = self._plan or self._make_plan(tuple(self._endpoints))
        return plan.match(prefix)

    def columns(self, prefix: Prefix, endpoints: tuple[str, ...]) -> MatchColumns | None:
        """Match the prompt with each endpoint, as columns; None if no block size is known.

        Args:
            prefix: block keys of the prompt.
            endpoints: all registered endpoints, by row; the same object as long as they stay.
        Cost: as `match`; a new `endpoints` counts as a change of a layout.
        """
        plan = self._plan
        if plan is None or plan.endpoints is not endpoints:
            plan = self._make_plan(endpoints)
        return plan.columns(prefix)

    def sweep(self, *, n_keys: int) -> int:
        """Free the memory of up to `n_keys` keys without holder per block size; return how many remain.

        Cost: O(n_keys). Without it, later events free the memory.
        """
        return sum(index.sweep(n_keys) for index in self._indexes.values())

    def stats(self) -> IndexStatistics:
        """Return sizes and memory of the indexes of all block sizes. Cost: O(endpoints)."""
        rows = [index.stats() for index in self._indexes.values()]
        return IndexStatistics(
            keys=sum(row.keys for row in rows),
            residencies=sum(row.residencies for row in rows),
            unswept=sum(row.unswept for row in rows),
            size_bytes=sum(row.size_bytes for row in rows),
        )

    def occupancy(self, endpoint: str) -> list[TierOccupancy]:
        """Return the endpoint's blocks by tier: configured tiers, then unknown media that hold blocks."""
        ledgers = list(self._endpoints[endpoint].values())
        tiers = [TierId(tier) for tier in range(len(self.tiers.specs))]
        shared = self._shared_of(endpoint)
        rows = [self._occupancy(ledgers, shared, tier) for tier in tiers]
        return [
            row
            for row, spec in zip(rows, self.tiers.specs, strict=True)
            if spec.configured or row.residencies
        ]

    def _occupancy(self, ledgers: list[RankLedger], shared: SharedHolders, tier: TierId) -> TierOccupancy:
        spec = self.tiers.specs[tier]
        held = sum(ledger.residencies(tier) for ledger in ledgers)
        bounds = [bound for ledger in ledgers if (bound := ledger.capacity(tier)) is not None]
        return TierOccupancy(
            tier_id=tier,
            tier=spec.name,
            residencies=shared.residencies(tier) if spec.shared else held,
            capacity=sum(bounds) if len(bounds) == len(ledgers) else None,
            chunk_blocks=min((n for ledger in ledgers if (n := ledger.chunk_blocks(tier))), default=None),
            source=ledgers[0].sources.of(tier),
            dark=any(ledger.sources.is_dark(tier) for ledger in ledgers),
        )

    def _new_ledger(self, endpoint: str, rank: int) -> RankLedger:
        def changed(change: SourceChange) -> None:
            if self._on_source is not None:
                self._on_source(endpoint, rank, change)

        ledger = self._core.ledger(
            tiers=self.tiers,
            seed=self.seed,
            make_keys=self._core.prefix_keys,
            index_for=self._index_for,
            shared=self._shared_of(endpoint),
            on_source=changed,
            on_layout=lambda: self._layout_changed(endpoint, rank),
            find=partial(self._find, self._spaces[endpoint]),
        )
        ledger.assume_block_size(self.assumed_block_size)
        ledger.may_share = not self._spaces[endpoint]
        return ledger

    def _is_remote(self, tier: TierId) -> None:
        """Share a tier as an event tells, unless a server holds blocks of its own there. Cost: O(ranks), once per tier."""
        if tier in self.mixed_tiers:
            return
        ledgers = [ledger for ranks in self._endpoints.values() for ledger in ranks.values()]
        if any(ledger.residencies(tier) for ledger in ledgers):
            self.mixed_tiers.add(tier)
            return
        self.tiers.share(tier)
        for ledger in ledgers:
            ledger.tier_is_shared(tier)

    def _find(self, space: str, engine_hash: EngineHash) -> Found | None:
        """Return the block that any engine of the space has told by this hash. Cost: O(ranks of the space)."""
        for endpoint, ledgers in self._endpoints.items():
            if self._spaces[endpoint] != space:
                continue
            for ledger in ledgers.values():
                known, size = ledger.hashes.get(engine_hash), ledger.block_size
                if known is not None and size is not None:
                    return Found(known.key, size)
        return None

    def _make_plan(self, endpoints: tuple[str, ...]) -> MatchPlan:
        self._drop_unused_indexes()
        for endpoint, rank in self._changed:
            self._planned.pop((endpoint, rank), None)
            ledger = self._endpoints.get(endpoint, {}).get(rank)
            if ledger is None:
                continue
            layout, size = ledger.layout(), ledger.block_size
            if layout is not None and size is not None:
                self._planned[endpoint, rank] = PlannedRank(endpoint, rank, size, layout, ledger.lookahead)
        self._changed.clear()
        self._plan = MatchPlan(
            self._planned.values(), tiers=self.tiers.names, index_for=self._index_for, endpoints=endpoints
        )
        return self._plan

    def _layout_changed(self, endpoint: str, rank: int) -> None:
        self._changed.add((endpoint, rank))
        self._plan = None

    def _shared_of(self, endpoint: str) -> SharedHolders:
        return self._shared_in(self._spaces[endpoint])

    def _shared_in(self, space: str) -> SharedHolders:
        if space not in self._shared:
            self._shared[space] = SharedHolders(self.tiers, self._index_for)
        return self._shared[space]

    def _drop_unused_indexes(self) -> None:
        """Drop indexes without users, since a publisher may change its block size again and again.

        Cost: ends once each index has a user; O(ranks) only if one has none.
        """
        unused = set(self._indexes)
        for ledgers in self._endpoints.values():
            if not unused:
                return
            unused.difference_update(ledger.block_size for ledger in ledgers.values())
        used = self._indexes.keys() - unused
        for shared in self._shared.values():
            shared.close_empty(but=used)
            unused -= shared.block_sizes
        for size in unused:
            del self._indexes[size]

    def _index_for(self, block_size: int) -> BlockIndex:
        if block_size not in self._indexes:
            self._indexes[block_size] = self._core.make_index()
        return self._indexes[block_size]


def keys_of(values: Collection[int]) -> array[int]:
    """Convert integers to block keys; signed 64-bit integers are taken modulo 2**64."""
    try:
        return array("Q", values)  # a fifth of the cost
    except OverflowError:
        return array("Q", [value & (1 << 64) - 1 for value in values])
