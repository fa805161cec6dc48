"""`kvatlas demo`: policies compared on simulated servers in real time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...configs.errors import ConfigError
from ...events.errors import KVAtlasError
from .exit_status import NOT_GOOD, fail
from .numbers import numbers
from .options import is_given

OF_COMPARE = {
    "files": "FILE",
    "picker": "--picker",
    "rate": "--rate",
    "seconds": "--seconds",
    "servers": "--servers",
    "repeats": "--repeats",
    "time_scale": "--time-scale",
    "plot": "--plot",
    "as_json": "--json",
}
"""Parameter -> its name for people, of those that mean nothing without --compare."""

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE...]",
        help="With --compare: configuration files (KVAtlasConfig or EndpointPickerConfig), or round-robin, random, "
        "weights, latency. Alone: round-robin, weights and latency.",
    ),
]


def demo(
    ctx: typer.Context,
    files: Names = None,
    *,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare these in real time on the same servers and chats.")
    ] = False,
    picker: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="Run each EndpointPickerConfig with this picker too. Places to fill: {port} (ext-proc), {config}, "
            "{endpoints} (file), {ports} (of servers), {health}, {metrics} (free ports).",
        ),
    ] = "",
    rate: Annotated[
        str, typer.Option(metavar="N,...", help="Chats per second that begin; one comparison each.")
    ] = "2.6",
    seconds: Annotated[float, typer.Option(min=1.0, max=86_400.0, help="Time in which chats begin.")] = 60.0,
    servers: Annotated[int, typer.Option(min=1, max=64, help="Number of simulated servers.")] = 6,
    repeats: Annotated[
        int, typer.Option(min=1, help="Runs of each, interleaved, each with other chats.")
    ] = 1,
    time_scale: Annotated[
        float, typer.Option(min=0.1, max=1000.0, help="Real seconds per simulated second.")
    ] = 1.0,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a picture (SVG).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all runs as JSON.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 1,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep everything running until Ctrl-C; not with --compare.")
    ] = False,
) -> None:
    """Compare policies on simulated servers with a real Envoy: round robin, weights and latency, or files of yours.

    Status 1: a request failed or a part did not start; without --compare also if kvatlas was not better.
    """
    from rich.console import Console

    if not compare:
        _refuse_options_of_compare(ctx)
        from ...sim.demo import run_demo

        raise typer.Exit(run_demo(Console(), seed=seed, keep=keep))
    if keep:
        fail("--keep does not go with --compare, which runs one policy after another")
    from ...sim.compare.command import CompareOptions, run_compare
    from ...sim.errors import DemoError

    options = CompareOptions(
        names=files or ("round-robin", "weights", "latency"),
        picker=picker,
        servers=servers,
        rates=numbers("--rate", rate, float, at_least=0.01),
        seconds=seconds,
        repeats=repeats,
        time_scale=time_scale,
        seed=seed,
        as_json=as_json,
        plot=plot,
    )
    try:
        status = run_compare(Console(), options)
    except DemoError as error:
        fail(f"demo: {error}", NOT_GOOD)
    except (ConfigError, KVAtlasError) as error:
        fail(str(error))
    raise typer.Exit(status)


def _refuse_options_of_compare(ctx: typer.Context) -> None:
    given = [shown for name, shown in OF_COMPARE.items() if is_given(ctx, name)]
    if given:
        *others, last = given
        fail(f"{', '.join(others)} and {last} need --compare" if others else f"{last} needs --compare")
