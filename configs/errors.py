"""Errors of the configuration.

    ConfigError    a configuration file with problems, all of which it lists

The root is `Exception`, since this room imports no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the top of the file to one value."""


def path_text(path: KeyPath) -> str:
    """Format the path for people, as in `endpoints.static[1].labels["a.b/c"]`."""
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
    """One problem in a file.

    Attributes:
        message: found value and allowed values, one line.
        path: path of the key, empty for the whole file.
        line: line of the file, from 1; None if it is unknown.
    """

    message: str
    path: KeyPath = ()
    line: int | None = None

    def __str__(self) -> str:
        """Return `line 12, endpoints.static[1].address: message`."""
        place = ", ".join(
            part for part in (f"line {self.line}" if self.line else "", path_text(self.path)) if part
        )
        return f"{place}: {self.message}" if place else self.message


class ConfigError(Exception):
    """Problems that make a configuration file unusable; the message names the file and each problem.

    Attributes:
        file: the path as given by the caller.
        problems: at least one problem, in the order of the file.
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
