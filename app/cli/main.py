"""The `kvatlas` command."""

# Commands import what runs them when they run: `--help` and questions need no server.

from __future__ import annotations

import sys
from typing import cast

import typer
from typer.core import TyperGroup

from . import ask, config, sim
from .demo import demo
from .output import ending_with_its_output
from .reference_flags import our_command_line, reference_help
from .serve import serve

_LIBRARY_WORDS = "Value error, "
"""Begin of a message about an argument, by which the library of the command line names its own exception."""


class PlainGroup(TyperGroup):
    """Commands whose refusals of arguments say only what is wrong with them."""

    def invoke(self, ctx: object) -> object:
        """Run a command."""
        try:
            return super().invoke(cast("typer.Context", ctx))
        except typer.BadParameter as error:
            error.message = error.message.removeprefix(_LIBRARY_WORDS)
            raise


app = typer.Typer(
    name="kvatlas",
    cls=PlainGroup,
    help="Endpoint picker and KV-cache location index for fleets of LLM servers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(epilog=reference_help())(serve)
app.add_typer(config.app, name="config")
ask.register(app)
sim.register(app)
app.command()(demo)


def main() -> None:
    """Run the `kvatlas` script."""
    ending_with_its_output(_run)


def _run() -> None:
    command, *arguments = sys.argv[1:] or [""]
    if command == "serve":
        line = our_command_line(arguments)
        app(args=[command, *line.arguments], obj=line.reference)
    else:
        app()


if __name__ == "__main__":
    main()
