"""Commands that simulate: `kvatlas replay`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from ..configs.errors import ConfigError
from ..events.errors import KVAtlasError

USAGE_ERROR = 2

T = TypeVar("T", int, float)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(replay)


def replay(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE",
            help="Trace file (Mooncake format), or shared-prefix:NAME=VALUE,... or agents:NAME=VALUE,...",
        ),
    ],
    *,
    config: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Compare it; repeatable.")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Compare it; repeatable. Alone: all.")
    ] = None,
    cpu_gb: Annotated[str, typer.Option(metavar="N,...", help="CPU tier of a server in GiB.")] = "0,100",
    endpoints: Annotated[str, typer.Option(metavar="N,...", help="Servers.")] = "8",
    gpu_blocks: Annotated[int, typer.Option(min=16, help="Blocks of a server's GPUs.")] = 9271,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens a block.")] = 16,
    granularity: Annotated[int, typer.Option(min=1, help="Blocks simulated as one: faster, coarser.")] = 4,
    storage: Annotated[bool, typer.Option("--storage", help="Shared storage behind the CPU tiers.")] = False,
    speed: Annotated[float, typer.Option(min=0.01, help="Times faster than recorded.")] = 1.0,
    seeds: Annotated[int, typer.Option(min=1, help="Replays of each case.")] = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Requests at most.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
    plots: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write plots there (SVG).")] = None,
) -> None:
    """Say what weights, policies, CPU memory or servers would do to a trace, on simulated engines."""
    from ..sim.replay.command import ReplayOptions, run_replay  # noqa: PLC0415 - not needed to serve

    options = ReplayOptions(
        trace=trace,
        configs=config or (),
        policies=policy or (),
        cpu_gib=_numbers("--cpu-gb", cpu_gb, float, at_least=0.0),
        endpoints=_numbers("--endpoints", endpoints, int, at_least=1),
        gpu_blocks=gpu_blocks,
        block_size=block_size,
        granularity=granularity,
        storage=storage,
        speed=speed,
        seeds=seeds,
        limit=limit,
        jobs=jobs,
        json=json,
        plots=plots,
    )
    _run(lambda console: run_replay(console, options))


def _run(command: Callable[[Console], None]) -> None:
    """Run it; what it cannot use ends with status 2 and one line."""
    try:
        command(Console())
    except (ConfigError, KVAtlasError) as error:
        Console(stderr=True, soft_wrap=True).print(f"kvatlas: {error}", markup=False, highlight=False)
        raise typer.Exit(USAGE_ERROR) from None


def _numbers(flag: str, text: str, number: type[T], *, at_least: T) -> tuple[T, ...]:
    """Numbers separated by commas."""
    try:
        numbers = tuple(number(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or any(each < at_least for each in numbers):
        raise typer.BadParameter(
            f"found {text!r}, want numbers of at least {at_least:g}, separated by commas", param_hint=flag
        )
    return numbers
