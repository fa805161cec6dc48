"""The end of a command that fails: its exit status, and one line on stderr.

A refused file is bad if the command is *about* it, and wrong use if the command is to *work with* it. A process that
cannot be asked is wrong use. docs/commands.md lists both by command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import typer

from ...configs.errors import ConfigError

if TYPE_CHECKING:
    from ...configs.loader import LoadedConfig

NOT_GOOD = 1
"""Exit status: the thing asked about is bad."""

WRONG_USE = 2
"""Exit status: the command line, or something it names, cannot be used."""


def fail(message: str, status: int = WRONG_USE) -> NoReturn:
    """End the command with a message."""
    say_on_stderr(message)
    raise typer.Exit(status)


def say_on_stderr(message: str) -> None:
    """Print one line for people."""
    from rich.console import Console  # a server has no use for it

    Console(stderr=True, soft_wrap=True).print(f"kvatlas: {message}", markup=False, highlight=False)


def load_or_fail(load: Callable[[], LoadedConfig], *, refused: int = WRONG_USE) -> LoadedConfig:
    """Return the configuration that `load` returns; one that is not valid ends the command."""
    try:
        return load()
    except ConfigError as error:
        fail(str(error), refused)
