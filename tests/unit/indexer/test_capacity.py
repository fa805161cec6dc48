"""Observed capacity of constructed sizes, of simulated engines of known size, and of recorded ones."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.capacity import ENOUGH_PEAKS, NEAR, CapacityGauge, ObservedCapacity
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.tiers import TierId, TierSpec, TierTable
from kvatlas.sim.block_cache import BlockCache
from kvatlas.sim.kv_events import EventBatch
from kvatlas.sim.request import Request
from kvatlas.sim.scheduler import Scheduler
from kvatlas.sim.service_times import ServiceTimes
from support.recording import read_frames
from support.sim_steps import serve_to_end

BLOCK = 4


def observed(sizes: Iterable[int]) -> ObservedCapacity | None:
    gauge = CapacityGauge()
    for size in sizes:
        gauge.observe(size)
    return gauge.observed()


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        pytest.param([*range(100)], None, id="never_evicted"),
        pytest.param([100, 90] * 7, None, id="too_few"),
        pytest.param([100, 90] * 8, ObservedCapacity(100, 0.0, 8), id="enough"),
        pytest.param([60, 50] * 20 + [100, 90] * 7, None, id="too_few_near_the_highest"),
        pytest.param(
            [96, 90] * 7 + [128, 90] + [128, 90] * 7, ObservedCapacity(128, 0.0, 8), id="near_alone"
        ),
        pytest.param([62, 50] * 7 + [64, 50], ObservedCapacity(64, 2 / 64, 8), id="spread"),
        pytest.param([100, 40] * 20, None, id="cleared"),
        pytest.param([50, 45] * 40 + [100, 90] * 64, ObservedCapacity(100, 0.0, 64), id="newest_count"),
    ],
)
def test_capacity_is_what_was_held_when_blocks_were_given_up(
    sizes: list[int], found: ObservedCapacity | None
) -> None:
    assert observed(sizes) == found


@pytest.mark.parametrize(
    ("replaced", "found"),
    [
        pytest.param(True, ObservedCapacity(100, 0.0, 8), id="new_ones_for_old_ones"),
        pytest.param(False, None, id="nothing_new"),
    ],
)
def test_tier_that_is_as_full_as_before_was_full_when_blocks_were_replaced(
    found: ObservedCapacity | None, *, replaced: bool
) -> None:
    gauge = CapacityGauge()
    for _ in range(9):
        gauge.observe(100, replaced=replaced)

    assert gauge.observed() == found


def test_empty_tier_was_not_full_although_each_batch_removed_what_it_stored() -> None:
    gauge = CapacityGauge()
    for _ in range(2 * ENOUGH_PEAKS):
        gauge.observe(0, replaced=True)

    assert gauge.observed() is None


def test_tier_that_falls_below_half_was_emptied() -> None:
    gauge = CapacityGauge()
    for n_blocks in (100, 50, 100, 49, 49, 0):
        gauge.observe(n_blocks)

    assert gauge.n_clears == 2


@given(sizes=st.lists(st.integers(0, 200), max_size=200))
def test_observed_capacity_was_held_and_rests_on_enough(sizes: list[int]) -> None:
    found = observed(sizes)

    if found is not None:
        assert found.n_blocks in sizes
        assert found.n_samples >= ENOUGH_PEAKS
        assert 0 <= found.spread <= 1 - NEAR


def gauges_of(payloads: Iterable[bytes]) -> list[ObservedCapacity | None]:
    """Return the gauges of the GPU and the CPU tier of an engine that sent these payloads."""
    core = index_core()
    atlas = Atlas(tiers=TierTable([TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",))]), seed=0, core=core)
    atlas.add("e")
    gauges = [CapacityGauge(), CapacityGauge()]
    for payload in payloads:
        batch = core.decode_batch(payload)
        atlas.apply("e", 0, batch)
        for tier, gauge in enumerate(gauges):
            replaced = atlas.tiers.specs[tier].name.upper() in batch.removed_media
            gauge.observe(atlas.ledger("e", 0).residencies(TierId(tier)), replaced=replaced)
    return [gauge.observed() for gauge in gauges]


@pytest.mark.parametrize(
    ("gpu_blocks", "cpu_blocks", "chunk_blocks"), [(64, 200, 1), (100, 400, 4), (300, 1000, 2)]
)
def test_simulated_engine_is_observed_to_hold_what_it_was_given(
    gpu_blocks: int, cpu_blocks: int, chunk_blocks: int
) -> None:
    cache = BlockCache(
        block_size=BLOCK, gpu_blocks=gpu_blocks, cpu_blocks=cpu_blocks, chunk_blocks=chunk_blocks
    )
    scheduler = Scheduler(cache, times=ServiceTimes())
    draw = random.Random(gpu_blocks)
    requests = [
        Request(
            f"r{number}", array("I", draw.choices(range(1000), k=draw.randrange(8, 160))), array("I", [1])
        )
        for number in range(400)
    ]
    batches = [batch for request in requests for batch in serve_to_end(scheduler, request)]

    gpu, cpu = gauges_of(msgspec.msgpack.encode(EventBatch(0.0, batch)) for batch in batches)

    assert gpu is not None
    assert cpu is not None
    assert gpu.n_blocks == pytest.approx(gpu_blocks, rel=0.05)
    assert cpu.n_blocks == pytest.approx(cpu_blocks, rel=0.03)
    assert cpu.n_blocks <= cpu_blocks


@pytest.mark.parametrize(
    ("run", "gpu_blocks", "cpu_blocks"), [("run3", 47, 64), ("run5", 47, 64), ("run8", 63, 128)]
)
def test_recorded_engine_is_observed_to_hold_what_it_was_given(
    run: str, gpu_blocks: int, cpu_blocks: int, golden: Path
) -> None:
    """Check the recorded capacities: of 48, 48 and 64 GPU blocks vLLM reserves one."""
    gpu, cpu = gauges_of(frame.parts[2] for frame in read_frames(golden / f"{run}_zmq.jsonl"))

    assert cpu is not None
    assert (cpu.n_blocks, cpu.spread) == (cpu_blocks, 0.0)
    assert gpu is not None
    assert gpu.n_blocks == gpu_blocks
