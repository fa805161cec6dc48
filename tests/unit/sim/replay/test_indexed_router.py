"""The index of the router matches the caches of the engines."""

from __future__ import annotations

from array import array
from random import Random

import pytest

from kvatlas.configs.decisions import PredictionsConfig
from kvatlas.configs.schema import DEFAULT_TIERS, KVAtlasConfig, PluginConfig, TierConfig, WeightsConfig
from kvatlas.indexer.factory import index_core
from kvatlas.scorers.core.model import Load
from kvatlas.sim.replay.fleet_spec import FleetSpec
from kvatlas.sim.replay.indexed_router import IndexedRouter
from kvatlas.sim.replay.policies import Policy, make_router
from kvatlas.sim.replay.router import RouteRequest
from kvatlas.sim.replay.simulation import Replay, Timing
from support.traces import make_fleet, make_trace, random_trace

TIMING = Timing(scrape_s=0.25)


class Predicting(IndexedRouter):
    """Router that records the hit that the index expects on the picked server."""

    predicted: dict[int, int]

    def route(self, request: RouteRequest) -> str | None:
        picked = super().route(request)
        if not hasattr(self, "predicted"):
            self.predicted = {}
        prefix = self._open[request.number].decision.first.candidate.prefix
        self.predicted[request.number] = prefix.usable_tokens if prefix is not None else 0
        return picked


@pytest.mark.parametrize("cpu_blocks", [pytest.param(0, id="gpu_alone"), pytest.param(60, id="gpu_and_cpu")])
def test_index_predicts_every_hit_exactly_when_one_request_is_served_at_a_time(cpu_blocks: int) -> None:
    trace, fleet = (
        random_trace(11, n_requests=120, concurrency=1),
        make_fleet(servers=3, cpu_blocks=cpu_blocks),
    )
    config = KVAtlasConfig(api_version="kvatlas/v1", tiers=DEFAULT_TIERS[: 1 + bool(cpu_blocks)])
    router = Predicting(config, fleet, core=index_core(), rng=Random(1))

    served = Replay(trace, fleet, router, timing=TIMING, rng=Random(1)).run().served

    assert {each.number: each.gpu_tokens + each.cpu_tokens for each in served} == router.predicted
    assert sum(router.predicted.values()) > 0
    assert all(not router.in_flight.of(name).requests for name in fleet.names)


def test_approximate_index_learns_what_it_routed() -> None:
    fleet = make_fleet(servers=2, gpu_blocks=24)
    router = make_router(Policy("approximate"), fleet, granularity=1, rng=Random(1))
    assert isinstance(router, IndexedRouter)
    trace = random_trace(5, n_requests=80)

    served = Replay(trace, fleet, router, timing=TIMING, rng=Random(1)).run().served

    rows = {row.tier: row for row in router.atlas.occupancy("server-0")}
    assert (rows["gpu"].capacity, rows["cpu"].capacity) == (24, 30)
    assert rows["gpu"].residencies == 24
    assert len(served) == 80


def test_configured_capacities_follow_the_coarseness_of_the_simulation() -> None:
    tiers = (
        TierConfig(name="gpu", media=("GPU",), source="routing"),
        TierConfig(name="cpu", media=("CPU",), source="inferred", lru_capacity_per_server=41_000),
    )
    config = KVAtlasConfig(api_version="kvatlas/v1", tiers=tiers)
    fleet = FleetSpec(servers=1).coarser(4)

    router = make_router(Policy("mine", config), fleet, granularity=4, rng=Random(1))

    assert isinstance(router, IndexedRouter)
    assert {row.tier: row.capacity for row in router.atlas.occupancy("server-0")} == {
        "gpu": 2317,
        "cpu": 10_250,
    }
    assert (fleet.block_size, fleet.gpu_blocks) == (64, 2317)


def test_weights_of_the_configuration_decide() -> None:
    fleet = make_fleet(servers=2)
    loads = {"server-0": Load(5, 1, 0.9, 0.0), "server-1": Load(0, 0, 0.0, 0.0)}
    request = RouteRequest(0, 0.0, array("I", range(16)), "", loads)
    weights = WeightsConfig(queue=0, kv_cache_utilization=0, gpu_prefix_cache=0, cpu_prefix_cache=0)
    blind = make_router(
        Policy("blind", KVAtlasConfig(api_version="kvatlas/v1", weights=weights)),
        fleet,
        granularity=1,
        rng=Random(4),
    )
    queue = make_router(
        Policy("queue", KVAtlasConfig(api_version="kvatlas/v1")), fleet, granularity=1, rng=Random(4)
    )

    assert {blind.route(request) for _ in range(40)} == {"server-0", "server-1"}
    assert queue.route(request) == "server-1"


@pytest.mark.parametrize(
    ("enabled", "n_servers"), [(True, 1), (False, 2)], ids=["predicted", "not_predicted"]
)
def test_burst_of_equal_prompts_stays_together_when_they_are_predicted(enabled: bool, n_servers: int) -> None:
    known = [(float(at), 8, (2 * at, 2 * at + 1)) for at in range(8)]
    burst = [(20.0, 16, (90, 91, 92, 93))] * 6
    config = KVAtlasConfig(api_version="kvatlas/v1", predictions=PredictionsConfig(enabled=enabled))
    fleet = make_fleet()
    router = make_router(Policy("mine", config), fleet, granularity=1, rng=Random(1))

    replayed = Replay(make_trace(*known, *burst), fleet, router, timing=TIMING, rng=Random(1)).run()

    assert {each.server for each in replayed.served if each.number < len(known)} == set(fleet.names)
    assert len({each.server for each in replayed.served if each.number >= len(known)}) == n_servers


def test_burst_stays_together_before_the_first_event() -> None:
    fleet = make_fleet()
    router = make_router(
        Policy("mine", KVAtlasConfig(api_version="kvatlas/v1")), fleet, granularity=1, rng=Random(1)
    )

    replayed = Replay(
        make_trace(*[(0.0, 16, (90, 91, 92, 93))] * 6), fleet, router, timing=TIMING, rng=Random(1)
    ).run()

    assert len({each.server for each in replayed.served}) == 1


def test_request_is_refused_when_filters_drop_every_server() -> None:
    plugins = (PluginConfig(type="label-selector-filter", parameters={"matchLabels": {"zone": "a"}}),)
    config = KVAtlasConfig(api_version="kvatlas/v1", plugins=plugins)
    router = make_router(Policy("strict", config), make_fleet(), granularity=1, rng=Random(1))

    replayed = Replay(random_trace(1, n_requests=5), make_fleet(), router, timing=TIMING, rng=Random(1)).run()

    assert (replayed.served, replayed.refused) == ([], 5)
