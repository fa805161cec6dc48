"""The simulated setups: the published deployments, and variations that show what matters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from ...configs.decisions import PredictionsConfig
from ...configs.schema import DEFAULT_TIERS, KVAtlasConfig
from .. import hardware
from ..replay.comparison import Case, Plan, replay_all
from ..replay.figures import Estimate, estimate
from ..replay.fleet_spec import FleetSpec
from ..replay.policies import Policy
from ..replay.simulation import Timing
from ..traces.shared_prefix import SharedPrefixSpec, shared_prefix_trace
from ..traces.trace import Trace
from .published import CPU_BLOCKS, FIGURES, SERVERS, WORKLOADS

SEEDS, GRANULARITY = 10, 4

FLEET = FleetSpec(servers=SERVERS, cpu_blocks=CPU_BLOCKS)

ROUTED = Policy("approximate")
"""As published: contents are learned from routed requests."""

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Setup:
    """One way to run the benchmark, with and without a CPU tier.

    Attributes:
        name: for the page.
        policy: how requests are routed.
        fleet: the servers with their CPU tier.
        is_warm: whether as many requests as are counted came before.
    """

    name: str
    policy: Policy = ROUTED
    fleet: FleetSpec = FLEET
    is_warm: bool = False


@dataclass(frozen=True)
class Result:
    """Figures of one setup on one workload over all seeds; changes are computed seed by seed."""

    baseline: Mapping[str, Estimate]
    offloading: Mapping[str, Estimate]
    changes: Mapping[str, Estimate]


_HALF_LINK = replace(
    hardware.H100_SXM,
    host_bytes_per_s=hardware.H100_SXM.host_bytes_per_s / 2,
    host_bytes_per_s_both_ways=hardware.H100_SXM.host_bytes_per_s_both_ways / 2,
)

PUBLISHED = Setup("as published")
WARM = Setup("the same, caches warm", is_warm=True)
PRECISE = Setup("contents from events", policy=Policy("precise"))
UNPREDICTED = Setup(
    "contents from events, none predicted",
    policy=Policy(
        "unpredicted",
        KVAtlasConfig(
            api_version="kvatlas/v1",
            tiers=DEFAULT_TIERS[:2],
            predictions=PredictionsConfig(enabled=False),
        ),
    ),
)

VARIATIONS = (
    PUBLISHED,
    WARM,
    PRECISE,
    UNPREDICTED,
    Setup(
        "CPU tier of 100 GiB by this model's block",
        fleet=replace(FLEET, cpu_blocks=hardware.blocks_in(100)),
    ),
    Setup("copies halt the engine", fleet=replace(FLEET, times=hardware.service_times(copies_overlap=False))),
    Setup(
        "copies to the CPU tier free",
        fleet=replace(FLEET, times=replace(hardware.service_times(), store_s_per_token=0.0)),
    ),
    Setup("link at half its bandwidth", fleet=replace(FLEET, times=hardware.service_times(gpu=_HALF_LINK))),
    Setup("round robin", policy=Policy("round-robin")),
)


def run_setup(
    setup: Setup, workload: str, *, seeds: int, granularity: int, jobs: int, progress: Callable[[], None]
) -> Result:
    """Replay both sides of one setup, with the same traces."""
    spec = WORKLOADS[workload]
    n_counted = spec.num_groups * spec.num_prompts_per_group
    if setup.is_warm:
        spec = msgspec.structs.replace(spec, num_prompts_per_group=2 * spec.num_prompts_per_group)
    plan = Plan(_traces(spec, seeds), Timing(), granularity, warm_up=n_counted if setup.is_warm else 0)
    fleets = (replace(setup.fleet, cpu_blocks=0), setup.fleet)
    cases = [Case(setup.policy, fleet, fleet.cpu_blocks) for fleet in fleets]
    baseline, offloading = replay_all(plan, cases, jobs=jobs, progress=progress)
    return Result(
        _estimates(baseline),
        _estimates(offloading),
        _estimates(
            [
                {name: after[name] / before[name] - 1 for name in FIGURES}
                for before, after in zip(baseline, offloading, strict=True)
            ]
        ),
    )


def _traces(spec: SharedPrefixSpec, seeds: int) -> tuple[Trace, ...]:
    return tuple(shared_prefix_trace(spec, seed=seed) for seed in range(1, seeds + 1))


def _estimates(runs: Sequence[Figures]) -> dict[str, Estimate]:
    return {name: estimate([run[name] for run in runs]) for name in runs[0]}
