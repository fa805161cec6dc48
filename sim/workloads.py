"""The workloads on which routing policies are judged: what arrives, on which servers, and at which loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from . import hardware
from .errors import SimError
from .replay.fleet_spec import FleetSpec
from .service_times import ServiceTimes
from .traces.agents import AgentsSpec, agents_trace
from .traces.mooncake import read_trace
from .traces.shared_prefix import SharedPrefixSpec, Stage, shared_prefix_trace, staged_prefix_trace
from .traces.trace import Trace

MakeTrace = Callable[[float, int], Trace]
"""(load, seed) -> the requests at that load. Equal arguments give equal traces, so it can be sent to another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One workload and the fleet that serves it.

    Attributes:
        name: for tables, unique; the part after the last `/` names the fleet.
        unit: of the loads.
        loads: from light to more than the fleet sustains, ascending.
        fleet: the servers.
        make: makes the requests of one load and seed.
        granularity: blocks to simulate as one; it fits the trace's block ids.
        warm_up: first requests that fill the caches and are not counted.
    """

    name: str
    unit: str
    loads: tuple[float, ...]
    fleet: FleetSpec
    make: MakeTrace
    granularity: int = 4
    warm_up: int = 0

    @property
    def cpu_gib(self) -> float:
        """Size of a server's CPU tier in GiB."""
        return self.fleet.cpu_blocks / hardware.blocks_in(1, block_size=self.fleet.block_size)


GPU_ONLY = FleetSpec()
WITH_CPU = FleetSpec(cpu_blocks=hardware.blocks_in(100))
TWO_SPEEDS = replace(WITH_CPU, speeds=(1.0, 0.5))
"""Every second server needs twice the time for all that it computes."""

PUBLISHED_45 = FleetSpec(cpu_blocks=41_000)
"""The tiered guide's servers at 97b61b84."""
PUBLISHED_250 = FleetSpec(gpu_blocks=2_384_000 // (8 * 16), cpu_blocks=10_496_000 // (8 * 16))
"""The newest tiered guide's servers at 05126b7e: its totals of tokens over 8 of them."""

LIVE = FleetSpec(
    servers=6,
    gpu_blocks=4_000,
    cpu_blocks=10_000,
    times=ServiceTimes(prefill_s_per_token=0.0002, load_s_per_token=0.00002, step_s=0.008),
)
"""Six servers of `kvatlas sim`, with its default service times. Caches are of a size at which a random choice finds half of the
tokens of `CHATS` at 2 chats a second, as was measured beside the reference picker; it does not say its sizes."""

GROUPS_45 = SharedPrefixSpec(
    num_groups=45, num_prompts_per_group=10, system_prompt_len=30_000, question_len=256, output_len=1024
)
TIERED = SharedPrefixSpec(
    num_groups=250, num_prompts_per_group=5, system_prompt_len=16_000, question_len=256, output_len=256
)
"""The newest tiered guide, 60 s at each rate."""
OPTIMIZED = SharedPrefixSpec(
    num_groups=150, num_prompts_per_group=5, system_prompt_len=6_000, question_len=1_200, output_len=1_000
)
"""The optimized baseline."""
ONE_PROMPT = SharedPrefixSpec(
    num_groups=1, num_prompts_per_group=1, system_prompt_len=4_096, question_len=500, output_len=300
)
"""One system prompt that all requests share; there are as many questions as requests."""
AGENTS = AgentsSpec(turns=12)
MIN_AGENTS = 40
"""Number of agents at small loads, so that more than a few requests are measured."""
CODING = AgentsSpec(turns=14, tool_sets=4, system_len=22_000, turn_len=2_000, output_len=300, think_s=10.0)
"""Coding agents by what is published of recorded ones: 2,000 new tokens on a context of 37,000."""
CHATS = AgentsSpec(
    turns=4,
    tool_sets=24,
    system_len=6_500,
    turn_len=750,
    output_len=200,
    think_s=5.0,
    block_size=16,
)
"""Prompts of 8,700 tokens in the mean."""


def agents(spec: AgentsSpec, seconds: float, load: float, seed: int) -> Trace:
    """Generate agents of which `load` start per second, for so many seconds."""
    n_agents = max(MIN_AGENTS, round(load * seconds))
    return agents_trace(msgspec.structs.replace(spec, agents=n_agents, starts_per_s=load), seed=seed)


def closed(spec: SharedPrefixSpec, load: float, seed: int) -> Trace:
    """Generate groups of prompts, of which `load` are under way at any time."""
    return shared_prefix_trace(msgspec.structs.replace(spec, concurrency=round(load)), seed=seed)


def staged(spec: SharedPrefixSpec, load: float, seed: int) -> Trace:
    """Generate groups of prompts: all of them to fill the caches, then `load` per second for a minute."""
    return staged_prefix_trace(spec, (_filling(spec), Stage(load, 60.0)), seed=seed)


def hot(spec: SharedPrefixSpec, load: float, seed: int) -> Trace:
    """Generate `load` requests per second for a minute, no two alike."""
    stage = Stage(load, 60.0)
    return staged_prefix_trace(
        msgspec.structs.replace(spec, num_prompts_per_group=stage.n_requests), (stage,), seed=seed
    )


def _filling(spec: SharedPrefixSpec) -> Stage:
    return Stage(rate=8.0, seconds=spec.num_groups * spec.num_prompts_per_group / 8.0)


def recorded(file: Path, limit: int | None, load: float, seed: int) -> Trace:  # noqa: ARG001 - see MakeTrace
    """Read a recording, and let its requests arrive `load` times faster."""
    trace = read_trace(file, limit=limit)
    faster = [
        replace(each, at_s=each.at_s if each.after is not None else each.at_s / load)
        for each in trace.requests
    ]
    return replace(trace, requests=faster)


def _family(
    name: str,
    unit: str,
    make: MakeTrace,
    *fleets: tuple[str, FleetSpec, tuple[float, ...]],
    granularity: int = 4,
    warm_up: int = 0,
) -> tuple[Workload, ...]:
    return tuple(
        Workload(
            name=f"{name}/{place}",
            unit=unit,
            loads=loads,
            fleet=fleet,
            make=make,
            granularity=granularity,
            warm_up=warm_up,
        )
        for place, fleet, loads in fleets
    )


def _without_cpu(fleet: FleetSpec) -> FleetSpec:
    return replace(fleet, cpu_blocks=0)


GENERATED: tuple[Workload, ...] = (
    *_family(
        "agents",
        "agents/s",
        partial(agents, AGENTS, 240.0),
        ("gpu", GPU_ONLY, (0.5, 1.0, 1.5, 2.0)),
        ("cpu", WITH_CPU, (0.5, 1.0, 1.5, 2.0)),
        ("two-speeds", TWO_SPEEDS, (0.4, 0.8, 1.2, 1.6)),
    ),
    *_family(
        "coding",
        "agents/s",
        partial(agents, CODING, 480.0),
        ("gpu", GPU_ONLY, (0.1, 0.2, 0.3, 0.4)),
        ("cpu", WITH_CPU, (0.2, 0.4, 0.6, 0.8)),
    ),
    *_family(
        "chats",
        "chats/s",
        partial(agents, CHATS, 120.0),
        ("gpu", _without_cpu(LIVE), (1.4, 2.0, 2.6, 3.4)),
        ("cpu", LIVE, (1.4, 2.0, 2.6, 3.4)),
        granularity=2,
    ),
    *_family(
        "groups-closed",
        "under way",
        partial(closed, GROUPS_45),
        ("gpu", _without_cpu(PUBLISHED_45), (15, 30, 45, 60)),
        ("cpu", PUBLISHED_45, (15, 30, 45, 60)),
    ),
    *_family(
        "tiered",
        "requests/s",
        partial(staged, TIERED),
        ("gpu", _without_cpu(PUBLISHED_250), (3, 5, 7, 10)),
        ("cpu", PUBLISHED_250, (5, 10, 20, 40)),
        warm_up=1250,
    ),
    *_family(
        "optimized",
        "requests/s",
        partial(staged, OPTIMIZED),
        ("gpu", _without_cpu(PUBLISHED_250), (15, 30, 45, 60)),
        warm_up=750,
    ),
    *_family("one-prompt", "requests/s", partial(hot, ONE_PROMPT), ("gpu", GPU_ONLY, (20, 40, 80, 160))),
)


def workloads(conversation: Path | None = None, *, limit: int | None = None) -> tuple[Workload, ...]:
    """Return all workloads; with the path of the recorded conversations, these too, of which `limit` are replayed."""
    if conversation is None:
        return GENERATED
    return GENERATED + _family(
        "conversation",
        "x recorded",
        partial(recorded, conversation, limit),
        ("gpu", GPU_ONLY, (1.0, 1.5, 2.0, 2.5)),
        ("cpu", WITH_CPU, (1.5, 2.0, 2.5, 3.0)),
        ("two-speeds", TWO_SPEEDS, (1.0, 1.5, 2.0, 2.5)),
        granularity=8,
    )


def select(found: Sequence[Workload], names: Sequence[str]) -> tuple[Workload, ...]:
    """Return the workloads with these names, or whose names begin with one of them and `/`; all if there are no names.

    Raises:
        SimError: a name fits none.
    """
    if not names:
        return tuple(found)
    for name in names:
        if not any(name in (each.name, each.name.partition("/")[0]) for each in found):
            raise SimError(f"found workload {name!r}, want one of {', '.join(each.name for each in found)}")
    return tuple(each for each in found if {each.name, each.name.partition("/")[0]} & set(names))
