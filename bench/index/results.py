"""Figures and their targets. Less is better in all of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .columns import Column


@dataclass(frozen=True)
class Figure:
    """One measured value.

    Attributes:
        value: a median, unless the row says something else.
        p99: 99th percentile, None if it would mean nothing.
    """

    value: float
    p99: float | None = None


@dataclass(frozen=True)
class Target:
    """A value that the native index has to reach.

    Attributes:
        limit: the most that it may be; with `peer`, the least ratio of the peer's value to its own.
        peer: the column it is compared with, None if the limit is absolute.
    """

    limit: float
    peer: Column | None = None


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        label: what was measured.
        unit: of the figures.
        figures: by column; absent for a column to which the row does not apply.
        target: None if there is nothing to reach.
    """

    label: str
    unit: str
    figures: Mapping[Column, Figure]
    target: Target | None = None

    def times(self, peer: Column) -> float | None:
        """Return the peer's value divided by the native index's, None if one of them was not measured."""
        ours, theirs = self.figures.get(Column.NATIVE), self.figures.get(peer)
        return theirs.value / ours.value if ours and theirs and ours.value else None

    @property
    def reached(self) -> float | None:
        """The value to compare with the target's limit, None if it was not measured."""
        if self.target is None:
            return None
        if self.target.peer is not None:
            return self.times(self.target.peer)
        ours = self.figures.get(Column.NATIVE)
        return None if ours is None else ours.value

    @property
    def is_met(self) -> bool:
        """Whether the target is reached; True for a row without target or figure."""
        if self.target is None or self.reached is None:
            return True
        met_by_less = self.target.peer is None
        return self.reached <= self.target.limit if met_by_less else self.reached >= self.target.limit


@dataclass(frozen=True)
class Section:
    """Rows that were measured together.

    Attributes:
        name: one word, the name of its table.
        title: for people.
        rows: in the order to show.
    """

    name: str
    title: str
    rows: Sequence[Row]


@dataclass
class Samples:
    """Measured values by column, in rounds."""

    taken: dict[Column, list[float]] = field(default_factory=dict[Column, list[float]])

    def add(self, column: Column, value: float) -> None:
        """Add a value."""
        self.taken.setdefault(column, []).append(value)

    def medians(self, *, per: float = 1.0, with_p99: bool = False) -> dict[Column, Figure]:
        """Return the median of each column, in units of `per`."""
        return {
            column: Figure(
                statistics.median(values) / per, percentile(values, 99) / per if with_p99 else None
            )
            for column, values in self.taken.items()
        }


def percentile(values: Sequence[float], share: int) -> float:
    """Return the value that `share` percent of `values`, two or more, do not exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]
