"""Offload chunks of one publisher: blocks that move together, and chunks stored by their last block (tail) alone."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import gcd
from typing import Annotated

from msgspec import Meta

from ..events.model import EngineHash
from .columns import Column, Saved, check_columns
from .hashmap import HashMap
from .holders import Place
from .keys import BlockKey
from .tiers import TierId, TierTable

MAX_TAILS = 65_536
"""Tails kept per place. The chunk of a dropped tail is removed block by block, if at all."""


class TailColumns(Saved, frozen=True):
    """Chunks of one place that were stored by their tail, in the order in which they are dropped.

    Attributes:
        hashes: u64, the tails.
        copies: u64, how often each was stored.
    """

    place: Place
    hashes: Column
    copies: Column

    def __post_init__(self) -> None:
        """Raise ValueError for wrong columns, and for tails without copies."""
        check_columns(hashes=(self.hashes, "Q"), copies=(self.copies, "Q"))
        if 0 in self.copies:
            raise ValueError("a chunk tail has 0 copies")


class SavedChunks(Saved, frozen=True):
    """Learned chunk sizes by tier, and tails."""

    sizes: dict[TierId, Annotated[int, Meta(ge=1, le=2**32)]]
    tails: tuple[TailColumns, ...]


class Chunks:
    """Chunk sizes by tier, configured or learned, and the chunks stored by their tail alone.

    Chunks are aligned, so the number of blocks up to a chunk's end is a multiple of its size. The size is the greatest
    common divisor of all ends seen. It only shrinks; blocks stored at a larger size are then stored again.

    Args:
        tiers: tier table with the configured sizes.
        hashes: the publisher's hashes, to find the blocks before a tail.
        on_change: called when a size changes, and when a place gets its first tail.
    """

    def __init__(self, tiers: TierTable, hashes: HashMap, *, on_change: Callable[[], None]) -> None:
        self._tiers, self._hashes, self._on_change = tiers, hashes, on_change
        self._learned: dict[TierId, int] = {}
        self._tails: dict[Place, dict[EngineHash, int]] = {}

    def size(self, tier: TierId) -> int | None:
        """Return the blocks that move together, None if neither configured nor learned."""
        return self._tiers.specs[tier].chunk_blocks or self._learned.get(tier)

    def corrects(self, tier: TierId, depth: int) -> bool:
        """Return whether a chunk that ends with block number `depth` changes the tier's size. Cost: O(1)."""
        old = self._learned.get(tier, 0)
        return not self._tiers.specs[tier].chunk_blocks and gcd(old, depth + 1) != old

    def learn(self, tier: TierId, depth: int) -> None:
        """Learn from a chunk that ends with block number `depth`."""
        if self.corrects(tier, depth):
            self._learned[tier] = gcd(self._learned.get(tier, 0), depth + 1)
            self._on_change()

    def add_tail(self, place: Place, tail: EngineHash) -> None:
        """Record a store that named only `tail`. Once chunks are known to be single blocks, nothing is kept."""
        if self.size(place.tier) != 1:
            if place not in self._tails:
                self._tails[place] = {}
                self._on_change()
            tails = self._tails[place]
            tails[tail] = tails.get(tail, 0) + 1
            if len(tails) > MAX_TAILS:
                del tails[next(iter(tails))]

    def has_tails(self, place: Place) -> bool:
        """Return whether chunks were stored there by their tail."""
        return place in self._tails

    def drop_tail(self, place: Place, tail: EngineHash) -> bool:
        """Handle a removal of `tail`; return whether it stands for its whole chunk."""
        tails = self._tails.get(place, {})
        if tail not in tails:
            return False
        tails[tail] -= 1
        if not tails[tail]:
            del tails[tail]
        return True

    def tails(self, tier: TierId) -> list[tuple[Place, EngineHash, int]]:
        """Return (place, tail, copies) of all tails of a tier."""
        return [
            (place, tail, copies)
            for place, tails in self._tails.items()
            if place.tier == tier
            for tail, copies in tails.items()
        ]

    def keys(self, tier: TierId, tail: EngineHash) -> list[BlockKey]:
        """Return the known keys of the chunk that ends with `tail`, in prompt order."""
        chain = self._hashes.chain(tail)
        n_blocks = self.size(tier) or 1
        return [known.key for known, _ in zip(chain, range(n_blocks), strict=False)][::-1]

    def dump(self) -> SavedChunks:
        """Return everything learned, to be saved."""
        return SavedChunks(
            sizes=self._learned.copy(),
            tails=tuple(
                TailColumns(place=place, hashes=array("Q", tails), copies=array("Q", tails.values()))
                for place, tails in self._tails.items()
            ),
        )

    def load(self, saved: SavedChunks) -> None:
        """Load a dump."""
        self._learned.update(saved.sizes)
        for tails in saved.tails:
            self._tails[tails.place] = dict(zip(map(EngineHash, tails.hashes), tails.copies, strict=True))

    def clear(self, tier: TierId | None = None) -> None:
        """Drop the tails of an emptied tier; with None drop everything learned."""
        if tier is None:
            self._learned.clear()
            self._on_change()
        for place in [place for place in self._tails if tier in (None, place.tier)]:
            del self._tails[place]
