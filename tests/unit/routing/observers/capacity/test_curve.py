"""The live curve beside the offline one, and beside caches of each size."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random

import msgspec
import pytest

from kvatlas.configs.endpoints import endpoint_addresses
from kvatlas.configs.observers import CapacityCurveConfig
from kvatlas.configs.schema import EventsConfig, StaticEndpoint
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.scrape.report import EngineFacts
from kvatlas.indexer.match import PrefixMatch, RankMatch
from kvatlas.indexer.prefix import Prefix
from kvatlas.routing.kv_size import KvSize
from kvatlas.routing.observers.capacity import curve as module
from kvatlas.routing.observers.capacity.curve import GIB, CapacityCurve
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import Candidate
from kvatlas.sim.replay.size_curve import SizeCurve
from support.fleets import make_config, make_fleet
from support.rating import routed_to
from support.waiting import until
from unit.indexer.test_reuse_distance import brute_force

CHUNK, BLOCK = 64, 16
KV = KvSize(GIB / (10 * CHUNK), "a test")
"""A GiB is ten chunks."""
NOTHING = RankMatch((0,), (0,), 0)
NOW = 1000.0


def decision_for(name: str, *, block_size: int = BLOCK, reason: str | None = None) -> Decision:
    match = PrefixMatch(("gpu",), block_size, 1, NOTHING)
    candidate = Candidate(name, f"{name}:80", prefix=match)
    return routed_to(candidate, at=NOW, no_prefix_reason=reason)


def prompts(n: int, seed: int) -> list[Prefix]:
    """Questions behind one of five openings."""
    rng = Random(seed)
    openings = [[rng.randrange(1000) for _ in range(rng.randrange(100, 900))] for _ in range(5)]
    return [
        Prefix(array("I", rng.choice(openings) + [rng.randrange(1000) for _ in range(rng.randrange(400))]))
        for _ in range(n)
    ]


def add(fleet: Fleet, name: str, *, gpu_blocks: int | None = None) -> None:
    endpoint = StaticEndpoint(name=name, address=f"{name}:80", events="", metrics="")
    fleet.add(name, endpoint_addresses(endpoint, EventsConfig()), {})
    fleet.facts_changed(name, EngineFacts(n_engines=1, block_size=BLOCK, num_gpu_blocks=gpu_blocks))


@asynccontextmanager
async def followed(kv: KvSize | None = KV) -> AsyncGenerator[tuple[Fleet, CapacityCurve]]:
    async with make_fleet(make_config()) as fleet:
        yield fleet, CapacityCurve(CapacityCurveConfig(), fleet, lambda _endpoint: kv, clock=lambda: NOW)


async def test_curve_is_that_of_caches_of_each_size_and_the_offline_one() -> None:
    uses = prompts(300, seed=5)
    sizes = [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    offline = SizeCurve(["a", "b"], block_size=CHUNK)
    by_server: dict[str, list[array[int]]] = {"a": [], "b": []}
    async with followed() as (fleet, curve):
        add(fleet, "a")
        add(fleet, "b")
        for number, prefix in enumerate(uses):
            name = "ab"[number % 2]
            keys = prefix.keys(BLOCK)[3::4]
            by_server[name].append(keys)
            offline.use(name, keys, prefix.n_tokens)
            curve.routed(decision_for(name), prefix)
        found = await curve.look(sizes)
    n_tokens = sum(prefix.n_tokens for prefix in uses)

    for size, point in zip(sizes, found.points, strict=True):
        capacity = int(10 * size)
        exact = sum(brute_force(each, capacity) for each in by_server.values()) * CHUNK / n_tokens
        assert point.hit_rate == pytest.approx(exact)
        assert point.hit_rate == pytest.approx(offline.hit_rate(gpu_blocks=0, cpu_blocks=capacity))
    first, second = found.points[2:4]
    assert first.gain == pytest.approx(10 * (second.hit_rate - first.hit_rate))
    assert found.points[-1].gain is None
    assert [each.name for each in found.servers] == ["a", "b"]
    assert sum(each.n_tokens for each in found.servers) == pytest.approx(n_tokens)
    assert found.servers[0].hit_rate_unbounded >= found.servers[0].points[-1].hit_rate > 0.3


async def test_gpu_tier_bounds_the_curve_from_below() -> None:
    async with followed() as (fleet, curve):
        add(fleet, "a", gpu_blocks=160)
        for prefix in prompts(100, seed=2):
            curve.routed(decision_for("a"), prefix)
        found = await curve.look([0.0, 2.0, 4.0, 8.0])
    (server,) = found.servers
    rates = [point.hit_rate for point in found.points]

    assert server.gpu_tokens == 160 * BLOCK
    assert 0 < rates[0] == rates[1] == rates[2] < rates[3]


async def test_endpoint_has_no_points_when_the_memory_of_a_token_is_not_known() -> None:
    async with followed(None) as (fleet, curve):
        add(fleet, "a")
        for prefix in prompts(50, seed=3) * 2:
            curve.routed(decision_for("a"), prefix)
        found = await curve.look()
    assert (found.points, found.servers[0].points) == ((), ())
    assert found.servers[0].hit_rate_unbounded > 0.5


async def test_request_is_passed_over_when_its_blocks_are_not_known() -> None:
    async with followed() as (fleet, curve):
        add(fleet, "a")
        (prefix,) = prompts(1, seed=1)
        curve.routed(decision_for("a"), None)
        curve.routed(decision_for("a", reason="no_tokenizer"), prefix)
        curve.routed(decision_for("a"), Prefix(array("I")))
        assert await curve.look() == module.FleetCurve()


async def test_endpoint_is_followed_anew_with_another_block_size_and_forgotten_when_it_goes() -> None:
    async with followed() as (fleet, curve):
        add(fleet, "a")
        (prefix,) = prompts(1, seed=1)
        curve.routed(decision_for("a"), prefix)
        curve.routed(decision_for("a", block_size=128), prefix)
        (server,) = (await curve.look()).servers
        assert (server.block_size, server.n_keys) == (128, prefix.n_tokens // 128)
        await fleet.remove("a")
        assert (await curve.look()).servers == ()


async def test_endpoint_without_requests_for_many_half_lives_is_forgotten_until_the_next_one() -> None:
    times = [NOW]
    async with make_fleet(make_config()) as fleet:
        config = CapacityCurveConfig()
        curve = CapacityCurve(config, fleet, lambda _endpoint: KV, clock=lambda: times[-1])
        add(fleet, "a")
        curve.routed(decision_for("a"), prompts(1, seed=1)[0])
        shown: list[int] = []
        for half_lives in (0, 10, 2000):
            times.append(NOW + half_lives * config.half_life)
            shown.append(len((await curve.look()).servers))
        assert shown == [1, 1, 0]
        curve.routed(msgspec.structs.replace(decision_for("a"), at=times[-1]), prompts(1, seed=1)[0])
        assert len((await curve.look()).servers) == 1


async def test_latest_curve_is_kept_for_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFRESH_S", 0.001)
    async with followed() as (fleet, curve):
        add(fleet, "a")
        curve.routed(decision_for("a"), prompts(1, seed=1)[0])
        await curve.stop()
        curve.start()
        await until(lambda: curve.latest.servers, what="a look")
        await curve.stop()
    assert [point.gib for point in curve.latest.points] == list(module.SIZES_GIB)
