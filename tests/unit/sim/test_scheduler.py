from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from kvatlas.sim.block_cache import BlockCache
from kvatlas.sim.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from kvatlas.sim.load import Load
from kvatlas.sim.request import Request
from kvatlas.sim.scheduler import MAX_FETCHES, Scheduler, StepOutput
from kvatlas.sim.sequence import Lora
from kvatlas.sim.service_times import ServiceTimes
from kvatlas.sim.storage_tier import StorageTier
from support.sim_steps import serve_to_end

BLOCK = 4
TIMES = ServiceTimes(
    prefill_s_per_token=1.0,
    load_s_per_token=0.5,
    store_s_per_token=0.25,
    copy_speed_both_ways=0.5,
    step_s=100.0,
)
LATER = 1000.0
"""A time at which all earlier copies are complete."""


def make_scheduler(*, gpu_blocks: int = 64, cpu_blocks: int = 0, **limits: Any) -> Scheduler:
    cache = BlockCache(block_size=BLOCK, gpu_blocks=gpu_blocks, cpu_blocks=cpu_blocks)
    return Scheduler(cache, times=TIMES, **limits)


def make_request(name: str, n_prompt: int, n_output: int = 1, *, first: int = 0, **identity: Any) -> Request:
    return Request(name, array("I", range(first, first + n_prompt)), array("I", range(n_output)), **identity)


def step(scheduler: Scheduler, now: float = 0.0) -> tuple[float, StepOutput]:
    run = scheduler.begin_step(now)
    assert run is not None
    return run.first_s, scheduler.end_step()


def finish(scheduler: Scheduler, *requests: Request) -> None:
    for _batch in serve_to_end(scheduler, *requests):
        pass


def names(output: StepOutput) -> list[str]:
    return [generated.request.request_id for generated in output.tokens]


def test_idle_engine_has_no_step() -> None:
    assert make_scheduler().begin_step(0.0) is None


def test_step_costs_its_uncached_tokens_and_decode_is_shared() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", 9, 3))
    scheduler.add(make_request("b", 9, 3))

    # b finds the two blocks that a computes in the same step
    assert [step(scheduler)[0] for _ in range(3)] == [109.0 + 1.0, 100.0, 100.0]
    assert scheduler.begin_step(0.0) is None


def test_token_comes_when_the_whole_prompt_is_computed() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=6)
    scheduler.add(make_request("a", 10))

    outputs = [step(scheduler) for _ in range(2)]

    assert [duration for duration, _ in outputs] == [106.0, 104.0]
    assert [names(output) for _, output in outputs] == [[], ["a"]]
    assert [len(output.events) for _, output in outputs] == [1, 1]


def test_only_max_num_seqs_run_at_once() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    for name in "ab":
        scheduler.add(make_request(name, 4, 2))

    served = [names(step(scheduler)[1]) for _ in range(4)]

    assert served == [["a"], ["a"], ["b"], ["b"]]


def test_load_delays_its_request_and_no_other() -> None:
    scheduler = make_scheduler(cpu_blocks=32)
    finish(scheduler, make_request("old", 9))
    assert scheduler.reset_cache()
    scheduler.add(make_request("loads", 9, 1))
    scheduler.add(make_request("computes", 5, 1, first=50))

    assert names(step(scheduler, now=LATER)[1]) == ["computes"]
    duration, output = step(scheduler, now=LATER + 105.0)

    assert (duration, names(output)) == (101.0, ["loads"])
    assert (scheduler.counters.cpu_hits, scheduler.counters.loaded_blocks) == (8, 2)


def test_loads_share_one_link() -> None:
    scheduler = make_scheduler(cpu_blocks=32)
    finish(scheduler, make_request("a", 9), make_request("b", 9, first=50))
    scheduler.reset_cache()
    scheduler.add(make_request("c", 9))
    scheduler.add(make_request("d", 9, first=50))

    step(scheduler, now=LATER)
    assert scheduler.next_copy_at() == LATER + 4.0
    assert scheduler.begin_step(LATER + 4.0) is not None
    assert scheduler.next_copy_at() == LATER + 8.0


def test_store_begins_behind_its_step_and_shares_the_link_with_loads() -> None:
    scheduler = make_scheduler(cpu_blocks=64)
    finish(scheduler, make_request("old", 65))
    assert scheduler.reset_cache()
    scheduler.add(make_request("stores", 12, first=100))
    assert step(scheduler, now=LATER)[0] == 112.0
    ended_at = LATER + 112.0
    assert scheduler.next_copy_at() == ended_at + 12 * 0.25

    scheduler.add(make_request("loads", 65))
    assert scheduler.begin_step(ended_at) is None

    assert scheduler.next_copy_at() == ended_at + 3.0 / 0.5
    assert scheduler.begin_step(ended_at + 6.0) is not None
    assert scheduler.next_copy_at() == ended_at + 6.0 + (64 * 0.5 - 3.0)
    assert (
        scheduler.counters.stored_blocks == 16
    )  # the events of the store are published at the end of the step
    scheduler.end_step()
    assert scheduler.counters.stored_blocks == 16 + 3


def test_copies_stretch_the_next_step_when_nothing_overlaps() -> None:
    times = replace(TIMES, copies_overlap=False)
    scheduler = Scheduler(BlockCache(block_size=BLOCK, gpu_blocks=64, cpu_blocks=32), times=times)
    finish(scheduler, make_request("old", 9))
    assert scheduler.reset_cache()
    scheduler.add(make_request("loads", 9))
    scheduler.add(make_request("computes", 5, 2, first=50))

    assert step(scheduler, now=LATER)[0] == 100.0 + 5.0 + 8 * 0.5
    assert step(scheduler, now=LATER + 109.0)[0] == 100.0 + 1.0 + 4 * 0.25


def make_engines(*cpu_blocks: int) -> list[Scheduler]:
    """Make engines that share a storage tier."""
    storage = StorageTier()
    caches = [
        BlockCache(block_size=BLOCK, gpu_blocks=64, cpu_blocks=n_blocks, storage=storage)
        for n_blocks in cpu_blocks
    ]
    return [Scheduler(cache, times=TIMES) for cache in caches]


def test_what_one_engine_wrote_to_storage_another_fetches_and_loads() -> None:
    writer, reader = make_engines(32, 32)
    finish(writer, make_request("a", 9))
    request = make_request("b", 9)
    reader.add(request)

    assert reader.begin_step(0.0) is None
    fetch_s = 8 * TIMES.fetch_s_per_token
    assert (reader.next_copy_at(), reader.load.deferred) == (fetch_s, 1)
    duration, output = step(reader, now=fetch_s)
    assert [event.medium for event in output.events if isinstance(event, BlockStored)] == ["CPU", "CPU"]
    load_s = reader.next_copy_at()
    assert (duration, load_s) == (0.0, fetch_s + 8 * TIMES.load_s_per_token)
    step(reader, now=load_s or 0.0)

    assert (request.cached_tokens, request.fetched_tokens) == (8, 8)
    assert (reader.counters.cpu_hits, reader.counters.storage_hits) == (0, 8)


def test_fetches_share_one_storage() -> None:
    writer, reader = make_engines(32, 32)
    finish(writer, make_request("a", 9), make_request("b", 9, first=50))
    for request in (make_request("c", 9), make_request("d", 9, first=50)):
        reader.add(request)
    reader.begin_step(0.0)

    assert reader.next_copy_at() == 8 * TIMES.fetch_s_per_token
    step(reader, now=8 * TIMES.fetch_s_per_token)
    assert reader.next_copy_at() == 16 * TIMES.fetch_s_per_token


def test_fetch_ends_though_its_request_has_gone() -> None:
    writer, reader = make_engines(32, 32)
    finish(writer, make_request("a", 9))
    request = make_request("b", 9)
    reader.add(request)
    reader.begin_step(0.0)

    reader.abort(request)
    step(reader, now=8 * TIMES.fetch_s_per_token)

    assert reader.next_copy_at() is None
    assert [chunk.ready for chunk in reader.cache.cpu.chunks()] == [True, True]


def test_request_computes_what_the_cpu_tier_is_too_small_to_fetch() -> None:
    writer, reader = make_engines(32, 1)
    finish(writer, make_request("a", 9))
    request = make_request("b", 9)

    finish(reader, request)

    assert (request.cached_tokens, request.n_fetches) == (0, 0)


def test_request_stops_fetching_when_each_fetch_evicts_what_the_one_before_brought() -> None:
    writer, reader = make_engines(32, 3)
    finish(writer, make_request("a", 17))
    finish(reader, make_request("b", 9))
    assert reader.reset_cache()
    request = make_request("c", 17)

    finish(reader, request)

    assert request.n_fetches == MAX_FETCHES
    assert request.n_generated == 1


def test_second_request_waits_for_the_chunk_the_first_loads() -> None:
    scheduler = make_scheduler(cpu_blocks=32)
    finish(scheduler, make_request("old", 9))
    scheduler.reset_cache()
    scheduler.add(make_request("a", 9))
    scheduler.add(make_request("b", 9))

    step(scheduler, now=LATER)

    assert (scheduler.load.waiting, scheduler.load.deferred) == (2, 2)
    assert names(step(scheduler, now=LATER + 4.0)[1]) == ["a", "b"]
    assert scheduler.counters.cpu_hits == 8


@pytest.mark.parametrize(
    ("store_s", "media"),
    [
        pytest.param(0.0, [["GPU"], ["CPU"], [], []], id="at_once"),
        pytest.param(24.9, [["GPU"], ["CPU"], [], []], id="within_a_step"),
        pytest.param(25.1, [["GPU"], [], ["CPU"], []], id="within_two"),
    ],
)
def test_cpu_store_is_published_with_a_later_step_than_the_gpu_store(
    store_s: float, media: list[list[str]]
) -> None:
    times = replace(TIMES, store_s_per_token=store_s)
    scheduler = Scheduler(BlockCache(block_size=BLOCK, gpu_blocks=64, cpu_blocks=32), times=times)
    scheduler.add(make_request("a", 4, 4))

    now, published = 0.0, list[list[str]]()
    for _ in media:
        duration, output = step(scheduler, now=now)
        now += duration
        published.append([event.medium for event in output.events if isinstance(event, BlockStored)])

    assert published == media


def test_engine_steps_on_until_its_stores_are_published() -> None:
    scheduler = make_scheduler(cpu_blocks=32)
    scheduler.add(make_request("a", 4, 1))
    step(scheduler, now=0.0)
    assert scheduler.begin_step(104.0) is None
    assert scheduler.next_copy_at() == 105.0

    duration, output = step(scheduler, now=105.0)

    assert (duration, len(output.events)) == (0.0, 1)
    assert scheduler.begin_step(105.0) is None
    assert scheduler.next_copy_at() is None


@pytest.mark.parametrize(
    "n_young", [pytest.param(8, id="for_its_own_block"), pytest.param(12, id="for_a_block_of_an_older_one")]
)
def test_youngest_is_preempted_and_resumes_when_blocks_run_out(n_young: int) -> None:
    scheduler = make_scheduler(gpu_blocks=6)
    old, young = make_request("old", 8, 5), make_request("young", n_young, 5, first=50)

    finish(scheduler, old, young)

    assert scheduler.counters.preemptions == 1
    assert (old.n_generated, young.n_generated) == (5, 5)
    assert scheduler.counters.gpu_queries == 8 + n_young  # the second lookup of `young` is not counted
    assert scheduler.cache.gpu.references == 0


def test_abort_gives_everything_back_in_every_state() -> None:
    scheduler = make_scheduler(cpu_blocks=32)
    finish(scheduler, make_request("old", 9))
    scheduler.reset_cache()
    requests = {
        "loading": make_request("loading", 9),
        "running": make_request("running", 9, 3, first=50),
        "finished": make_request("finished", 4, 1, first=90),
    }
    for request in requests.values():
        scheduler.add(request)
    step(scheduler)
    queued = make_request("queued", 9)
    scheduler.add(queued)
    assert scheduler.begin_step(0.0) is not None

    for request in (*requests.values(), queued):
        scheduler.abort(request)

    assert scheduler.end_step().tokens == ()
    assert scheduler.load == Load()
    assert scheduler.cache.gpu.references == 0
    assert all(chunk.pins == 0 for chunk in scheduler.cache.cpu.chunks())


def test_reset_is_published_with_the_next_step() -> None:
    scheduler = make_scheduler()
    finish(scheduler, make_request("a", 9))

    assert scheduler.reset_cache()
    assert scheduler.begin_step(0.0) is None
    scheduler.add(make_request("b", 9))
    _, output = step(scheduler)

    assert output.events[0] == AllBlocksCleared()


def test_reset_is_refused_while_a_request_runs() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", 9, 3))
    step(scheduler)

    assert not scheduler.reset_cache()


def test_request_that_can_never_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="request of 13 tokens, the GPU holds 12"):
        make_scheduler(gpu_blocks=4).add(make_request("a", 12, 1))


def test_adapters_of_running_and_waiting_requests_are_told() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(make_request("a", 4, 2, lora=Lora("x", 1)))
    scheduler.add(make_request("b", 4, 2, lora=Lora("y", 2)))
    step(scheduler)

    assert (scheduler.load.running_loras, scheduler.load.waiting_loras) == (frozenset("x"), frozenset("y"))


def test_step_must_begin_before_it_ends() -> None:
    with pytest.raises(RuntimeError, match="without begin_step"):
        make_scheduler().end_step()


def test_load_tells_nothing_of_requests_that_came_during_the_step() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(make_request("a", 8, 2))
    assert scheduler.load == Load()
    scheduler.begin_step(0.0)
    scheduler.add(make_request("b", 8))

    scheduler.end_step()
    assert (scheduler.load.running, scheduler.load.waiting, scheduler.load.kv_usage) == (1, 0, 2 / 63)
    scheduler.begin_step(0.0)
    scheduler.add(make_request("c", 8))
    scheduler.end_step()
    assert (scheduler.load.running, scheduler.load.waiting) == (0, 1)


def test_decode_evicts_in_the_step_that_needs_the_block() -> None:
    scheduler = make_scheduler(gpu_blocks=4)
    finish(scheduler, make_request("old", 11))
    scheduler.add(make_request("a", 4, 3, first=50))

    events = [step(scheduler)[1].events for _ in range(2)]

    assert [type(event) for event in events[0]] == [BlockStored]
    assert [type(event) for event in events[1]] == [BlockRemoved]
