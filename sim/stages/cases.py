"""The cases: workloads on fleets with several ratios of prefill to decode servers, each at two loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean

import msgspec

from .. import hardware
from ..load_curves.point import Figures, Kept, Point, figures_at
from ..replay.fleet_spec import FleetSpec
from ..roles import parse_roles
from ..task_processes import results_of
from ..traces.mooncake import read_trace
from ..traces.shared_prefix import SharedPrefixSpec, shared_prefix_trace
from ..traces.trace import Trace
from ..workloads import Workload

UNIT = "requests/s per server"
NETWORKS = {
    "": hardware.network(),
    ", 25 Gbit/s": hardware.network(25.0),
    ", 2 zones": hardware.network(zone_gbit_per_s=25.0),
}
"""By a word for the tables. Between two zones there are 25 Gbit/s per direction."""

RATIOS = (
    ("1:3", ""),
    ("2:2", ""),
    ("3:1", ""),
    ("2:6", ""),
    ("4:4", ""),
    ("2:2", ", 25 Gbit/s"),
    ("4:4", ", 2 zones"),
)
"""Prefill to decode servers, and their network."""

CONVERSATION_LOADS, LONG_LOADS = (0.12, 0.3), (0.08, 0.2)
"""About 15 and 35 % of what the servers could compute together."""

GPU_GIB = 72.0
"""Memory for KV blocks of one engine: 90 % of two GPUs with 80 GB, less the weights, rounded down; assumed."""

GRANULARITY, WARM_UP = 8, 200
LIMIT = 1200
"""Requests per replay."""

LONG = SharedPrefixSpec(
    num_groups=40,
    num_prompts_per_group=30,
    system_prompt_len=6_144,
    question_len=17_856,
    output_len=200,
    block_size=hardware.BLOCK_SIZE * GRANULARITY,
)
"""Prompts of 24,000 tokens, a quarter of which 29 other prompts share."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of all policies in one case.

    Attributes:
        workload: the case's, at one of its loads.
        load: requests per second and server.
        figures: policy -> figures, means over seeds.
    """

    workload: Workload
    load: float
    figures: dict[str, Figures]


def cases(conversation: Path | None, *, limit: int = LIMIT) -> tuple[Workload, ...]:
    """Return the cases; those of the recorded conversations only if their file is given."""
    found: list[Workload] = []
    for ratio, network in RATIOS:
        n_prefill, _, n_decode = ratio.partition(":")
        fleet = _fleet(parse_roles(f"prefill={n_prefill},decode={n_decode}"), network)
        place = ratio + network
        long = partial(_long, limit, fleet.servers)
        if conversation is not None:
            recorded = partial(_conversation, conversation, limit, fleet.servers)
            found.append(_case(f"conversation/{place}", fleet, CONVERSATION_LOADS, recorded))
        found.append(_case(f"long/{place}", fleet, LONG_LOADS, long))
    return tuple(sorted(found, key=lambda each: each.name.partition("/")[0]))


def measure(
    found: Sequence[Workload],
    policies: Sequence[str],
    kept: Kept,
    *,
    seeds: int = 1,
    jobs: int = 1,
    progress: Callable[[], None] = lambda: None,
) -> list[Measured]:
    """Replay every case with every policy and seed.

    Args:
        found: the cases.
        policies: names of policies for servers with roles.
        kept: points that are known; gets the new ones, so that a later call goes on there.
        seeds: replays per point, counted from 1.
        jobs: number of processes.
        progress: called after each point.
    """
    points = [
        (each, Point(each.name, policy, load, seed))
        for each in found
        for load, policy, seed in product(each.loads, policies, range(1, seeds + 1))
    ]
    missing = [each for each in points if kept.get(each[1]) is None]
    with results_of([partial(figures_at, *each) for each in missing], jobs=jobs) as results:
        for place, figures in results:
            kept.add({missing[place][1]: figures})
            progress()
    return [
        Measured(each, load, {policy: _mean(kept, each, policy, load, seeds) for policy in policies})
        for each in found
        for load in each.loads
    ]


def _mean(kept: Kept, workload: Workload, policy: str, load: float, seeds: int) -> Figures:
    found = [kept.get(Point(workload.name, policy, load, seed)) or {} for seed in range(1, seeds + 1)]
    return {name: fmean(each[name] for each in found) for name in found[0]}


def _fleet(roles: tuple[str, ...], network: str) -> FleetSpec:
    return FleetSpec(
        servers=len(roles),
        roles=roles,
        gpu_blocks=hardware.blocks_in(GPU_GIB),
        zones=2 if "zones" in network else 1,
        network=NETWORKS[network],
    )


def _case(
    name: str, fleet: FleetSpec, loads: tuple[float, ...], make: Callable[[float, int], Trace]
) -> Workload:
    return Workload(
        name=name, unit=UNIT, loads=loads, fleet=fleet, make=make, granularity=GRANULARITY, warm_up=WARM_UP
    )


def _conversation(file: Path, limit: int, servers: int, load: float, seed: int) -> Trace:
    """Read a part of a recording, another one for each seed, and let its requests arrive at another mean rate."""
    trace = read_trace(file, limit=seed * limit)
    n_parts = -(-len(trace.requests) // limit)
    part = trace.requests[(seed - 1) % n_parts * limit :][:limit]
    begins_s, grain_s = part[0].at_s, trace.clock_grain_s()
    scale = (part[-1].at_s - begins_s + grain_s) * load * servers / len(part)
    requests = [replace(each, at_s=(each.at_s - begins_s) / scale) for each in part]
    return replace(trace, requests=requests)


def _long(limit: int, servers: int, load: float, seed: int) -> Trace:
    n_each = -(-limit // LONG.num_groups)
    spec = msgspec.structs.replace(LONG, rate=load * servers, num_prompts_per_group=n_each)
    trace = shared_prefix_trace(spec, seed=seed)
    return replace(trace, requests=trace.requests[:limit])
