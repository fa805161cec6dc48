"""`kvatlas replay`: the effect of other weights, policies, CPU sizes or fleet sizes on a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ...routing.plan.load import load_scheduled
from .. import hardware
from ..errors import ReplayError
from ..kv_network import NetworkSpec
from ..limits import check_fleet_blocks
from ..traces.named import named_traces
from .comparison import Case, Outcome, Plan, bounds, compare
from .fleet_spec import FleetSpec
from .policies import POLICIES, STAGE_POLICIES, Policy, named_policy
from .report import curve_table, tables, to_json, with_bounds
from .simulation import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Options of the command.

    Attributes:
        trace: path of a trace, or a generator with its settings.
        configs: configuration files to compare.
        policies: built-in policies to compare; all of them if there are neither files nor policies.
        cpu_gib: sizes of a server's CPU tier.
        endpoints: numbers of servers.
        roles: role of each server, in place of `endpoints`; empty if all do all.
        zones: zones over which the servers of each role are spread.
        network: between servers with roles.
        gpu_blocks: blocks of a server's GPU.
        block_size: tokens per block.
        granularity: number of blocks simulated as one.
        storage: whether the servers share a storage tier.
        speed: factor by which requests arrive faster than recorded.
        seeds: replays per case.
        limit: maximum number of requests; None for all.
        warm_up: number of requests that fill the caches and are not counted.
        curve_gib: sizes of the CPU tier whose hit rate is computed from reuse distances, ascending.
        jobs: number of processes.
        json: whether the figures are printed as JSON.
        plots: folder for plots; None for no plots.
    """

    trace: str
    configs: Sequence[Path] = ()
    policies: Sequence[str] = ()
    cpu_gib: Sequence[float] = (0.0, 100.0)
    endpoints: Sequence[int] = (8,)
    roles: tuple[str, ...] = ()
    zones: int = 1
    network: NetworkSpec = field(default_factory=hardware.network)
    gpu_blocks: int = hardware.GPU_BLOCKS
    block_size: int = hardware.BLOCK_SIZE
    granularity: int = 4
    storage: bool = False
    speed: float = 1.0
    seeds: int = 1
    limit: int | None = None
    warm_up: int = 0
    curve_gib: Sequence[float] = ()
    jobs: int = 1
    json: bool = False
    plots: Path | None = None


def run_replay(console: Console, options: ReplayOptions) -> None:
    """Replay the trace and print the results.

    Raises:
        KVAtlasError: trace, configuration or options cannot be used.
    """
    cases = make_cases(options)
    plan = make_plan(options)
    if options.plots is not None:
        from .plots import check_plots  # noqa: PLC0415 - needs the extra `plots`

        check_plots(options.plots)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(plan.traces[0].name, total=len(cases) * options.seeds)
        outcomes = compare(plan, cases, jobs=options.jobs, progress=lambda: progress.advance(task))
        rows = with_bounds(outcomes, bounds(plan, cases, jobs=options.jobs))
    if options.json:
        console.out(to_json(rows).decode(), end="", highlight=False)
    else:
        _print(console, plan, outcomes, rows)
    if options.plots is not None:
        from .plots import write_plots  # noqa: PLC0415 - needs the extra `plots`

        for file in write_plots(outcomes, options.plots, title=plan.traces[0].name):
            console.print(f"wrote {file}", markup=False, highlight=False)


def make_plan(options: ReplayOptions) -> Plan:
    """Read the trace and make the settings of the replays.

    Raises:
        TraceError: the trace cannot be read.
        ReplayError: the block size is not compatible with that of the trace, or the warm-up leaves no request.
    """
    traces = named_traces(options.trace, n_seeds=options.seeds, limit=options.limit)
    trace = traces[0]
    size = options.block_size * options.granularity
    if trace.block_size % size and size % trace.block_size:
        raise ReplayError(
            f"blocks of {options.block_size} tokens, {options.granularity} simulated as one, do not fit block ids of "
            f"{trace.block_size} tokens; choose another --granularity"
        )
    n_requests = min(len(each.requests) for each in traces)
    if options.warm_up >= n_requests:
        raise ReplayError(
            f"--warm-up: found {options.warm_up}, want at most {n_requests - 1}, so that one of the {n_requests} requests of "
            f"{trace.name} is counted"
        )
    timing = Timing(speed=options.speed, jitter_s=trace.clock_grain_s() / options.speed)
    return Plan(traces, timing, options.granularity, options.warm_up, tuple(sorted(options.curve_gib)))


def make_cases(options: ReplayOptions) -> list[Case]:
    """Combine all policies with all fleets.

    Raises:
        ConfigError: a configuration file cannot be used.
        ReplayError: a policy does not exist, or a fleet is too large.
    """
    known = STAGE_POLICIES if options.roles else POLICIES
    named = options.policies or ([] if options.configs else list(known))
    policies = [
        *(Policy(file.stem, load_scheduled(file).config) for file in options.configs),
        *(named_policy(name) for name in named),
    ]
    fleets = [
        (cpu_gib, _fleet(options, servers, cpu_gib))
        for servers in ((len(options.roles),) if options.roles else options.endpoints)
        for cpu_gib in options.cpu_gib
    ]
    return [Case(policy, fleet, cpu_gib) for cpu_gib, fleet in fleets for policy in policies]


def _fleet(options: ReplayOptions, servers: int, cpu_gib: float) -> FleetSpec:
    fleet = FleetSpec(
        servers=servers,
        block_size=options.block_size,
        gpu_blocks=options.gpu_blocks,
        cpu_blocks=hardware.blocks_in(cpu_gib, block_size=options.block_size),
        has_storage=options.storage,
        roles=options.roles,
        zones=options.zones,
        network=options.network,
    )
    check_fleet_blocks(servers, fleet.coarser(options.granularity).gpu_blocks)
    return fleet


def _print(console: Console, plan: Plan, outcomes: Sequence[Outcome], rows: Sequence[Outcome]) -> None:
    trace = plan.traces[0]
    n_requests = len(trace.requests)
    console.print(
        f"{trace.name}: {n_requests} requests, {trace.prompt_tokens / n_requests:.0f} prompt tokens each, "
        f"{len(plan.traces)} seed(s)\n"
        f"simulated servers: Qwen3-32B on {hardware.TENSOR_PARALLEL} H100",
        highlight=False,
    )
    if trace.assumed is not None:
        console.print(
            f"{trace.assumed.n_requests} requests have no output length; {trace.assumed.n_output} tokens are assumed",
            highlight=False,
        )
    for table in tables(rows):
        console.print(table, crop=False)
    if plan.curve_gib:
        console.print(curve_table(outcomes, plan.curve_gib), crop=False)
