"""The global index: every endpoint's blocks in every tier, and what each endpoint holds of a prompt."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..events.model import Event
from .errors import UnknownEndpointError
from .factory import IndexCore
from .holders import SavedShared, SharedHolders
from .index import BlockIndex, IndexStatistics
from .keys import Namespace
from .ledger import RankLedger
from .match import PrefixMatch
from .match_plan import MatchPlan, PlannedRank
from .prefix import MediaSpan, Prefix, words_of
from .saved import SavedBooks
from .sources import SourceChange
from .tiers import TierId, TierSource, TierTable


@dataclass(frozen=True, slots=True)
class TierOccupancy:
    """Blocks one endpoint holds in one tier, over all its ranks."""

    tier_id: TierId
    tier: str
    """Its name."""
    residencies: int
    capacity: int | None
    chunk_blocks: int | None
    source: TierSource | None
    """Of the first rank; None while there is no evidence."""
    dark: bool
    """The engine is known to use the tier without telling what it holds there."""


class Atlas:
    """Where every block is.

    Args:
        tiers: configured tiers, fastest first.
        seed: seed of the block keys.
        core: implementation of the index.
        on_source: told endpoint, rank and change when a tier is known from elsewhere than before.
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
        self._core = core
        self._on_source = on_source
        self._shared: dict[str, SharedHolders] = {}
        self._spaces: dict[str, str] = {}
        self._indexes: dict[int, BlockIndex] = {}
        self._endpoints: dict[str, dict[int, RankLedger]] = {}
        self._plan: MatchPlan | None = None
        """Made when first needed after a change of any rank's layout."""

    @property
    def core_name(self) -> str:
        """Which implementation of the index runs: native or reference."""
        return self._core.name

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Block sizes of all endpoints."""
        return tuple(self._indexes)

    def add(self, endpoint: str, *, n_ranks: int = 1, space: str = "") -> None:
        """Register an endpoint with empty books; one that is registered already is emptied.

        Args:
            endpoint: unique name.
            n_ranks: data-parallel ranks.
            space: whom it shares shared tiers with: endpoints of other spaces serve other models or tenants.
        """
        self.remove(endpoint)
        self._spaces[endpoint] = space
        self._endpoints[endpoint] = {rank: self._new_ledger(endpoint, rank) for rank in range(n_ranks)}

    def remove(self, endpoint: str) -> None:
        """Forget the endpoint and all it holds; unknown names are ignored. Cost: O(its residencies).

        What a shared tier holds outlives its endpoints, but not the last one of a space beside the main one.
        """
        for ledger in self._endpoints.pop(endpoint, {}).values():
            ledger.reset()
        space = self._spaces.pop(endpoint, "")
        if space and space not in self._spaces.values() and space in self._shared:
            self._shared.pop(space).close()
        self._drop_unused_indexes()

    def add_rank(self, endpoint: str, rank: int) -> None:
        """Give a registered endpoint empty books for one more rank."""
        self._endpoints[endpoint][rank] = self._new_ledger(endpoint, rank)

    def remove_rank(self, endpoint: str, rank: int) -> None:
        """Forget one rank of the endpoint and all it holds. Cost: O(its residencies)."""
        self._endpoints[endpoint].pop(rank).reset()

    def reset(self, endpoint: str, rank: int) -> None:
        """The rank's publisher began a new life."""
        self.ledger(endpoint, rank).reset()
        self._drop_unused_indexes()

    def apply(self, endpoint: str, rank: int, events: Iterable[Event]) -> None:
        """Take a publisher's events, in order. Cost: O(blocks)."""
        self.ledger(endpoint, rank).apply_batch(events)

    def ledger(self, endpoint: str, rank: int) -> RankLedger:
        """The books of one rank.

        Raises:
            UnknownEndpointError: no such endpoint or rank.
        """
        try:
            return self._endpoints[endpoint][rank]
        except KeyError:
            raise UnknownEndpointError(f"no endpoint {endpoint!r} with rank {rank} is registered") from None

    def set_capacity(self, endpoint: str, tier: TierId, n_blocks: int | None) -> int:
        """Bound one tier of every rank of the endpoint; returns as `RankLedger.set_capacity`."""
        return sum(ledger.set_capacity(tier, n_blocks) for ledger in self._endpoints[endpoint].values())

    def set_shared_capacity(self, tier: TierId, n_blocks: int | None) -> int:
        """Bound a tier that belongs to no server; as `set_capacity`."""
        return sum(shared.set_capacity(tier, n_blocks) for shared in self._shared.values())

    def routed(self, endpoint: str, prefix: Prefix, match: PrefixMatch | None = None) -> None:
        """The prompt was sent to the endpoint: renew its blocks' recency, and learn from it where nothing else tells.

        Args:
            endpoint: where it was sent; an unknown one is ignored.
            prefix: its block keys.
            match: what the endpoint holds of it; ranks that hold nothing are then left alone. None: every rank is told.
        Cost: O(blocks) a rank told.
        """
        ledgers = self._endpoints.get(endpoint, {})
        holding = ledgers.keys() if match is None else match.rank_usable_tokens.keys()
        for rank, ledger in ledgers.items():
            if ledger.block_size is not None and (rank in holding or ledger.learns_from_routing):
                ledger.routed(prefix.keys(ledger.block_size))

    def ledgers(self, endpoint: str) -> Iterable[RankLedger]:
        """The books of every rank of the endpoint."""
        return self._endpoints[endpoint].values()

    def dump(self, endpoint: str, rank: int, *, now: float) -> SavedBooks:
        """One rank's books, to be saved; `now` in monotonic seconds. Cost: O(hashes + residencies)."""
        return self.ledger(endpoint, rank).dump(now=now)

    def load(self, endpoint: str, rank: int, saved: SavedBooks, *, now: float) -> None:
        """Give a rank with empty books those that were saved. Cost: as `dump`."""
        self.ledger(endpoint, rank).load(saved, now=now)

    def dump_shared(self, space: str) -> tuple[SavedShared, ...]:
        """What a space's shared tiers hold, to be saved after the ranks that store there. Cost: O(residencies)."""
        return self._shared_in(space).dump()

    def load_shared(self, space: str, saved: Iterable[SavedShared]) -> None:
        """Give a space's shared tiers what was saved of them."""
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
        """Block keys of a prompt as this index has them; the arguments are those of `Prefix`."""
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
        """Block keys of a prompt of which only the bytes are known: tiers that are learned from routing know them."""
        return Prefix(
            words_of(text),
            lora=lora,
            salt=salt,
            namespace=Namespace.BYTES,
            seed=self.seed,
            make_keys=self._core.prefix_keys,
        )

    @property
    def learns_from_routing(self) -> bool:
        """Whether any endpoint's fastest tier is known from routing alone."""
        return any(
            ledger.learns_from_routing for ledgers in self._endpoints.values() for ledger in ledgers.values()
        )

    def match(self, prefix: Prefix) -> dict[str, PrefixMatch]:
        """What each endpoint holds of the prompt; endpoints whose block size is not known yet are absent.

        Cost: one hash pass and one index walk a distinct block size, then O(1) an endpoint; the first call after a
        change of where blocks are costs O(endpoints) more.
        """
        if self._plan is None:
            self._drop_unused_indexes()
            self._plan = MatchPlan(self._planned_ranks(), tiers=self.tiers.names, index_for=self._index_for)
        return self._plan.match(prefix)

    def sweep(self, *, n_keys: int) -> int:
        """Free memory of up to `n_keys` keys of each block size that nobody holds any more; returns how many are left.

        Cost: O(n_keys). Without it the memory comes back with later events.
        """
        return sum(index.sweep(n_keys) for index in self._indexes.values())

    def stats(self) -> IndexStatistics:
        """Sizes and memory of the indexes of all block sizes. Cost: O(endpoints)."""
        rows = [index.stats() for index in self._indexes.values()]
        return IndexStatistics(
            keys=sum(row.keys for row in rows),
            residencies=sum(row.residencies for row in rows),
            unswept=sum(row.unswept for row in rows),
            size_bytes=sum(row.size_bytes for row in rows),
        )

    def occupancy(self, endpoint: str) -> list[TierOccupancy]:
        """Blocks of the endpoint by tier, configured tiers first, then unknown media that hold something."""
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

        return self._core.ledger(
            tiers=self.tiers,
            seed=self.seed,
            make_keys=self._core.prefix_keys,
            index_for=self._index_for,
            shared=self._shared_of(endpoint),
            on_source=changed,
            on_layout=self._forget_plan,
        )

    def _planned_ranks(self) -> Iterator[PlannedRank]:
        for endpoint, ledgers in self._endpoints.items():
            for rank, ledger in ledgers.items():
                layout, size = ledger.layout(), ledger.block_size
                if layout is not None and size is not None:
                    yield PlannedRank(endpoint, rank, size, layout)

    def _forget_plan(self) -> None:
        self._plan = None

    def _shared_of(self, endpoint: str) -> SharedHolders:
        return self._shared_in(self._spaces[endpoint])

    def _shared_in(self, space: str) -> SharedHolders:
        if space not in self._shared:
            self._shared[space] = SharedHolders(self.tiers, self._index_for)
        return self._shared[space]

    def _drop_unused_indexes(self) -> None:
        """A publisher may tell another block size again and again: indexes nobody uses do not stay."""
        used = {ledger.block_size for ledgers in self._endpoints.values() for ledger in ledgers.values()}
        for shared in self._shared.values():
            shared.close_empty(but=used)
            used |= shared.block_sizes
        for size in self._indexes.keys() - used:
            del self._indexes[size]

    def _index_for(self, block_size: int) -> BlockIndex:
        if block_size not in self._indexes:
            self._indexes[block_size] = self._core.make_index()
        return self._indexes[block_size]


def keys_of(values: Iterable[int]) -> array[int]:
    """Block keys as the index takes them; signed 64-bit integers are read modulo 2**64."""
    return array("Q", [value & (1 << 64) - 1 for value in values])
