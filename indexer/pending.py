"""Copies of hashes whose key is not known yet."""

from __future__ import annotations

from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from ..events.model import EngineHash
from .columns import Column, Saved, check_columns
from .hash_keys import hash_column, hash_key, hash_of
from .holders import Place
from .steps import PIECE
from .tiers import TierId

MAX_PENDING_HASHES = 65_536
"""Hashes kept per publisher; beyond that the oldest are dropped."""


MAX_COPIES = 65_536
"""Copies of a hash that a snapshot may name: engines have one for each running request with the block, and each is stored."""


class Claim(NamedTuple):
    """Copies of a hash at a place; `tail`: the hash stands for its whole offload chunk."""

    place: Place
    tail: bool


class PendingColumns(Saved, frozen=True):
    """Copies whose key is not known, one row per hash and claim, in the order in which they are dropped.

    Attributes:
        hashes: u64.
        claims: u32, positions in `kinds`.
        copies: u64.
        kinds: the different claims.
    """

    hashes: Column
    claims: Column
    copies: Column
    kinds: tuple[Claim, ...]

    def __post_init__(self) -> None:
        """Raise ValueError for wrong columns, unknown claims, and rows without copies or with too many."""
        check_columns(hashes=(self.hashes, "Q"), claims=(self.claims, "I"), copies=(self.copies, "Q"))
        if max(self.claims, default=-1) >= len(self.kinds) or 0 in self.copies:
            raise ValueError(f"pending copies name a claim beyond the {len(self.kinds)} given, or are 0")
        if max(self.copies, default=0) > MAX_COPIES:
            raise ValueError(f"pending copies of a hash are {max(self.copies)}, want at most {MAX_COPIES}")


class Pending:
    """Claims that wait for a key, by hash."""

    def __init__(self) -> None:
        self._claims: OrderedDict[bytes, dict[Claim, int]] = OrderedDict()
        self._in_tier: defaultdict[TierId, set[bytes]] = defaultdict(set)
        """The hashes with claims in each tier."""

    def __len__(self) -> int:
        return len(self._claims)

    @property
    def hashes(self) -> array[int]:
        """All hashes, in the order in which they are dropped."""
        return hash_column(self._claims)

    def add(self, engine_hash: EngineHash, claim: Claim) -> int:
        """Add one copy; return the number of hashes dropped for it."""
        key = hash_key(engine_hash)
        claims = self._claims.setdefault(key, {})
        if claim not in claims:
            claims[claim] = 0
            self._in_tier[claim.place.tier].add(key)
        claims[claim] = min(claims[claim] + 1, MAX_COPIES)
        if len(self._claims) <= MAX_PENDING_HASHES:
            return 0
        self._forget(*self._claims.popitem(last=False))
        return 1

    def remove(self, engine_hash: EngineHash, place: Place) -> bool:
        """Remove one copy; return whether there was one."""
        key = hash_key(engine_hash)
        claims = self._claims.get(key, {})
        claim = next((claim for tail in (False, True) if (claim := Claim(place, tail)) in claims), None)
        if claim is None:
            return False
        claims[claim] -= 1
        if not claims[claim]:
            del claims[claim]
            if all(other.place.tier != place.tier for other in claims):
                self._in_tier[place.tier].discard(key)
        if not claims:
            del self._claims[key]
        return True

    def pop(self, engine_hash: EngineHash) -> dict[Claim, int]:
        """Remove and return the hash's claims with their copies."""
        key = hash_key(engine_hash)
        return self._forget(key, self._claims.pop(key, {}))

    def drop(self, tier: TierId) -> Iterator[int]:
        """Drop all claims on an emptied tier, and yield the hashes of each `PIECE`."""
        while keys := self._in_tier.get(tier):
            n_dropped = min(PIECE, len(keys))
            for _ in range(n_dropped):
                key = keys.pop()
                claims = {claim: n for claim, n in self._claims[key].items() if claim.place.tier != tier}
                if claims:
                    self._claims[key] = claims
                else:
                    del self._claims[key]
            yield n_dropped

    def _forget(self, key: bytes, claims: dict[Claim, int]) -> dict[Claim, int]:
        for claim in claims:
            self._in_tier[claim.place.tier].discard(key)
        return claims

    def dump(self) -> PendingColumns:
        """Return all claims, to be saved."""
        kinds: dict[Claim, int] = {}
        rows = [
            (hash_of(key), kinds.setdefault(claim, len(kinds)), copies)
            for key, claims in self._claims.items()
            for claim, copies in claims.items()
        ]
        hashes, numbers, copies = zip(*rows, strict=True) if rows else ((), (), ())
        return PendingColumns(
            hashes=array("Q", hashes), claims=array("I", numbers), copies=array("Q", copies), kinds=(*kinds,)
        )

    def load(self, saved: PendingColumns) -> None:
        """Load a dump."""
        for engine_hash, number, copies in zip(saved.hashes, saved.claims, saved.copies, strict=True):
            key, claim = hash_key(EngineHash(engine_hash)), saved.kinds[number]
            self._claims.setdefault(key, {})[claim] = copies
            self._in_tier[claim.place.tier].add(key)

    def clear(self) -> None:
        """Drop all claims."""
        self._claims.clear()
        self._in_tier.clear()
