"""The interface between a benchmark and the runner."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .tables import Table


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One benchmark. Its module binds it to the name `BENCHMARK`.

    Attributes:
        name: on the command line, of the file of results, and in the docs' regions.
        about: the docstring of its module; the first line is the summary.
        add_options: adds the command-line options. The docs show figures of the defaults.
        run: measures and returns the tables; raises SystemExit if something cannot be measured or is wrong. If it cannot keep
            to an option, it changes it; the result records the options as `run` leaves them.
        has_tables: whether the docs show its tables; False for a check without figures.
        distributions: what is measured; the result says their versions.
    """

    name: str
    about: str | None
    add_options: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], Sequence[Table]]
    has_tables: bool = True
    distributions: tuple[str, ...] = ("kvatlas",)

    @property
    def summary(self) -> str:
        """The first line of `about`."""
        return (self.about or "").partition("\n")[0]
