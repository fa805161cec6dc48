"""Errors of the configuration.

    ConfigError    a configuration file that cannot be used, with every problem found in it

Its root is `Exception`, since this folder imports no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the top of the file to one value."""


def path_text(path: KeyPath) -> str:
    """The path as people write it, `endpoints.static[1].labels["a.b/c"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier():
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a file.

    Attributes:
        message: what was found and what is allowed, one line.
        path: where, empty for the file as a whole.
        line: line of the file, from 1; None when there is none to name.
    """

    message: str
    path: KeyPath = ()
    line: int | None = None

    def __str__(self) -> str:
        """`line 12, endpoints.static[1].address: message`."""
        place = ", ".join(
            part for part in (f"line {self.line}" if self.line else "", path_text(self.path)) if part
        )
        return f"{place}: {self.message}" if place else self.message


class ConfigError(Exception):
    """A configuration file that cannot be used; the message names the file and every problem.

    Attributes:
        file: the file as it was asked for.
        problems: at least one, in the order of the file.
    """

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        if len(self.problems) == 1:
            message = f"{file}: {self.problems[0]}"
        else:
            message = f"{file}: {len(self.problems)} problems" + "".join(
                f"\n  {each}" for each in self.problems
            )
        super().__init__(message)
