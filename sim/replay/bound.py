"""A bound that no routing policy can beat: the least time to the first token, and the most prompt tokens found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from random import Random

from ..service_times import ServiceTimes, StepWork
from ..traces.arrivals import first_arrivals
from ..traces.trace import Trace
from .figures import percentile
from .fleet_spec import FleetSpec
from .relaxation import Job, pooled_flow_s
from .simulation import Timing
from .unseen import Arrival, cachable_tokens


@dataclass(frozen=True, slots=True)
class Bound:
    """What no policy can beat.

    Attributes:
        alone_s: least seconds to the first token of each counted request, by its number in the trace.
        mean_s: least mean of the counted requests.
        hit_rate: greatest fraction of their prompt tokens that can be found.
    """

    alone_s: Mapping[int, float]
    mean_s: float
    hit_rate: float


def bound(trace: Trace, fleet: FleetSpec, *, timing: Timing, rng: Random, warm_up: int = 0) -> Bound:
    """Return bounds that hold for every policy, also for one that knows all requests, holds them back or moves caches.

    1. A prompt block that only requests after this one contain is computed after its arrival (`cachable_tokens`). All other
       blocks count as held by the GPU of every server. The blocks of a prompt depend on those before, so even with caches
       that all share they are computed one after another: on the fastest server alone, in chunks of the largest step. This
       is each request's least time, and bounds the mean and every percentile.
    2. Such blocks are different for different requests with fixed arrivals: each counts for the first. So the least work of
       each of these is spent between its arrival and its first token, on servers that share it. `pooled_flow_s` bounds the
       sum of their times. It is used if it is larger than the sum by 1. The work counts computing and each token's part of a
       full step's overhead, which is what it costs at least in company.

    Ignored are generated tokens, loads between tiers, and evictions. So the bound is low if caches are small or most of the
    servers' time goes into generating.

    Args:
        trace: requests.
        fleet: engines.
        timing: as of the replay.
        rng: as of the replay, for equal arrivals.
        warm_up: first requests that are not counted. Requests that no engine can ever hold are not counted either.
    Cost: O(blocks).
    """
    speeds = [fleet.speeds[each % len(fleet.speeds)] for each in range(fleet.servers)]
    times = fleet.times_of(speeds.index(max(speeds)))
    arrivals = _arrivals(trace, timing, rng)
    cachable = cachable_tokens(trace, arrivals, block_size=fleet.block_size)
    work = [
        _least_work(request.n_prompt, n_cached, times, fleet.max_num_batched_tokens)
        for request, n_cached in zip(trace.requests, cachable, strict=True)
    ]
    counted = [
        number
        for number, each in enumerate(trace.requests)
        if number >= warm_up and each.n_tokens <= fleet.max_request_tokens
    ]
    fixed = [number for number in counted if arrivals[number].is_fixed]
    jobs = [Job(arrivals[number].earliest_at, work[number].shared_s) for number in fixed]
    pooled_s = pooled_flow_s(jobs, machines=sum(speeds) / max(speeds))
    fixed_s = sum(work[number].alone_s for number in fixed)
    total_s = sum(work[number].alone_s for number in counted) - fixed_s + max(fixed_s, pooled_s)
    n_prompt = sum(trace.requests[number].n_prompt for number in counted)
    return Bound(
        alone_s={number: work[number].alone_s for number in counted},
        mean_s=total_s / max(1, len(counted)),
        hit_rate=sum(cachable[number] for number in counted) / max(1, n_prompt),
    )


def bound_figures(found: Bound) -> dict[str, float]:
    """Return those of the figures of a replay that are bounded."""
    alone_s = sorted(found.alone_s.values())
    return {
        "hitRate": found.hit_rate,
        "ttftMean": found.mean_s,
        **{f"ttftP{percent}": percentile(alone_s, percent / 100) for percent in (50, 90, 99)},
    }


@dataclass(frozen=True, slots=True)
class _Work:
    """Seconds of the fastest server: with nobody else in its steps, and as its part of full steps."""

    alone_s: float
    shared_s: float


def _least_work(n_prompt: int, n_cached: int, times: ServiceTimes, max_step_tokens: int) -> _Work:
    n_new = max(1, n_prompt - n_cached)  # the last token is always computed, for its logits
    work = StepWork()
    work.add_prefill(n_new, end=n_prompt)
    attention_s, n_steps = work.n_pairs * times.attention_s_per_pair, ceil(n_new / max_step_tokens)
    compute_s = n_new * times.prefill_s_per_token
    return _Work(
        alone_s=n_steps * times.step_s + max(n_steps * times.weights_s, compute_s) + attention_s,
        shared_s=n_new / max_step_tokens * times.step_s + compute_s + attention_s,
    )


def _arrivals(trace: Trace, timing: Timing, rng: Random) -> list[Arrival]:
    """Return what is known of the arrivals; with constant concurrency, only the first ones are fixed."""
    first = first_arrivals(trace, speed=timing.speed, jitter_s=timing.jitter_s, rng=rng)
    roots = sorted((at_s, number) for number, at_s in enumerate(first) if at_s is not None)
    fixed = {number for _at_s, number in roots[: trace.concurrency]}
    found: list[Arrival] = []
    for number, (request, at_s) in enumerate(zip(trace.requests, first, strict=True)):
        if at_s is not None:
            found.append(Arrival(at_s, is_fixed=number in fixed))
        elif request.after is not None:
            found.append(
                Arrival(found[request.after].earliest_at + request.at_s / timing.speed, is_fixed=False)
            )
    return found
