"""Long event batches are applied in slices; everything else goes on between them."""

from __future__ import annotations

import asyncio
from array import array

import pytest

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.events.model import Batch, BlockStored, EngineHash
from kvatlas.events.stream import Trust
from kvatlas.events.subscription import Subscription
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.rank import MAX_ADAPTERS, Rank
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.tiers import TierId
from support.fleets import NOWHERE, make_fleet
from support.payloads import payload
from support.waiting import until

GPU = TierId(0)
BLOCK = 4
DECODE = index_core().decode_batch


def rank_of(fleet: Fleet, name: str) -> Rank:
    fleet.add(
        name, EndpointAddresses(HostPort("10.0.0.1", 8000), None, (RankAddresses(0, NOWHERE, None),)), {}
    )
    endpoint = fleet.get(name)
    assert endpoint is not None
    return endpoint.ranks[0]


def chain(first: int, n_blocks: int) -> list[BlockStored]:
    """Return a prompt in events of one block each."""
    return [
        BlockStored(
            (EngineHash(number),), EngineHash(number - 1) if number > first else None, array("I", [number] * BLOCK), BLOCK
        )
        for number in range(first, first + n_blocks)
    ]  # fmt: skip


def live(rank: Rank, *batches: Batch) -> Subscription:
    """Deliver batches to the rank's subscription."""
    subscription = rank.subscription
    assert subscription is not None
    for batch in batches:
        last = subscription.stream.last_seq
        subscription.live(0 if last is None else last + 1, batch, topic=b"")
    return subscription


def orphans(n_blocks: int) -> Batch:
    """Return a batch that takes many slices: blocks of which the ones before come last."""
    return DECODE(payload(reversed(chain(1, n_blocks))))


async def test_others_are_served_while_a_long_batch_is_applied() -> None:
    async with make_fleet() as fleet:
        slow, other = rank_of(fleet, "slow"), rank_of(fleet, "other")
        first = live(slow, orphans(5000))
        second = live(other, DECODE(payload(chain(1, 3))))
        assert (other.ledger.residencies(GPU), second.is_applying, first.is_applying) == (3, False, True)
        await until(lambda: not first.is_applying)
        assert slow.ledger.residencies(GPU) == 5000


async def test_batches_of_a_publisher_keep_their_order() -> None:
    async with make_fleet() as fleet:
        rank = rank_of(fleet, "a")
        subscription = live(rank, orphans(3000), DECODE(payload(chain(10_000, 2))))
        assert (subscription.is_amid_batch, rank.awaits_history(waited_s=0)) == (True, True)
        assert rank.ledger.hashes.get(EngineHash(10_000)) is None
        await until(lambda: not subscription.is_applying)
        assert rank.ledger.residencies(GPU) == 3002


async def test_index_is_consistent_between_two_slices() -> None:
    async with make_fleet() as fleet:
        rank = rank_of(fleet, "a")
        subscription = live(rank, DECODE(payload(chain(1, 40_000))))
        held: list[int] = []
        while subscription.is_applying:
            held.append(rank.ledger.residencies(GPU))
            keys = rank.ledger.hashes.table.chain(EngineHash(held[-1]), 40_000)
            assert len(keys) == held[-1]
            assert all(rank.ledger.has(key) for key in keys[::1000])
            await asyncio.sleep(0)
        assert 0 < held[0] < 40_000
        assert rank.ledger.residencies(GPU) == 40_000


@pytest.mark.parametrize("end", ["reset", "remove"])
async def test_rest_is_dropped_when_the_publisher_goes(end: str) -> None:
    async with make_fleet() as fleet:
        rank, other = rank_of(fleet, "a"), rank_of(fleet, "b")
        first = live(rank, orphans(5000), DECODE(payload(chain(10_000, 2))))
        second = live(other, orphans(2000))
        assert first.is_amid_batch
        if end == "reset":
            first.restarted("test")
        else:
            await fleet.remove("a")
        assert not first.is_applying
        await until(lambda: not second.is_applying)
        assert (rank.ledger.residencies(GPU), other.ledger.residencies(GPU)) == (0, 2000)


async def test_damaged_batch_lowers_the_trust_unless_its_events_are_of_a_new_kind() -> None:
    async with make_fleet() as fleet:
        rank = rank_of(fleet, "a")
        messages = (b"\x93\x01\x91\x91\xa1X\x00", b"\x93\x01\x91\x91\xc0\x00")
        trusts = [live(rank, DECODE(message)).trust for message in messages]
        assert trusts == [Trust.LIVE, Trust.PARTIAL]


async def test_message_that_takes_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvatlas.fleet.rank.MAX_MESSAGE_COST", 20_000)
    async with make_fleet() as fleet:
        rank = rank_of(fleet, "a")
        subscription = live(rank, orphans(5000), DECODE(payload(chain(10_000, 2))))
        await until(lambda: not subscription.is_applying)
        assert (rank.ledger.residencies(GPU), subscription.trust) == (2, Trust.PARTIAL)


async def test_adapters_are_bounded() -> None:
    async with make_fleet() as fleet:
        rank = rank_of(fleet, "a")
        for first in range(0, 400, 100):
            stored = [
                BlockStored((EngineHash(n),), None, array("I", [1] * BLOCK), BLOCK, lora_name=f"adapter {n}")
                for n in range(first, first + 100)
            ]
            for _ in rank.apply(DECODE(payload(stored)), live=True) or ():
                pass
        assert len(rank.adapters) == MAX_ADAPTERS
