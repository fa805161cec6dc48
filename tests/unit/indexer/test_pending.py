"""Claims that wait for the key of their hash."""

from __future__ import annotations

from array import array

import pytest

from kvatlas.events.model import EngineHash
from kvatlas.indexer.holders import Place
from kvatlas.indexer.pending import MAX_COPIES, Claim, Pending, PendingColumns
from kvatlas.indexer.tiers import TierId

HASH = EngineHash(7)
GPU, CPU = Place(TierId(0), 0), Place(TierId(1), 0)


def pending(*claims: Claim) -> Pending:
    made = Pending()
    for claim in claims:
        made.add(HASH, claim)
    return made


def test_last_copy_ends_the_claim_on_its_tier_and_not_on_others() -> None:
    claims = pending(Claim(GPU, False), Claim(GPU, False), Claim(CPU, False))

    assert [claims.remove(HASH, GPU) for _ in range(3)] == [True, True, False]
    assert list(claims.drop(GPU.tier)) == []
    assert list(claims.drop(CPU.tier)) == [1]
    assert len(claims) == 0


def test_tier_is_claimed_until_its_last_group_is_removed() -> None:
    claims = pending(Claim(GPU, False), Claim(Place(GPU.tier, 1), False))

    assert claims.remove(HASH, GPU)
    assert list(claims.drop(GPU.tier)) == [1]


def test_hash_is_forgotten_with_its_last_claim() -> None:
    claims = pending(Claim(GPU, True))

    assert claims.remove(HASH, GPU)
    assert (len(claims), claims.pop(HASH)) == (0, {})
    assert not claims.remove(HASH, GPU)


@pytest.mark.parametrize("copies", [0, MAX_COPIES + 1])
def test_no_snapshot_names_copies_that_no_engine_has(copies: int) -> None:
    with pytest.raises(ValueError, match="pending copies"):
        PendingColumns(array("Q", [7]), array("I", [0]), array("Q", [copies]), (Claim(GPU, False),))
