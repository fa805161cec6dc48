"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LOCAL = "http://localhost:8080"

Url = Annotated[str, typer.Option(help="REST address of the running kvatlas.")]
TokenFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with the bearer token, if the process wants one.")
]
CaFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="PEM file with the authorities of its certificate.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]

FileArgument = Annotated[Path, typer.Argument(metavar="FILE")]
IgnoreUnknown = Annotated[
    bool, typer.Option("--ignore-unknown-plugins", help="Leave out plugins that kvatlas does not have.")
]


def is_given(ctx: typer.Context, name: str) -> bool:
    """Return whether a parameter of the command was given, and has not its default."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"
