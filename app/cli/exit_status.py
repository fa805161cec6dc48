"""How a command that cannot do what it is asked ends: its exit status, and one line on stderr.

A file that a command is asked *about* and that is refused is bad; one that it is told to *work with* is wrong use, as
is a process that it cannot ask. docs/commands.md lists both by command.
"""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console

NOT_GOOD = 1
"""The thing asked about is bad."""

WRONG_USE = 2
"""The command line, or what it names, cannot be used."""


def fail(message: str, status: int = WRONG_USE) -> NoReturn:
    """End the command."""
    say_on_stderr(message)
    raise typer.Exit(status)


def say_on_stderr(message: str) -> None:
    """One line for people."""
    Console(stderr=True, soft_wrap=True).print(f"kvatlas: {message}", markup=False, highlight=False)
