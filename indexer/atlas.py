"""The global index: every endpoint's blocks in every tier, and what each endpoint holds of a prompt."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..events.model import Event
from .errors import UnknownEndpointError
from .index import BlockIndex
from .ledger import RankLedger
from .match import PrefixMatch, RankMatch, TierRun, measure
from .prefix import Prefix
from .tiers import TierId, TierTable


@dataclass(frozen=True, slots=True)
class TierOccupancy:
    """Blocks one endpoint holds in one tier, over all its ranks."""

    tier: str
    residencies: int
    capacity: int | None
    chunk_blocks: int | None


class Atlas:
    """Where every block is.

    Args:
        tiers: configured tiers, fastest first.
        seed: seed of the block keys.
        make_index: makes the block index for one block size.
    """

    def __init__(self, *, tiers: TierTable, seed: int, make_index: Callable[[], BlockIndex]) -> None:
        self.tiers = tiers
        self.seed = seed
        self._make_index = make_index
        self._indexes: dict[int, BlockIndex] = {}
        self._endpoints: dict[str, dict[int, RankLedger]] = {}

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Block sizes that any endpoint's events have shown."""
        return tuple(self._indexes)

    def add(self, endpoint: str, *, n_ranks: int = 1) -> None:
        """Register an endpoint with empty books; one that is registered already is emptied."""
        self.remove(endpoint)
        self._endpoints[endpoint] = {rank: self._new_ledger() for rank in range(n_ranks)}

    def remove(self, endpoint: str) -> None:
        """Forget the endpoint and all it holds; unknown names are ignored. Cost: O(its residencies)."""
        for ledger in self._endpoints.pop(endpoint, {}).values():
            ledger.reset()

    def reset(self, endpoint: str, rank: int) -> None:
        """The rank's publisher began a new life."""
        self.ledger(endpoint, rank).reset()

    def apply(self, endpoint: str, rank: int, events: Iterable[Event]) -> None:
        """Take a publisher's events, in order. Cost: O(blocks)."""
        ledger = self.ledger(endpoint, rank)
        for event in events:
            ledger.apply(event)

    def ledger(self, endpoint: str, rank: int) -> RankLedger:
        """The books of one rank.

        Raises:
            UnknownEndpointError: no such endpoint or rank.
        """
        try:
            return self._endpoints[endpoint][rank]
        except KeyError:
            raise UnknownEndpointError(f"no endpoint {endpoint!r} with rank {rank} is registered") from None

    def set_capacity(self, endpoint: str, tier: TierId, n_blocks: int | None) -> None:
        """Bound one tier of every rank of the endpoint."""
        for ledger in self._endpoints[endpoint].values():
            ledger.set_capacity(tier, n_blocks)

    def touch(self, endpoint: str, prefix: Prefix) -> None:
        """The endpoint is about to use the prompt's blocks: renew their recency."""
        for ledger in self._endpoints.get(endpoint, {}).values():
            if ledger.block_size is not None:
                ledger.touch(prefix.keys(ledger.block_size))

    def match(self, prefix: Prefix) -> dict[str, PrefixMatch]:
        """What each endpoint holds of the prompt; endpoints whose block size is not known yet are absent.

        Cost: one hash pass and one index walk a distinct block size, then O(runs * tiers) an endpoint.
        """
        presence = {size: index.runs(prefix.keys(size)) for size, index in self._indexes.items()}
        names = self.tiers.names
        matches: dict[str, PrefixMatch] = {}
        for endpoint, ledgers in self._endpoints.items():
            ranks: dict[int, tuple[RankMatch, int]] = {}
            for rank, ledger in ledgers.items():
                layout, size = ledger.layout(), ledger.block_size
                if layout is not None and size is not None:
                    ranks[rank] = (
                        measure(presence[size], layout, n_tokens=prefix.n_tokens, block_size=size),
                        size,
                    )
            if ranks:
                matches[endpoint] = _best(ranks, prefix, names)
        return matches

    def occupancy(self, endpoint: str) -> list[TierOccupancy]:
        """Blocks of the endpoint by tier, configured tiers first, then unknown media that hold something."""
        ledgers = self._endpoints[endpoint].values()
        rows: list[TierOccupancy] = []
        for tier, spec in enumerate(self.tiers.specs):
            residencies = sum(ledger.residencies(TierId(tier)) for ledger in ledgers)
            if spec.configured or residencies:
                capacities = [ledger.capacity(TierId(tier)) for ledger in ledgers]
                bounded = [n_blocks for n_blocks in capacities if n_blocks is not None]
                chunks = {chunk for ledger in ledgers if (chunk := ledger.chunk_blocks(TierId(tier)))}
                rows.append(
                    TierOccupancy(
                        spec.name,
                        residencies,
                        sum(bounded) if len(bounded) == len(capacities) else None,
                        min(chunks, default=None),
                    )
                )
        return rows

    def _new_ledger(self) -> RankLedger:
        capacities = {
            TierId(t): spec.capacity for t, spec in enumerate(self.tiers.specs) if spec.capacity is not None
        }
        return RankLedger(tiers=self.tiers, seed=self.seed, index_for=self._index_for, capacities=capacities)

    def _index_for(self, block_size: int) -> BlockIndex:
        if block_size not in self._indexes:
            self._indexes[block_size] = self._make_index()
        return self._indexes[block_size]


def _best(ranks: dict[int, tuple[RankMatch, int]], prefix: Prefix, names: tuple[str, ...]) -> PrefixMatch:
    rank = max(ranks, key=lambda r: (ranks[r][0].usable_blocks, -r))
    best, size = ranks[rank]
    return PrefixMatch(
        block_size=size,
        n_blocks=len(prefix.keys(size)),
        tier_blocks=dict(zip(names, best.tier_blocks, strict=True)),
        runs=tuple(TierRun(names[tier], n_blocks) for tier, n_blocks in best.runs),
        usable_blocks=best.usable_blocks,
        rank=rank,
        rank_usable_blocks={r: match.usable_blocks for r, (match, _) in ranks.items()},
    )


def keys_of(values: Iterable[int]) -> array[int]:
    """Block keys as the index takes them; signed 64-bit integers are read modulo 2**64."""
    return array("Q", [value & (1 << 64) - 1 for value in values])
