"""The `kvatlas` command."""

# Commands import what runs them when they run: `--help` and questions need no server.

from __future__ import annotations

import sys
from typing import Annotated

import typer

from . import ask, config, sim
from .reference_flags import our_command_line, reference_help
from .serve import serve

app = typer.Typer(
    name="kvatlas",
    help="Endpoint picker and KV-cache location index for fleets of LLM servers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(epilog=reference_help())(serve)
app.add_typer(config.app, name="config")
ask.register(app)
sim.register(app)


@app.command()
def demo(
    *,
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Keep everything running until Ctrl-C.")] = False,
) -> None:
    """Compare round robin with kvatlas on the same workload: simulated servers, a real Envoy."""
    from rich.console import Console

    from ...sim.demo import run_demo

    raise typer.Exit(run_demo(Console(), seed=seed, keep=keep))


def main() -> None:
    """Run the `kvatlas` script."""
    command, *arguments = sys.argv[1:] or [""]
    if command == "serve":
        line = our_command_line(arguments)
        app(args=[command, *line.arguments], obj=line.reference)
    else:
        app()


if __name__ == "__main__":
    main()
