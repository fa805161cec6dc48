"""Observed capacity of tiers, and the warning if the configuration differs."""

from __future__ import annotations

from array import array

import pytest

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.events.model import BlockRemoved, BlockStored, EngineHash
from kvatlas.fleet.endpoint import Endpoint
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.observed_capacity import CapacityDrift, observed_capacity
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.tiers import TierId, TierSpec
from support.fleets import NOWHERE, make_fleet
from support.payloads import payload

GPU = TierId(0)


def endpoint_of(fleet: Fleet, *, n_ranks: int = 1) -> Endpoint:
    ranks = tuple(RankAddresses(rank, NOWHERE, None) for rank in range(n_ranks))
    fleet.add("a", EndpointAddresses(HostPort("10.0.0.1", 8000), None, ranks), {})
    endpoint = fleet.get("a")
    assert endpoint is not None
    return endpoint


def fill(endpoint: Endpoint, rank: int, n_blocks: int) -> None:
    """Store and evict blocks ten times, with at most `n_blocks` held."""
    publisher = endpoint.ranks[rank]
    for number in range(n_blocks + 10):
        if number >= n_blocks:
            removed = BlockRemoved((EngineHash(number - n_blocks + 1),))
            publisher.apply(index_core().decode_batch(payload([removed])), live=True)
        stored = BlockStored((EngineHash(number + 1),), None, array("I", [number] * 4), 4)
        publisher.apply(index_core().decode_batch(payload([stored])), live=True)


async def test_capacity_of_an_endpoint_is_that_of_all_its_ranks() -> None:
    async with make_fleet() as fleet:
        endpoint = endpoint_of(fleet, n_ranks=2)
        fill(endpoint, 0, 50)
        before = observed_capacity(endpoint, GPU)
        fill(endpoint, 1, 40)

        after = observed_capacity(endpoint, GPU)

        assert before is None
        assert after is not None
        assert (after.n_blocks, after.spread) == (90, 0.0)
        endpoint.ranks[0].reset("test")
        assert observed_capacity(endpoint, GPU) is None


@pytest.mark.parametrize(
    ("configured", "held", "is_said"),
    [
        pytest.param(100, 50, True, id="too_much"),
        pytest.param(52, 50, False, id="near"),
        pytest.param(20, 50, False, id="hidden_by_the_bound"),
        pytest.param(None, 50, False, id="auto"),
    ],
)
async def test_configured_capacity_that_is_off_is_said_once(
    caplog: pytest.LogCaptureFixture, configured: int | None, held: int, *, is_said: bool
) -> None:
    drift = CapacityDrift()
    async with make_fleet(tiers=(TierSpec("gpu", ("GPU",), capacity=configured),)) as fleet:
        fill(endpoint_of(fleet), 0, held)
        for _ in range(3):
            drift.look(fleet)

    said = [record.getMessage() for record in caplog.records if "when it is full" in record.getMessage()]
    assert len(said) == int(is_said)
    if is_said:
        assert "a rank 0: tier gpu holds 50 blocks when it is full" in said[0]
        assert "lruCapacityPerServer says 100" in said[0]


async def test_capacity_of_an_endpoint_that_comes_back_is_said_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drift = CapacityDrift()
    async with make_fleet(tiers=(TierSpec("gpu", ("GPU",), capacity=100),)) as fleet:
        for _ in range(2):
            fill(endpoint_of(fleet), 0, 50)
            drift.look(fleet)
            await fleet.remove("a")
            drift.look(fleet)

    assert caplog.text.count("when it is full") == 2
