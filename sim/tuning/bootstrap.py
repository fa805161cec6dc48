"""How sure the gain of one configuration over another is: both served the same requests, so these are resampled in pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import msgspec

from ..replay.figures import percentile

RESAMPLES = 400


class Gain(msgspec.Struct, frozen=True):
    """Relative change of a figure: -0.1 is a tenth less.

    Attributes:
        change: as observed.
        low: lower end of its 95 % interval.
        high: upper end.
    """

    change: float
    low: float
    high: float


def paired_gain(
    before: Sequence[float], after: Sequence[float], figure: Callable[[list[float]], float], *, rng: Random
) -> Gain:
    """Change of a figure of the same requests under two configurations, with a bootstrap interval.

    Args:
        before: value of each request, at least one.
        after: the same requests in the same order.
        figure: of a list of values, not 0 for `before`.
        rng: draws the resamples.
    Cost: O(requests) a resample, and what `figure` takes.
    """
    changes: list[float] = []
    for _ in range(RESAMPLES):
        drawn = rng.choices(range(len(before)), k=len(before))
        changes.append(figure([after[n] for n in drawn]) / figure([before[n] for n in drawn]) - 1)
    changes.sort()
    observed = figure(list(after)) / figure(list(before)) - 1
    return Gain(observed, percentile(changes, 0.025), percentile(changes, 0.975))
