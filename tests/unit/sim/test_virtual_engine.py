"""An engine on a virtual clock gives the same results as one that runs each step separately."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import inf
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvatlas.sim.block_cache import BlockCache
from kvatlas.sim.load import Counters
from kvatlas.sim.request import Request
from kvatlas.sim.scheduler import Scheduler, StepOutput
from kvatlas.sim.service_times import ServiceTimes
from kvatlas.sim.storage_tier import StorageTier
from kvatlas.sim.virtual_engine import VirtualEngine

TIMES = ServiceTimes(
    prefill_s_per_token=1 / 64,
    load_s_per_token=1 / 32,
    store_s_per_token=1 / 16,
    copy_speed_both_ways=1 / 2,
    step_s=1 / 8,
    weights_s=1 / 4,
    attention_s_per_pair=1 / 1024,
    context_s_per_token=1 / 256,
    fetch_s_per_token=1 / 16,
)
"""Service times with exact sums, so that the order of addition does not matter."""


@dataclass(frozen=True)
class Plan:
    """A request and its arrival time."""

    at: float
    prompt: tuple[int, ...]
    n_output: int


@dataclass
class History:
    """End and hits of each request, and the engine's counters."""

    ended: dict[str, float] = field(default_factory=dict[str, float])
    received: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    requests: list[Request] = field(default_factory=list[Request])
    counters: Counters = field(default_factory=Counters)

    def take(self, now: float, output: StepOutput) -> None:
        for generated in output.tokens:
            name = generated.request.request_id
            self.received.setdefault(name, []).extend(generated.tokens)
            if generated.finished:
                self.ended[name] = now

    @property
    def found(self) -> list[tuple[int | None, int, int]]:
        return [(each.cached_tokens, each.gpu_tokens, each.fetched_tokens) for each in self.requests]


plans = st.lists(
    st.builds(
        Plan,
        at=st.integers(0, 20_000).map(lambda n: n / 1024),
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple),
        n_output=st.integers(1, 30),
    ),
    min_size=1,
    max_size=8,
)
sizes = st.fixed_dictionaries(
    {
        "gpu_blocks": st.integers(24, 60),
        "cpu_blocks": st.sampled_from([0, 6, 40]),
        "chunk_blocks": st.integers(1, 2),
    }
)


def make_scheduler(sizes: dict[str, Any], *, storage: bool) -> Scheduler:
    cache = BlockCache(block_size=2, storage=StorageTier() if storage else None, **sizes)
    return Scheduler(cache, times=TIMES, max_num_seqs=3, max_num_batched_tokens=8)


def make_request(number: int, plan: Plan) -> Request:
    return Request(str(number), array("I", plan.prompt), array("I", range(plan.n_output)))


def play(scheduler: Scheduler, plans: list[Plan], looks: list[float]) -> History:
    """Run on the virtual clock, and also advance the engine to the times `looks`."""
    history = History(counters=scheduler.counters)
    engine = VirtualEngine(scheduler, history.take)
    due = sorted([(plan.at, number) for number, plan in enumerate(plans)] + [(at, -1) for at in looks])
    for at, number in due:
        while engine.next_at <= at:
            engine.advance(engine.next_at)
        engine.advance(at)
        if number >= 0:
            history.requests.append(make_request(number, plans[number]))
            engine.add(history.requests[-1], at)
    while engine.next_at < inf:
        engine.advance(engine.next_at)
    return history


def play_step_by_step(scheduler: Scheduler, plans: list[Plan]) -> History:
    history = History(counters=scheduler.counters)
    due = sorted((plan.at, number) for number, plan in enumerate(plans))
    now = 0.0

    def arrive() -> None:
        number = due.pop(0)[1]
        history.requests.append(make_request(number, plans[number]))
        scheduler.add(history.requests[-1])

    while True:
        run = scheduler.begin_step(now)
        if run is not None:
            now += run.first_s
            while due and due[0][0] < now:
                arrive()
            history.take(now, scheduler.end_step())
            continue
        copy_at, arrives_at = scheduler.next_copy_at(), due[0][0] if due else inf
        if copy_at is not None and copy_at <= arrives_at:
            now = copy_at
        elif due:
            now = arrives_at
            arrive()
        else:
            return history


COPY_ENDS_WITH_A_STEP = [
    Plan(at=0.0, prompt=(0,), n_output=1),
    Plan(at=0.0, prompt=(1, 0, 0, 0), n_output=1),
    Plan(at=6087 / 1024, prompt=(1, 0, 0, 0, 0, 0, 0, 0, 0), n_output=3),
    Plan(at=2.0234375, prompt=(1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1, 1), n_output=14),
    Plan(at=6585 / 1024, prompt=(1, 0), n_output=1),
]


EVICTED_WHILE_IT_WAITS = [
    Plan(at=0.0, prompt=(0,), n_output=1),
    Plan(at=0.0, prompt=(0,), n_output=1),
    Plan(at=0.0, prompt=(0,), n_output=19),
    Plan(at=242 / 1024, prompt=(1,), n_output=30),
    Plan(at=20 / 1024, prompt=(1, 0, 1, 1, 1, 1, 1, 1, 1, 1), n_output=30),
    Plan(at=21 / 1024, prompt=(0, 0, 0, 0, 0, 0, 0, 0, 0), n_output=9),
]


ALL_ARE_PREEMPTED = [
    Plan(at=0.0, prompt=(0,), n_output=1),
    Plan(at=0.0, prompt=(0,), n_output=18),
    Plan(at=0.0, prompt=(0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0), n_output=19),
    Plan(at=0.0, prompt=(0, 0, 0, 0, 0, 0, 0, 0), n_output=10),
]


@settings(max_examples=200)
@given(plans=plans, sizes=sizes, storage=st.booleans(), looks=st.lists(st.floats(0, 40), max_size=6))
@example(
    plans=ALL_ARE_PREEMPTED,
    sizes={"gpu_blocks": 24, "cpu_blocks": 6, "chunk_blocks": 1},
    storage=False,
    looks=[],
)
@example(
    plans=COPY_ENDS_WITH_A_STEP,
    sizes={"gpu_blocks": 24, "cpu_blocks": 6, "chunk_blocks": 1},
    storage=False,
    looks=[],
)
@example(
    plans=EVICTED_WHILE_IT_WAITS,
    sizes={"gpu_blocks": 24, "cpu_blocks": 6, "chunk_blocks": 1},
    storage=True,
    looks=[],
)
def test_runs_of_steps_give_what_single_steps_give(
    plans: list[Plan], sizes: dict[str, Any], storage: bool, looks: list[float]
) -> None:
    fast = play(make_scheduler(sizes, storage=storage), plans, looks)
    slow = play_step_by_step(make_scheduler(sizes, storage=storage), plans)

    assert fast.received == slow.received == {str(n): list(range(p.n_output)) for n, p in enumerate(plans)}
    assert fast.found == slow.found
    assert fast.counters == slow.counters
    assert fast.ended == slow.ended


@given(plans=plans, sizes=sizes)
def test_engine_ends_empty_and_never_finds_more_than_was_computed_before(
    plans: list[Plan], sizes: dict[str, Any]
) -> None:
    scheduler = make_scheduler(sizes, storage=True)

    history = play(scheduler, plans, [])

    assert scheduler.cache.gpu.references == 0
    assert scheduler.cache.n_reserved == 0
    assert all(chunk.ready and not chunk.pins for chunk in scheduler.cache.cpu.chunks())
    for place, request in enumerate(history.requests):
        earlier = [
            tuple(each.prompt) + tuple(each.output) for each in history.requests if each is not request
        ]
        longest = max((common_prefix(tuple(request.prompt), other) for other in earlier), default=0)
        assert (request.cached_tokens or 0) <= longest, place


def common_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    n_same = 0
    while n_same < min(len(one), len(other)) and one[n_same] == other[n_same]:
        n_same += 1
    return n_same


def test_decode_of_a_lone_request_is_one_run() -> None:
    scheduler = make_scheduler({"gpu_blocks": 60}, storage=False)
    outputs: list[tuple[float, int]] = []
    engine = VirtualEngine(
        scheduler, lambda now, output: outputs.append((now, sum(len(g.tokens) for g in output.tokens)))
    )
    engine.add(make_request(0, Plan(0.0, (1, 2, 3), 41)), 0.0)

    engine.advance(100.0)

    # the prompt's step, then 40 steps whose contexts have 4 to 43 tokens
    assert [n_tokens for _, n_tokens in outputs] == [1, 40]
    prompt_s = 1 / 8 + 1 / 4 + 3 / 1024
    assert outputs[1][0] == prompt_s + 40 * (1 / 8 + 1 / 4) + sum(range(4, 44)) / 256
    assert engine.next_at == inf


def test_arrival_ends_the_run_after_the_step_under_way() -> None:
    scheduler = make_scheduler({"gpu_blocks": 60}, storage=False)
    history = History()
    engine = VirtualEngine(scheduler, history.take)
    engine.add(make_request(0, Plan(0.0, (1, 2, 3), 20)), 0.0)
    engine.advance(1.0)
    before = len(history.received["0"])

    engine.add(make_request(1, Plan(0.0, (7, 8), 1)), 1.0)
    engine.advance(engine.next_at)

    assert len(history.received["0"]) == before + 1
    assert "1" not in history.received
    engine.advance(engine.next_at)
    assert history.received["1"] == [0]
