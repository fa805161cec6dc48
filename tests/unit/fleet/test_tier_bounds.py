"""`lruCapacityPerServer: auto` with engines of known size: bounds from evictions and from the audit."""

from __future__ import annotations

import itertools
import random
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from kvatlas.configs.endpoints import RankAddresses
from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.events.wire import decode_batch
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.observed_capacity import capacity_summary
from kvatlas.fleet.replicas.sums import Sums
from kvatlas.fleet.scrape.report import EngineFacts
from kvatlas.fleet.settings import fleet_settings
from kvatlas.indexer.auto_bound import HEADROOM
from kvatlas.indexer.capacity import Basis
from kvatlas.indexer.prefix import Prefix
from support.audited_engine import (
    CPU,
    GPU,
    AuditedEndpoint,
    conversations,
    documents,
    simulated_engine,
)
from support.batches import EventBatch
from support.fleets import NOWHERE, make_config, make_fleet
from support.recording import read_frames, read_truth

Prompts = Iterator[list[int]]

WORKLOADS: dict[str, Callable[[random.Random], Prompts]] = {
    "conversations": lambda draw: conversations(draw, n_users=100, n_turns=4),
    "few_documents": lambda draw: documents(draw, n_documents=120, skew=0.0),
    "many_documents": lambda draw: documents(draw, n_documents=200, skew=0.8),
}


def tiers(*, cpu: int | str = "auto", source: str = "auto") -> KVAtlasConfig:
    return make_config(
        predictions={"enabled": False},
        tiers=[
            {"name": "gpu", "media": ["GPU"]},
            {"name": "cpu", "media": ["CPU"], "lruCapacityPerServer": cpu, "source": source},
        ],
    )


def prompts(workload: str, n_prompts: int) -> Prompts:
    return itertools.islice(WORKLOADS[workload](random.Random(n_prompts)), n_prompts)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(
    ("gpu_blocks", "cpu_blocks", "chunk_blocks"), [(64, 400, 1), (100, 800, 1), (200, 1000, 4), (400, 150, 2)]
)
async def test_bound_follows_what_the_evictions_of_an_engine_show(
    workload: str, gpu_blocks: int, cpu_blocks: int, chunk_blocks: int
) -> None:
    async with make_fleet(tiers()) as fleet:
        engine = simulated_engine(
            fleet, gpu_blocks=gpu_blocks, cpu_blocks=cpu_blocks, chunk_blocks=chunk_blocks
        )
        engine.serve(prompts(workload, 600))

        counters = fleet.atlas.ledger("e", 0).counters
        for tier, size in ((GPU, gpu_blocks - 1), (CPU, cpu_blocks)):  # of GPU blocks an engine keeps one
            observed, bound = engine.observed(tier), engine.bound(tier)
            assert observed is not None
            assert bound is not None
            assert (observed.basis, observed.n_blocks <= size) == (Basis.EVICTIONS, True)
            assert observed.n_blocks >= size * (1 - observed.error)
            assert observed.n_blocks < bound <= size * (1 + HEADROOM) + 1
    assert (counters.evicted, counters.unknown_removals) == (0, 0), "the bound took nothing that is there"


@pytest.mark.parametrize(
    ("run", "gpu_bound", "cpu_bound"),
    [
        pytest.param("run3", 50, 68, id="whole_chunks_without_tokens"),
        pytest.param("run5", 50, 68, id="storage_behind"),
        pytest.param("run8", 67, 135, id="gpu_and_cpu"),
    ],
)
async def test_bound_of_a_recorded_engine_lies_just_above_what_it_has(
    run: str, gpu_bound: int, cpu_bound: int, golden: Path
) -> None:
    """GPU tiers of 48, 48 and 64 blocks, of which vLLM keeps one; CPU tiers of 64, 64 and 128.

    In the first two runs the engine emptied its CPU tier on request, without an event. In the index that tier then fills
    its bound, which must not be raised for that reason.
    """
    async with make_fleet(tiers()) as fleet:
        engine = AuditedEndpoint(fleet)
        for frame in read_frames(golden / f"{run}_zmq.jsonl"):
            engine.publish(decode_batch(frame.parts[2]))

        bounds = engine.bound(GPU), engine.bound(CPU)
        assert fleet.atlas.ledger("e", 0).counters.evicted == 0
    assert bounds == (gpu_bound, cpu_bound)


@pytest.mark.parametrize(
    ("workload", "gpu_blocks", "cpu_blocks", "chunk_blocks"),
    [
        ("few_documents", 100, 400, 1),
        ("many_documents", 100, 800, 1),
        ("conversations", 200, 1000, 4),
        ("few_documents", 200, 1000, 4),
        ("many_documents", 400, 1600, 2),
    ],
)
async def test_bound_of_an_inferred_tier_is_learned_from_the_audit(
    workload: str, gpu_blocks: int, cpu_blocks: int, chunk_blocks: int
) -> None:
    async with make_fleet(tiers(source="inferred")) as fleet:
        engine = simulated_engine(
            fleet, gpu_blocks=gpu_blocks, cpu_blocks=cpu_blocks, chunk_blocks=chunk_blocks, media=["GPU"]
        )
        engine.serve(prompts(workload, 1200))

        observed, bound = engine.observed(CPU), engine.bound(CPU)
    assert observed is not None
    assert observed.basis is Basis.AUDIT
    assert observed.n_blocks == pytest.approx(cpu_blocks, rel=observed.error)
    assert bound == pytest.approx(cpu_blocks, rel=0.2)


async def test_bound_of_a_recorded_engine_is_learned_though_it_is_silent_about_its_tier(golden: Path) -> None:
    """A CPU tier of 128 blocks without events, compared with the reuse that the engine reported."""
    frames, bounds = read_frames(golden / "run8_zmq.jsonl"), list[int | None]()
    async with make_fleet(tiers(source="inferred")) as fleet:
        engine = AuditedEndpoint(fleet)
        for request in read_truth(golden / "run8_truth.jsonl"):
            while frames and frames[0].received_at < request.t0:
                told = decode_batch(frames.pop(0).parts[2]).events
                engine.publish(
                    EventBatch(0.0, tuple(e for e in told if getattr(e, "medium", "GPU") == "GPU"))
                )
            lora = None if request.model == "tiny" else request.model
            decision = engine.expect(Prefix(array("I", request.tokens), lora=lora, salt=request.salt))
            engine.audit(decision, cached_tokens=request.cached_tokens)
            bounds.append(engine.bound(CPU))

        n_held = fleet.atlas.ledger("e", 0).residencies(CPU)
    unbounded = [bound for bound in bounds if bound is None]
    learned = [bound for bound in bounds[len(unbounded) :] if bound is not None]
    assert len(unbounded) + len(learned) == len(bounds), "it is learned once and for all"
    assert 128 / 1.5 < min(learned) <= max(learned) < 128 * 1.5
    assert learned[-1] == pytest.approx(128, rel=0.15)
    assert n_held <= learned[-1]


async def test_what_metrics_tell_of_the_fastest_tier_comes_before_what_evictions_show() -> None:
    async with make_fleet(tiers()) as fleet:
        engine = simulated_engine(fleet, gpu_blocks=64, cpu_blocks=0)
        engine.serve(prompts("few_documents", 100))
        before = engine.bound(GPU)
        fleet.facts_changed("e", EngineFacts(1, num_gpu_blocks=80))
        told = engine.bound(GPU)
        summary = capacity_summary("auto", engine.endpoint, GPU)
        fleet.configure(fleet_settings(tiers(cpu=7)))
        list(fleet.shrinking())

        assert (before, told, summary) == (67, 80, "configured auto, reported 80, observed 63 +- 2 %")
        assert (engine.bound(GPU), engine.bound(CPU)) == (80, 7)
        fleet.configure(fleet_settings(tiers()))
        list(fleet.shrinking())
        assert (engine.bound(GPU), engine.bound(CPU)) == (80, None)


async def test_engine_that_begins_anew_has_no_bound_until_its_evictions_show_one() -> None:
    async with make_fleet(tiers()) as fleet:
        engine = simulated_engine(fleet, gpu_blocks=64, cpu_blocks=400)
        engine.serve(prompts("few_documents", 200))
        before = engine.bound(CPU)
        engine.rank.reset("test")
        fleet.tick(now=0.0)

        assert before == 420
        assert (engine.bound(GPU), engine.bound(CPU)) == (None, None)


async def test_audit_of_an_engine_with_several_ranks_teaches_no_bound() -> None:
    async with make_fleet(tiers(source="inferred")) as fleet:
        engine = simulated_engine(fleet, gpu_blocks=100, cpu_blocks=200, media=["GPU"])
        fleet.add_rank("e", RankAddresses(1, NOWHERE, None))
        engine.serve(prompts("few_documents", 200))

        assert engine.bound(CPU) is None


async def test_configured_number_stays_whatever_the_audit_shows() -> None:
    async with make_fleet(tiers(cpu=1000, source="inferred")) as fleet:
        engine = simulated_engine(fleet, gpu_blocks=100, cpu_blocks=200, media=["GPU"])
        engine.serve(prompts("few_documents", 200))

        assert engine.bound(CPU) == 1000


def channel_of(fleet: Fleet) -> Sums:
    """Return the channel by which a fleet shares what it learns of bounds."""
    sums = Sums(time.monotonic)
    sums.use(fleet.bounds.shared.sums)
    return sums


def pass_on(source: Sums, target: Sums) -> None:
    for payload in source.drain():
        target.apply("one", payload)


async def test_replicas_have_the_bound_that_requests_of_any_of_them_taught_until_the_engine_begins_anew() -> (
    None
):
    config = tiers(source="inferred")
    async with make_fleet(config) as fleet, make_fleet(config) as beside, make_fleet(config) as late:
        one, other, third = channel_of(fleet), channel_of(beside), channel_of(late)
        engine = simulated_engine(fleet, gpu_blocks=100, cpu_blocks=400, media=["GPU"])
        sibling = AuditedEndpoint(beside)
        served = prompts("few_documents", 400)
        while few := list(itertools.islice(served, 50)):
            engine.serve(few)
            pass_on(one, other)
            beside.tick(now=0.0)
            assert sibling.bound(CPU) == engine.bound(CPU)
        taught = engine.bound(CPU)
        assert taught == pytest.approx(400, rel=0.5)

        third.replace("one", one.whole())  # before its endpoint is discovered
        newcomer = AuditedEndpoint(late)
        late.tick(now=0.0)
        assert newcomer.bound(CPU) == taught
        third.drop("one")
        late.tick(now=0.0)
        assert newcomer.bound(CPU) == taught, "what is learned stays when its replica is gone"

        for where, at in ((fleet, engine), (beside, sibling)):
            at.rank.reset("test")
            where.tick(now=0.0)
        pass_on(one, other)
        beside.tick(now=0.0)
        assert (engine.bound(CPU), sibling.bound(CPU)) == (None, None)


async def test_bound_that_one_replica_alone_has_heard_reaches_the_others_when_its_teacher_is_gone() -> None:
    config = tiers(source="inferred")
    async with make_fleet(config) as fleet, make_fleet(config) as near, make_fleet(config) as far:
        one, other, third = channel_of(fleet), channel_of(near), channel_of(far)
        engine = simulated_engine(fleet, gpu_blocks=100, cpu_blocks=400, media=["GPU"])
        replicas = AuditedEndpoint(near), AuditedEndpoint(far)
        served = prompts("few_documents", 200)
        engine.serve(itertools.islice(served, 150))
        for channel in (other, third):
            channel.replace("one", one.whole())
        for each in (near, far):
            each.tick(now=0.0)
        engine.serve(served)
        pass_on(one, other)
        near.tick(now=0.0)
        assert replicas[0].bound(CPU) != replicas[1].bound(CPU)

        for channel in (other, third):
            channel.drop("one")
        for payload in other.drain():
            third.apply("other", payload)
        for each in (near, far):
            each.tick(now=0.0)
        assert replicas[0].bound(CPU) == replicas[1].bound(CPU) == engine.bound(CPU)


async def test_replica_that_starts_knows_the_capacities_that_evictions_showed_to_others() -> None:
    async with make_fleet(tiers()) as fleet, make_fleet(tiers()) as late:
        one, third = channel_of(fleet), channel_of(late)
        engine = simulated_engine(fleet, gpu_blocks=64, cpu_blocks=400)
        engine.serve(prompts("few_documents", 200))
        newcomer = AuditedEndpoint(late)
        third.replace("one", one.whole())
        late.tick(now=0.0)

        known = capacity_summary("auto", newcomer.endpoint, CPU)
        assert known == capacity_summary("auto", engine.endpoint, CPU)
        newcomer.rank.reset("test")
        late.tick(now=0.0)
        assert newcomer.observed(CPU) is None


@pytest.mark.parametrize(
    "numbers", [[], [0.0, 0.0, 9.0], [5.0, 2.0, 9.0], [1e300, 0.0, 9.0], [5.0, 0.0, 9.0, 1.0]]
)
async def test_capacities_that_no_replica_can_have_seen_are_ignored(numbers: list[float]) -> None:
    async with make_fleet(tiers()) as fleet:
        channel, engine = channel_of(fleet), AuditedEndpoint(fleet)
        channel.apply("one", msgspec.msgpack.encode({"capacities\ne\n0\ncpu": numbers}))
        fleet.tick(now=0.0)

        assert engine.observed(CPU) is None


async def test_capacity_that_another_replica_saw_is_that_of_its_rank_and_tier() -> None:
    async with make_fleet(tiers()) as fleet:
        channel, engine = channel_of(fleet), AuditedEndpoint(fleet)
        fleet.add_rank("e", RankAddresses(1, NOWHERE, None))
        places = ("1\ncpu", "0\nother", "2\ncpu")
        told = {f"capacities\ne\n{place}": [500.0, 0.1, 9.0] for place in places}
        channel.apply("one", msgspec.msgpack.encode(told))
        fleet.tick(now=0.0)

        assert [each.observed(CPU) is not None for each in engine.endpoint.ranks] == [False, True]
