"""Running means of the work and times of requests, learned from those of all processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ..core.shared import Contribution, SharedSums

N_NUMBERS = 4
"""Numbers of a mean between processes."""

Lesson: TypeAlias = tuple[str, float]
"""An observation: name of the mean, and the observed number."""


class RunningMean:
    """Mean whose old observations fade, so that it follows about `1 / step` of them.

    Args:
        step: weight of the latest observation.
        start: value before the first one; None to take the first one as it is.
    """

    __slots__ = ("_n", "_n_known", "_once", "_step", "_sum", "_takes_first", "_taught", "value")

    def __init__(self, step: float, *, start: float | None = 0.0) -> None:
        self._step, self._takes_first = step, start is None
        self._once = _part(step, 1.0)
        """Weight of one observation, the same as that of one among several."""
        self.value = start or 0.0
        """The mean; 0 before the first observation if there is no start."""
        self._n = self._sum = self._n_known = 0.0
        """Number and sum of the own observations, and the number of observations of all processes in the mean."""
        self._taught: dict[str, tuple[float, float]] = {}
        """By owner, the number and the sum of the observations that were learned from."""

    @property
    def is_known(self) -> bool:
        """Whether anything was observed."""
        return self._n_known > 0.0

    def add(self, observed: float) -> None:
        """Learn from an observation."""
        self._move(self._once, observed)
        self._n_known += 1.0
        self._n += 1.0
        self._sum += observed

    def numbers(self) -> Sequence[float] | None:
        """Return the mean, the number of observations in it, and number and sum of the own ones; None before the first own one."""
        return (self.value, self._n_known, self._n, self._sum) if self._n else None

    def learn(self, siblings: Sequence[Contribution]) -> None:
        """Learn from the siblings' new observations. A new sibling's mean replaces this one if it has more observations."""
        before, after = self._taught, dict[str, tuple[float, float]]()
        for owner, _, numbers in siblings:
            if len(numbers) != N_NUMBERS or min(numbers) < 0.0:
                continue
            value, n_known, n, total = numbers
            after[owner] = n, total
            if owner not in before:
                if n_known > self._n_known:
                    self.value, self._n_known = value, n_known
                continue
            n_new = n - before[owner][0]
            if n_new >= 1.0:  # part of an observation would be a mean without limit
                # below 0 if its numbers make no sense
                self._move(_part(self._step, n_new), max(0.0, total - before[owner][1]) / n_new)
                self._n_known += n_new
        self._taught = after

    def _move(self, part: float, mean: float) -> None:
        self.value += (1.0 if self._takes_first and not self._n_known else part) * (mean - self.value)


class SharedMeans:
    """Running means by name, each learned from the observations of all processes.

    Args:
        means: name -> mean.
    """

    def __init__(self, means: Mapping[str, RunningMean]) -> None:
        self._means = dict(means)
        self.shared = SharedSums(self._own, self._learn, lambda: tuple(self._means))
        """See `RunningMean.numbers`."""

    def include(self, name: str, mean: RunningMean) -> None:
        """Share another mean."""
        self._means[name] = mean

    def add(self, name: str, observed: float) -> None:
        """Learn from an observation of one."""
        self._means[name].add(observed)
        if self.shared.on_change is not None:
            self.shared.note(name)

    def _own(self, name: str, _: float) -> Sequence[float] | None:
        return self._means[name].numbers()

    def _learn(self, name: str, siblings: Sequence[Contribution]) -> None:
        mean = self._means.get(name)
        if mean is not None:
            mean.learn(siblings)


def _part(step: float, n: float) -> float:
    """Return the weight of the mean of `n` observations."""
    return 1.0 - math.pow(1.0 - step, n)
