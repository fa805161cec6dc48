"""Small traces and fleets for replay tests."""

from __future__ import annotations

from random import Random
from typing import Any

from kvatlas.sim.replay.fleet_spec import FleetSpec
from kvatlas.sim.service_times import ServiceTimes
from kvatlas.sim.traces.trace import Trace, TraceRequest

BLOCK = 4

TIMES = ServiceTimes(
    prefill_s_per_token=1 / 64,
    load_s_per_token=1 / 512,
    step_s=1 / 64,
    attention_s_per_pair=1 / 8192,
    context_s_per_token=1 / 4096,
    fetch_s_per_token=1 / 128,
)


def make_fleet(**spec: Any) -> FleetSpec:
    defaults: dict[str, Any] = {
        "servers": 2,
        "block_size": BLOCK,
        "gpu_blocks": 40,
        "cpu_blocks": 30,
        "times": TIMES,
    }
    return FleetSpec(**defaults | spec)


def make_trace(
    *requests: tuple[float, int, tuple[int, ...]], output: int = 3, concurrency: int | None = None
) -> Trace:
    """Return requests given as (time, prompt tokens, block ids); each is its own session."""
    return Trace(
        "made",
        BLOCK,
        [
            TraceRequest(at, n, output, ids, session=f"s{number}")
            for number, (at, n, ids) in enumerate(requests)
        ],
        concurrency,
    )


def random_trace(seed: int, *, n_requests: int = 60, concurrency: int | None = None) -> Trace:
    """Return conversations that share openings and continue, at times that keep a small fleet busy."""
    rng = Random(seed)
    openings = [tuple(range(100 * group, 100 * group + rng.randint(1, 6))) for group in range(4)]
    requests: list[TraceRequest] = []
    at, fresh = 0.0, 10_000
    for number in range(n_requests):
        at += rng.expovariate(2.0)
        opening = rng.choice(openings)
        ids = (*opening, *range(fresh, fresh + rng.randint(1, 6)))
        fresh += 10
        n_prompt = (len(ids) - 1) * BLOCK + rng.randint(1, BLOCK)
        requests.append(TraceRequest(at, n_prompt, rng.randint(1, 12), ids, session=f"s{number % 7}"))
        if rng.random() < 0.3 and len(ids) <= 10:
            openings[rng.randrange(4)] = ids
    return Trace(f"random-{seed}", BLOCK, requests, concurrency)
