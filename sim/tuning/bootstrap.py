"""Confidence interval of the gain of one configuration over another.

Both configurations served the same requests, so these are resampled in pairs. Requests that arrive together also wait
together. So consecutive runs are resampled; resampling single requests would give too narrow an interval.

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
        change: observed change.
        low: lower end of its 95 % interval.
        high: upper end.
    """

    change: float
    low: float
    high: float


def paired_gain(
    before: Sequence[float], after: Sequence[float], figure: Callable[[list[float]], float], *, rng: Random
) -> Gain:
    """Compute the change of a figure of the same requests under two configurations, with a bootstrap interval.

    Args:
        before: value of each request in the order of arrival, at least one.
        after: values of the same requests in the same order.
        figure: computes the figure of a list of values; not 0 for `before`.
        rng: random numbers for the resamples.
    Cost: O(requests) per resample, plus that of `figure`.
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
