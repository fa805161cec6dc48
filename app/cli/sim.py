"""Commands that simulate: `kvatlas replay`, `kvatlas tune`, `kvatlas simulate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...configs.errors import ConfigError
from ...events.errors import KVAtlasError
from ...sim.limits import (
    MAX_CPU_BLOCKS,
    MAX_CPU_GIB,
    MAX_GPU_BLOCKS,
    MAX_JOBS,
    MAX_SEEDS,
    MAX_SERVERS,
    MAX_TRIALS,
)
from .exit_status import fail
from .numbers import numbers

if TYPE_CHECKING:
    from rich.console import Console

GpuBlocks = Annotated[int, typer.Option(min=16, max=MAX_GPU_BLOCKS, help="GPU blocks per server.")]
BlockSize = Annotated[int, typer.Option(min=1, help="Tokens per block.")]
Granularity = Annotated[int, typer.Option(min=1, help="Blocks simulated as one; more is faster and coarser.")]
Storage = Annotated[bool, typer.Option("--storage", help="Shared storage behind the CPU tiers.")]
Speed = Annotated[float, typer.Option(min=0.01, max=10_000.0, help="Speed relative to the recording.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Maximum number of requests.")]
WarmUp = Annotated[int, typer.Option(min=0, help="First requests that are not counted.")]
Roles = Annotated[
    str | None,
    typer.Option(
        metavar="ROLE=N,...", help="Servers that prefill, decode, do both or encode: prefill=2,decode=6."
    ),
]
LinkGbit = Annotated[
    float | None, typer.Option(min=0.001, help="Gbit/s per server and direction between servers with roles.")
]
Zones = Annotated[int, typer.Option(min=1, help="Zones over which the servers of each role are spread.")]
ZoneGbit = Annotated[
    float | None, typer.Option(min=0.001, help="Gbit/s from one zone to another, of all servers together.")
]
Chance = Annotated[float, typer.Option(min=0.0, max=1.0, metavar="0..1")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(replay)
    app.command()(tune)
    app.command()(simulate)


def replay(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE",
            help="Trace file (Mooncake format), or shared-prefix:, agents: or weka: with NAME=VALUE,...",
        ),
    ],
    *,
    config: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Configuration to compare; repeatable.")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Policy to compare; repeatable. Alone: all.")
    ] = None,
    cpu_gb: Annotated[str, typer.Option(metavar="N,...", help="CPU tier per server in GiB.")] = "0,100",
    endpoints: Annotated[str, typer.Option(metavar="N,...", help="Number of servers.")] = "8",
    roles: Roles = None,
    link_gbit: LinkGbit = None,
    zones: Zones = 1,
    zone_gbit: ZoneGbit = None,
    gpu_blocks: GpuBlocks = 9271,
    block_size: BlockSize = 16,
    granularity: Granularity = 4,
    storage: Storage = False,
    speed: Speed = 1.0,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Replays of each case.")] = 1,
    limit: Limit = None,
    warm_up: WarmUp = 0,
    curve: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="Hit rate with CPU tiers of these GiB, from reuse distances."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=MAX_JOBS, help="Number of processes.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
    plots: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder to write plots to (SVG).")
    ] = None,
) -> None:
    """Replay a trace on simulated engines with other weights, policies, CPU memory or servers."""
    from ...sim import hardware
    from ...sim.replay.command import ReplayOptions, run_replay

    options = ReplayOptions(
        trace=trace,
        configs=config or (),
        policies=policy or (),
        cpu_gib=numbers("--cpu-gb", cpu_gb, float, at_least=0.0, at_most=MAX_CPU_GIB),
        endpoints=numbers("--endpoints", endpoints, int, at_least=1, at_most=MAX_SERVERS),
        roles=_roles(roles, link_gbit=link_gbit, zones=zones, zone_gbit=zone_gbit),
        zones=zones,
        network=hardware.network(link_gbit, zone_gbit_per_s=zone_gbit),
        gpu_blocks=gpu_blocks,
        block_size=block_size,
        granularity=granularity,
        storage=storage,
        speed=speed,
        seeds=seeds,
        limit=limit,
        warm_up=warm_up,
        curve_gib=()
        if curve is None
        else numbers("--curve", curve, float, at_least=0.0, at_most=MAX_CPU_GIB),
        jobs=jobs,
        json=json,
        plots=plots,
    )
    _run(lambda console: run_replay(console, options))


def tune(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="As for replay.")],
    *,
    config: Annotated[
        Path, typer.Option(metavar="FILE", help="Configuration whose weights and credits are tuned.")
    ],
    trials: Annotated[int, typer.Option(min=3, max=MAX_TRIALS, help="Number of settings to try.")] = 40,
    objective: Annotated[
        str, typer.Option(help="Objective: mean, p50, p90 or p99 of the time to first token.")
    ] = "mean",
    max_p99: Annotated[
        float, typer.Option(min=0.0, help="Largest allowed growth of its p99, as a factor.")
    ] = 1.1,
    max_busiest: Annotated[
        float,
        typer.Option(min=0.0, help="Largest allowed growth of the busiest server's share, as a factor."),
    ] = 1.1,
    cpu_gb: Annotated[
        str, typer.Option(metavar="N|LOW..HIGH", help="CPU tier per server in GiB; a range is tuned.")
    ] = "100",
    gb_price: Annotated[
        float | None,
        typer.Option(
            min=0.0, metavar="MS", help="Milliseconds of the objective a GiB must bring. Default: the knee."
        ),
    ] = None,
    endpoints: Annotated[int, typer.Option(min=1, max=MAX_SERVERS, help="Number of servers.")] = 8,
    gpu_blocks: GpuBlocks = 9271,
    block_size: BlockSize = 16,
    granularity: Granularity = 8,
    storage: Storage = False,
    speed: Speed = 1.0,
    seeds: Annotated[
        int, typer.Option(min=2, max=MAX_SEEDS, help="Replays per trial, and one for the final comparison.")
    ] = 2,
    limit: Limit = None,
    warm_up: WarmUp = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write the tuned configuration to.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write the Pareto plot to (SVG).")
    ] = None,
) -> None:
    """Search weights, tier credits and CPU memory that lower the time to first token on a trace, within guard rails."""
    from ...sim.replay.command import ReplayOptions

    low, *more = numbers("--cpu-gb", cpu_gb, float, at_least=0.0, at_most=MAX_CPU_GIB, separator="..")
    if len(more) > 1 or (more and low >= more[0]):
        raise typer.BadParameter(f"found {cpu_gb!r}, want N or LOW..HIGH", param_hint="--cpu-gb")
    options = ReplayOptions(
        trace=trace,
        configs=(config,),
        cpu_gib=(low,),
        endpoints=(endpoints,),
        gpu_blocks=gpu_blocks,
        block_size=block_size,
        granularity=granularity,
        storage=storage,
        speed=speed,
        seeds=seeds,
        limit=limit,
        warm_up=warm_up,
        json=json,
    )

    def run(console: Console) -> None:
        from ...sim.tuning.command import TuneOptions, run_tune
        from ...sim.tuning.cpu_sizes import CpuSizes
        from ...sim.tuning.search import Goal

        price_s = None if gb_price is None else gb_price / 1000
        cpu_sizes = CpuSizes(low, more[0], price_s) if more else None
        goal = Goal(objective, max_p99=max_p99, max_busiest=max_busiest, cpu_sizes=cpu_sizes)
        run_tune(console, TuneOptions(replay=options, goal=goal, trials=trials, out=out, plot=plot))

    _run(run)


def simulate(
    *,
    servers: Annotated[int, typer.Option(min=1, max=MAX_SERVERS, help="Number of servers.")] = 4,
    roles: Roles = None,
    link_gbit: LinkGbit = None,
    zones: Zones = 1,
    zone_gbit: ZoneGbit = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; ports are chosen by the system.")
    ] = "127.0.0.1",
    gpu_blocks: GpuBlocks = 9271,
    cpu_blocks: Annotated[
        int, typer.Option(min=0, max=MAX_CPU_BLOCKS, help="CPU tier blocks per server.")
    ] = 0,
    chunk_blocks: Annotated[int, typer.Option(min=1, help="Blocks per chunk of the CPU tier.")] = 1,
    block_size: BlockSize = 16,
    storage: Storage = False,
    placeholders: Annotated[
        bool, typer.Option("--placeholders", help="Send only hashes in events of slower tiers.")
    ] = False,
    time_scale: Annotated[float, typer.Option(min=0.0, help="Real seconds per simulated second.")] = 1.0,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write a configuration for kvatlas serve to.")
    ] = None,
    drop_events: Chance = 0.0,
    duplicate_events: Chance = 0.0,
    reorder_events: Chance = 0.0,
    corrupt_events: Chance = 0.0,
    truncate_events: Chance = 0.0,
    foreign_events: Chance = 0.0,
    event_lag: Annotated[float, typer.Option(min=0.0, metavar="SECONDS")] = 0.0,
    replay_batches: Annotated[int, typer.Option(min=0, help="Event batches kept for replay.")] = 10_000,
    refuse: Chance = 0.0,
    abort: Chance = 0.0,
    slow: Chance = 0.0,
    slow_by: Annotated[float, typer.Option(min=0.0, metavar="SECONDS")] = 5.0,
    restart_every: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Mean time between crashes.")
    ] = 0.0,
    down_for: Annotated[float, typer.Option(min=0.0, metavar="SECONDS")] = 2.0,
    seed: Annotated[int, typer.Option(help="Seed of faults and restarts.")] = 0,
) -> None:
    """Run simulated servers with the OpenAI API, metrics and KV events on real sockets; faults are optional."""
    from ...api.descriptors import raise_limit
    from ...sim import hardware
    from ...sim.faults import EventFaults, HttpFaults
    from ...sim.live import SimulateOptions, run_simulate

    raise_limit()
    options = SimulateOptions(
        servers=servers,
        roles=_roles(roles, link_gbit=link_gbit, zones=zones, zone_gbit=zone_gbit),
        zones=zones,
        network=hardware.network(link_gbit, zone_gbit_per_s=zone_gbit),
        host=host,
        block_size=block_size,
        gpu_blocks=gpu_blocks,
        cpu_blocks=cpu_blocks,
        chunk_blocks=chunk_blocks,
        storage=storage,
        self_describing=not placeholders,
        time_scale=time_scale,
        replay_batches=replay_batches,
        event_faults=EventFaults(
            drop=drop_events,
            duplicate=duplicate_events,
            reorder=reorder_events,
            corrupt=corrupt_events,
            truncate=truncate_events,
            foreign=foreign_events,
            lag_s=event_lag,
        ),
        http_faults=HttpFaults(refuse=refuse, abort=abort, slow=slow, slow_s=slow_by),
        restart_every_s=restart_every,
        down_s=down_for,
        config=config,
        seed=seed,
    )
    _run(lambda console: run_simulate(console, options))


def _roles(
    text: str | None, *, link_gbit: float | None, zones: int, zone_gbit: float | None
) -> tuple[str, ...]:
    """Parse the option `--roles`.

    Raises:
        typer.BadParameter: it names no servers, or another option has no effect without it or without zones.
    """
    from ...sim.errors import ReplayError
    from ...sim.roles import parse_roles

    given = {"--link-gbit": link_gbit is not None, "--zones": zones > 1, "--zone-gbit": zone_gbit is not None}
    for option, is_given in given.items():
        if is_given and text is None:
            raise typer.BadParameter("needs --roles: only these servers use a network", param_hint=option)
    if zone_gbit is not None and zones == 1:
        raise typer.BadParameter("needs --zones of at least 2", param_hint="--zone-gbit")
    try:
        return () if text is None else parse_roles(text)
    except ReplayError as error:
        raise typer.BadParameter(str(error), param_hint="--roles") from error


def _run(command: Callable[[Console], None]) -> None:
    """Run a command; an input that it cannot use ends it with status 2 and one line."""
    from rich.console import Console

    try:
        command(Console())
    except (ConfigError, KVAtlasError) as error:
        fail(str(error))
