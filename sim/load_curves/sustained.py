"""The load that a policy sustains: the largest at which a request waits no longer than a limit in the mean."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

LIMIT_S = 2.0
"""Mean time to the first token up to which a load counts as sustained."""

PRECISION = 1.04
"""Ratio of the loads between which the search ends."""

MAX_DOUBLINGS = 6
"""Loads are searched from `first / 2**6` to `first * 2**6`."""


def sustained_load(wait_s: Callable[[float], float], first: float) -> float:
    """Return the largest load found at which the mean wait is within `LIMIT_S`.

    The wait is taken to grow with the load, although a policy can be worse at one load than at a larger one. Then one of the
    loads at which the curve passes the limit is found.

    Args:
        wait_s: load -> mean seconds to the first token.
        first: load at which the search starts, more than 0.
    Returns:
        the load; 0 if even the least one that is tried takes longer.
    """
    low = high = first
    doublings = 0
    if wait_s(first) <= LIMIT_S:
        while doublings < MAX_DOUBLINGS and wait_s(high := low * 2) <= LIMIT_S:
            low, doublings = high, doublings + 1
        if doublings == MAX_DOUBLINGS:
            return low
    else:
        while wait_s(low := high / 2) > LIMIT_S:
            high, doublings = low, doublings + 1
            if doublings == MAX_DOUBLINGS:
                return 0.0
    while high / low > PRECISION:
        middle = sqrt(low * high)
        if wait_s(middle) <= LIMIT_S:
            low = middle
        else:
            high = middle
    return low
