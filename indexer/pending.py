"""Copies of hashes whose key is not known yet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from ..events.model import EngineHash
from .holders import Place
from .tiers import TierId

MAX_PENDING_HASHES = 65_536
"""Hashes remembered per publisher; the oldest give way."""


class Claim(NamedTuple):
    """Copies of a hash at a place; `tail`: the hash stands for its whole offload chunk."""

    place: Place
    tail: bool


class Pending:
    """Hash -> claims that wait for its key."""

    def __init__(self) -> None:
        self._claims: OrderedDict[EngineHash, dict[Claim, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._claims)

    def __iter__(self) -> Iterator[EngineHash]:
        return iter(self._claims)

    def add(self, engine_hash: EngineHash, claim: Claim) -> int:
        """One more copy; returns the hashes that had to be forgotten for it."""
        claims = self._claims.setdefault(engine_hash, {})
        claims[claim] = claims.get(claim, 0) + 1
        if len(self._claims) <= MAX_PENDING_HASHES:
            return 0
        self._claims.popitem(last=False)
        return 1

    def remove(self, engine_hash: EngineHash, place: Place) -> bool:
        """One copy less; returns whether there was one."""
        claims = self._claims.get(engine_hash, {})
        claim = next((claim for claim in claims if claim.place == place), None)
        if claim is None:
            return False
        claims[claim] -= 1
        if not claims[claim]:
            del claims[claim]
        if not claims:
            del self._claims[engine_hash]
        return True

    def pop(self, engine_hash: EngineHash) -> dict[Claim, int]:
        """The hash's claims with their copies, which are forgotten here."""
        return self._claims.pop(engine_hash, {})

    def drop(self, tier: TierId) -> None:
        """Forget every claim on a tier that was emptied."""
        for engine_hash, claims in list(self._claims.items()):
            for claim in [claim for claim in claims if claim.place.tier == tier]:
                del claims[claim]
            if not claims:
                del self._claims[engine_hash]

    def clear(self) -> None:
        """Forget everything."""
        self._claims.clear()
