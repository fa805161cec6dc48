"""Offload chunks of one publisher: blocks that move together, and chunks stored by their last block (tail) alone."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import gcd
from typing import Annotated

from msgspec import Meta

from ..events.model import EngineHash
from .columns import Column, Saved, check_columns
from .hash_keys import hash_column, hash_key, hash_of
from .hashmap import HashMap
from .holders import Place
from .keys import BlockKey
from .tiers import TierId, TierTable

MAX_TAILS = 65_536
"""Tails kept per publisher. The chunk of a dropped tail is removed block by block, if at all."""

MAX_CHUNK_BLOCKS = 256
"""Blocks that one tail stands for at most unless configured. The first tail of a long prompt would stand for all of it,
and a message may have tails by the thousand; engines and their connectors move 16 to 256 tokens at once."""


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

    sizes: dict[TierId, Annotated[int, Meta(ge=1, lt=2**32)]]
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
        self._tails: dict[Place, dict[bytes, int]] = {}
        self._n_tails = 0

    def size(self, tier: TierId) -> int | None:
        """Return the blocks that move together, None if neither configured nor learned."""
        return self._tiers.specs[tier].chunk_blocks or self._learned.get(tier)

    def n_blocks(self, tier: TierId) -> int:
        """Return the blocks that a tail stands for."""
        learned = min(self._learned.get(tier, 1), MAX_CHUNK_BLOCKS)
        return self._tiers.specs[tier].chunk_blocks or learned

    def learn(self, tier: TierId, depth: int) -> bool:
        """Learn from a chunk that ends with block number `depth`; return whether the tier's size changed. Cost: O(1)."""
        old = self._learned.get(tier, 0)
        new = gcd(old, depth + 1)
        if new == old or self._tiers.specs[tier].chunk_blocks:
            return False
        self._learned[tier] = new
        self._on_change()
        return True

    def add_tail(self, place: Place, tail: EngineHash, copies: int) -> bool:
        """Record stores that named only `tail`; return whether its blocks are to be stored.

        They are stored with the first copy and removed with the last. Once chunks are known to be single blocks, nothing
        is kept.
        """
        if self.size(place.tier) == 1:
            return True
        if place not in self._tails:
            self._tails[place] = {}
            self._on_change()
        tails, key = self._tails[place], hash_key(tail)
        if key in tails:
            tails[key] += copies
            return False
        tails[key] = copies
        self._n_tails += 1
        if self._n_tails > MAX_TAILS:
            del tails[next(iter(tails))]
            self._n_tails -= 1
        return True

    def has_tails(self, place: Place) -> bool:
        """Return whether chunks were stored there by their tail."""
        return place in self._tails

    def has_tail(self, place: Place, tail: EngineHash) -> bool:
        """Return whether a chunk was stored there by this tail."""
        return place in self._tails and hash_key(tail) in self._tails[place]

    def drop_tail(self, place: Place, tail: EngineHash) -> bool:
        """Remove one copy of a tail that is there; return whether it was the last."""
        tails, key = self._tails[place], hash_key(tail)
        tails[key] -= 1
        if tails[key]:
            return False
        del tails[key]
        self._n_tails -= 1
        return True

    def tails(self, tier: TierId) -> list[tuple[Place, EngineHash]]:
        """Return (place, tail) of all tails of a tier."""
        return [
            (place, hash_of(key))
            for place, tails in self._tails.items()
            if place.tier == tier
            for key in tails
        ]

    def keys(self, tier: TierId, tail: EngineHash) -> list[BlockKey]:
        """Return the known keys of the chunk that ends with `tail`, in prompt order."""
        return self._hashes.table.chain(tail, self.n_blocks(tier))

    def dump(self) -> SavedChunks:
        """Return everything learned, to be saved."""
        return SavedChunks(
            sizes=self._learned.copy(),
            tails=tuple(
                TailColumns(place=place, hashes=hash_column(tails), copies=array("Q", tails.values()))
                for place, tails in self._tails.items()
            ),
        )

    def load(self, saved: SavedChunks) -> None:
        """Load a dump."""
        self._learned.update(saved.sizes)
        for tails in saved.tails:
            hashes = map(hash_key, map(EngineHash, tails.hashes))
            self._tails[tails.place] = dict(zip(hashes, tails.copies, strict=True))
        self._n_tails = sum(map(len, self._tails.values()))

    def clear(self, tier: TierId | None = None) -> None:
        """Drop the tails of an emptied tier; with None drop everything learned."""
        if tier is None:
            self._learned.clear()
            self._on_change()
        for place in [place for place in self._tails if tier in (None, place.tier)]:
            self._n_tails -= len(self._tails.pop(place))
