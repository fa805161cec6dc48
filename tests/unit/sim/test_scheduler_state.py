"""All requests that are not aborted get their full reply, and the engine is empty at the end."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from kvatlas.sim.block_cache import BlockCache
from kvatlas.sim.request import Request
from kvatlas.sim.scheduler import Scheduler
from kvatlas.sim.service_times import ServiceTimes

BLOCK = 2
MAX_STEPS = 2000


@dataclass(frozen=True)
class Plan:
    """A request with the steps at which it arrives and is aborted."""

    prompt: list[int]
    n_output: int
    arrives_after: int
    stays: int | None


@dataclass
class Client:
    request: Request
    received: list[int] = field(default_factory=list[int])
    gone: bool = False


plans = st.builds(
    Plan,
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=12),
    n_output=st.integers(1, 6),
    arrives_after=st.integers(0, 4),
    stays=st.none() | st.integers(0, 8),
)


LONG = [0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1]


@example(  # a preempted request does not fit before one whose load is done
    plans=[
        Plan(prompt, n_output, arrives_after=0, stays=None)
        for prompt, n_output in (([0], 1), (LONG, 2), ([0], 5), (LONG, 4), ([0, 0], 2))
    ],
    gpu_blocks=10,
    cpu_blocks=4,
    chunk_blocks=1,
    max_num_seqs=2,
    max_num_batched_tokens=2,
)
@given(
    plans=st.lists(plans, min_size=1, max_size=12),
    gpu_blocks=st.integers(10, 24),
    cpu_blocks=st.sampled_from([0, 4, 32]),
    chunk_blocks=st.integers(1, 2),
    max_num_seqs=st.integers(1, 4),
    max_num_batched_tokens=st.integers(1, 16),
)
def test_every_request_is_answered_and_the_engine_ends_empty(
    plans: list[Plan],
    gpu_blocks: int,
    cpu_blocks: int,
    chunk_blocks: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
) -> None:
    cache = BlockCache(
        block_size=BLOCK, gpu_blocks=gpu_blocks, cpu_blocks=cpu_blocks, chunk_blocks=chunk_blocks
    )
    scheduler = Scheduler(
        cache,
        times=ServiceTimes(prefill_s_per_token=1.0, load_s_per_token=3.0, store_s_per_token=2.0, step_s=1.0),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )

    clients = play(scheduler, plans)

    for client in clients:
        assert client.gone or client.received == list(client.request.output)
        assert client.received == list(client.request.output)[: len(client.received)]
    assert cache.gpu.references == 0
    assert all(chunk.ready and not chunk.pins for chunk in cache.cpu.chunks())
    assert (scheduler.load.running, scheduler.load.waiting, scheduler.load.kv_usage) == (0, 0, 0)


def play(scheduler: Scheduler, plans: list[Plan]) -> list[Client]:
    clients: list[Client] = []
    coming = list(enumerate(plans))
    now, next_arrival = 0.0, plans[0].arrives_after
    leaving: dict[int, list[Client]] = {}
    for step in range(MAX_STEPS):
        while coming and step >= next_arrival:
            number, plan = coming.pop(0)
            output = array("I", range(100, 100 + plan.n_output))
            client = Client(Request(str(number), array("I", plan.prompt), output))
            scheduler.add(client.request)
            clients.append(client)
            if plan.stays is not None:
                leaving.setdefault(step + plan.stays, []).append(client)
            next_arrival = step + (coming[0][1].arrives_after if coming else 0)
        run = scheduler.begin_step(now)
        for client in leaving.pop(step, ()):
            client.gone = True
            scheduler.abort(client.request)
        if run is not None:
            now += run.first_s
            for generated in scheduler.end_step().tokens:
                clients[int(generated.request.request_id)].received.extend(generated.tokens)
            continue
        copy_at = scheduler.next_copy_at()
        if copy_at is None and not coming and not leaving:
            scheduler.begin_step(now)
            return clients
        now = now if copy_at is None else max(now, copy_at)
    raise AssertionError(f"requests are still unanswered after {MAX_STEPS} steps")
