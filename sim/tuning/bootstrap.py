"""How sure the gain of one configuration over another is.

Both served the same requests, so these are resampled in pairs. Requests that come together wait together, so runs of them are
resampled and not single ones, which would pretend more certainty than there is.

Source: moving-block bootstrap; Kuensch, The jackknife and the bootstrap for general stationary observations, Annals of
Statistics 17 (1989).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt
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
        after: the same requests in the same order, that of their arrival.
        figure: of a list of values, not 0 for `before`.
        rng: draws the resamples.
    Cost: O(requests) a resample, and what `figure` takes.
    """
    n_requests, changes = len(before), list[float]()
    length = isqrt(n_requests)
    begins = range(n_requests - length + 1)
    for _ in range(RESAMPLES):
        runs = rng.choices(begins, k=-(-n_requests // length))
        drawn = [number for begin in runs for number in range(begin, begin + length)]
        changes.append(figure([after[n] for n in drawn]) / figure([before[n] for n in drawn]) - 1)
    changes.sort()
    observed = figure(list(after)) / figure(list(before)) - 1
    return Gain(observed, percentile(changes, 0.025), percentile(changes, 0.975))
