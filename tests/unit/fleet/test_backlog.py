"""Long event batches are applied in slices; everything else goes on between them."""

from __future__ import annotations

import asyncio
from array import array

import pytest

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.events.model import Batch, BlockStored, EngineHash, EventBatch
from kvatlas.events.stream import Trust
from kvatlas.fleet.backlog import MAX_MESSAGE_COST, MAX_WAITING_BYTES, Backlog, Turns
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.rank import MAX_ADAPTERS, Rank
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.steps import Steps
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


def orphans(n_blocks: int) -> Batch:
    """Return a batch that takes many slices: blocks of which the ones before come last."""
    return DECODE(payload(reversed(chain(1, n_blocks))))


async def test_others_are_served_while_a_long_batch_is_applied() -> None:
    async with make_fleet() as fleet:
        slow, other = rank_of(fleet, "slow"), rank_of(fleet, "other")
        slow.apply(orphans(5000), live=True)
        assert slow.backlog.is_busy
        other.apply(DECODE(payload(chain(1, 3))), live=True)
        assert (other.ledger.residencies(GPU), other.backlog.is_busy, slow.backlog.is_busy) == (
            3,
            False,
            True,
        )
        await until(lambda: not slow.backlog.is_busy)
        assert slow.ledger.residencies(GPU) == 5000


async def test_batches_of_a_publisher_keep_their_order() -> None:
    async with make_fleet() as fleet:
        rank = rank_of(fleet, "a")
        rank.apply(orphans(3000), live=True)
        removal = payload(chain(10_000, 2))
        rank.apply(DECODE(removal), live=True)
        assert rank.backlog.is_busy
        assert rank.ledger.hashes.get(EngineHash(10_000)) is None
        await until(lambda: not rank.backlog.is_busy)
        assert rank.ledger.residencies(GPU) == 3002


async def test_index_is_consistent_between_two_slices() -> None:
    async with make_fleet() as fleet:
        rank = rank_of(fleet, "a")
        rank.apply(DECODE(payload(chain(1, 40_000))), live=True)
        held: list[int] = []
        while rank.backlog.is_busy:
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
        rank.apply(orphans(5000), live=True)
        rank.apply(DECODE(payload(chain(10_000, 2))), live=True)
        other.apply(orphans(2000), live=True)
        if end == "reset":
            rank.reset("test")
        else:
            await fleet.remove("a")
        assert not rank.backlog.is_busy
        await until(lambda: not other.backlog.is_busy)
        assert (rank.ledger.residencies(GPU), other.ledger.residencies(GPU)) == (0, 2000)


async def test_damaged_batch_lowers_the_trust_unless_its_events_are_of_a_new_kind() -> None:
    async with make_fleet() as fleet:
        rank = rank_of(fleet, "a")
        subscription = rank.subscription
        assert subscription is not None
        subscription.connected()
        unknown = b"\x93\x01\x91\x91\xa1X\x00"
        trusts: list[Trust] = []
        for seq, message in enumerate((unknown, b"\x93\x01\x91\x91\xc0\x00")):
            subscription.live(seq, DECODE(message), topic=b"")
            trusts.append(subscription.trust)
        assert trusts == [Trust.LIVE, Trust.PARTIAL]


async def test_adapters_are_bounded() -> None:
    async with make_fleet() as fleet:
        rank = rank_of(fleet, "a")
        for first in range(0, 400, 100):
            stored = [
                BlockStored((EngineHash(n),), None, array("I", [1] * BLOCK), BLOCK, lora_name=f"adapter {n}")
                for n in range(first, first + 100)
            ]
            rank.apply(DECODE(payload(stored)), live=True)
        await until(lambda: not rank.backlog.is_busy)
        assert len(rank.adapters) == MAX_ADAPTERS


class Applied:
    """A sink of batches that names what was dropped."""

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self.done: list[float] = []
        self.dropped: list[str] = []

    def apply(self, batch: Batch) -> Steps:
        for _ in range(10):
            yield self.cost
        self.done.append(batch.timestamp)


async def test_waiting_batches_are_bounded() -> None:
    sink = Applied(cost=5000)
    backlog = Backlog(Turns(), apply=sink.apply, drop=sink.dropped.append)
    size = MAX_WAITING_BYTES // 2
    for number in range(5):
        backlog.add(EventBatch(number, (), size_bytes=size))
    assert sink.dropped == ["backlog_full"] * 2
    await until(lambda: not backlog.is_busy)
    assert sink.done == [0, 1, 2]


async def test_batch_that_takes_too_long_is_cut() -> None:
    sink = Applied(cost=MAX_MESSAGE_COST // 9)
    backlog = Backlog(Turns(), apply=sink.apply, drop=sink.dropped.append)
    backlog.add(EventBatch(1, ()))
    await until(lambda: not backlog.is_busy)
    sink.cost = MAX_MESSAGE_COST // 10
    backlog.add(EventBatch(2, ()))
    await until(lambda: not backlog.is_busy)
    assert (sink.dropped, sink.done) == (["too_slow"], [2])


async def test_error_in_one_batch_does_not_stop_the_others() -> None:
    broken, sink = Applied(cost=5000), Applied(cost=5000)
    turns = Turns()

    def failing(batch: Batch) -> Steps:
        yield 5000
        raise RuntimeError(f"batch {batch.timestamp}")

    first = Backlog(turns, apply=failing, drop=broken.dropped.append)
    second = Backlog(turns, apply=sink.apply, drop=sink.dropped.append)
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    for each in (first, first, second):
        each.add(EventBatch(len(errors), ()))
    await until(lambda: not first.is_busy and not second.is_busy)
    assert (len(errors), sink.done) == (2, [0.0])
