"""Settings of the fleet replaced by those of another configuration."""

from __future__ import annotations

from array import array

import pytest

from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.events.model import BlockStored, EngineHash, MediumName
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.roster import wanted_endpoints
from kvatlas.fleet.scrape.report import EngineFacts
from kvatlas.fleet.settings import fleet_settings
from kvatlas.indexer.index import MAX_SURPLUS_EVICTED
from support.fleets import make_config, make_endpoint, make_fleet, with_endpoints

BLOCK = 4
GPU, CPU = MediumName("GPU"), MediumName("CPU")


def tiers(*, gpu: int | str = "auto", cpu: int | str = "auto") -> KVAtlasConfig:
    bounds = (("gpu", "GPU", gpu), ("cpu", "CPU", cpu))
    listed = [
        {"name": name, "media": [medium], "lruCapacityPerServer": bound} for name, medium, bound in bounds
    ]
    return with_endpoints(make_endpoint("a", 1), make_endpoint("b", 2), tiers=listed)


def fill(fleet: Fleet, config: KVAtlasConfig, n_blocks: int) -> None:
    """Provide a fleet whose endpoints each hold that many blocks on the GPU and in CPU memory."""
    hashes = tuple(EngineHash(number) for number in range(1, n_blocks + 1))
    stored = BlockStored(
        hashes, None, array("I", range(n_blocks * BLOCK)), BLOCK, extra_keys=(None,) * n_blocks
    )
    copied = BlockStored(hashes, None, array("I"), 0, medium=CPU)
    for name, each in wanted_endpoints(config).items():
        fleet.add(name, each.addresses, each.labels)
        fleet.atlas.apply(name, 0, [stored, copied])


def shrink(fleet: Fleet) -> None:
    for _ in fleet.shrinking():
        pass


def held(fleet: Fleet) -> dict[str, list[int]]:
    return {e.name: [tier.residencies for tier in fleet.atlas.occupancy(e.name)] for e in fleet}


def bounds(fleet: Fleet) -> dict[str, list[int | None]]:
    return {e.name: [tier.capacity for tier in fleet.atlas.occupancy(e.name)] for e in fleet}


async def test_smaller_tier_is_emptied_in_short_steps_and_newcomers_have_its_bound() -> None:
    start, n_blocks = tiers(), 2 * MAX_SURPLUS_EVICTED + 100
    async with make_fleet(start) as fleet:
        fill(fleet, start, n_blocks)
        fleet.configure(fleet_settings(tiers(cpu=3)))
        left = [sum(cpu for _, cpu in held(fleet).values()) for _ in fleet.shrinking()]
        fleet.add("c", wanted_endpoints(start)["a"].addresses, {})

        one, two = n_blocks - MAX_SURPLUS_EVICTED, n_blocks - 2 * MAX_SURPLUS_EVICTED
        assert left == [one + n_blocks, two + n_blocks, 3 + n_blocks, 3 + one, 3 + two, 6]
        assert held(fleet) == {"a": [n_blocks, 3], "b": [n_blocks, 3], "c": [0, 0]}
        assert bounds(fleet) == {"a": [None, 3], "b": [None, 3], "c": [None, 3]}


async def test_endpoint_that_goes_while_its_tier_is_emptied_is_left_alone() -> None:
    start = tiers()
    async with make_fleet(start) as fleet:
        fill(fleet, start, MAX_SURPLUS_EVICTED + 10)
        fleet.configure(fleet_settings(tiers(cpu=3)))
        shrinking = fleet.shrinking()
        next(shrinking)
        fleet.forget("a")
        assert len(list(shrinking)) == 2
        assert held(fleet) == {"b": [MAX_SURPLUS_EVICTED + 10, 3]}


async def test_larger_tier_and_unbounded_tier_take_no_steps() -> None:
    start = tiers(cpu=3)
    async with make_fleet(start) as fleet:
        fill(fleet, start, 10)
        for config, bound in ((tiers(cpu=8), 8), (tiers(cpu="unlimited"), None)):
            fleet.configure(fleet_settings(config))
            shrink(fleet)
            assert bounds(fleet)["a"] == [None, bound]


async def test_settings_that_say_the_same_leave_tiers_alone() -> None:
    start = tiers(cpu=3)
    async with make_fleet(start) as fleet:
        fill(fleet, start, 10)
        fleet.atlas.set_capacity("a", fleet.atlas.tiers.of(CPU), 2)
        fleet.configure(fleet_settings(tiers(cpu=3)))
        shrink(fleet)
        assert bounds(fleet)["a"] == [None, 2]


async def test_automatic_bound_is_what_the_endpoint_told_before_and_tells_later() -> None:
    """The facts are reported by the test instead of the scraper."""
    start = tiers(gpu=5)
    async with make_fleet(start) as fleet:
        fill(fleet, start, 10)
        assert bounds(fleet)["a"][0] == 5

        fleet.configure(fleet_settings(tiers(gpu="auto")))
        shrink(fleet)
        assert bounds(fleet)["a"][0] is None

        fleet.facts_changed("a", EngineFacts(n_engines=1, num_gpu_blocks=7))
        assert bounds(fleet)["a"][0] == 7


@pytest.mark.parametrize("shared", [True, False])
async def test_tier_of_all_servers_is_bounded_as_one(shared: bool) -> None:
    def config(bound: int) -> KVAtlasConfig:
        cpu = {"name": "cpu", "media": ["CPU"], "lruCapacityPerServer": bound}
        if shared:
            cpu["scope"] = "shared"
        return with_endpoints(
            make_endpoint("a", 1), make_endpoint("b", 2), tiers=[{"name": "gpu", "media": ["GPU"]}, cpu]
        )

    start = config(100)
    async with make_fleet(start) as fleet:
        fill(fleet, start, 10)
        fleet.configure(fleet_settings(config(4)))
        shrink(fleet)
        assert {name: row[1] for name, row in held(fleet).items()} == {"a": 4, "b": 4}


async def test_trust_credit_counts_at_once() -> None:
    start = with_endpoints(make_endpoint("a"))
    async with make_fleet(start) as fleet:
        fill(fleet, start, 2)

        def credit() -> float:
            (candidate,) = fleet.candidates(fleet.atlas.prefix(array("I", range(8))), now=0.0)
            return candidate.credit

        assert credit() == 0.0  # of a publisher nobody heard
        fleet.configure(fleet_settings(make_config(events={"trustCredit": {"dark": 0.25}})))
        assert credit() == 0.25
