"""Specification of when blocks are released, in numpy and Python; see `operations`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ..core.columns import FloatArray, RowArray
from .arithmetic import used_now
from .lines import MEMORY

WaitNumbers: TypeAlias = tuple[float, float]
"""Monotonic seconds, and the milliseconds for which a request usually holds its blocks."""

N_KNOWN = 16
"""Requests of an endpoint of which is known when their responses began, see `releases`."""

SURVIVAL_STEPS = 16
"""Ages in the mean time that a response takes, at which its survival is known."""

N_SURVIVAL = 4 * SURVIVAL_STEPS + 1
"""Ages at which the survival is known: from 0 to four times the mean."""

LONGEST, N_BISECTIONS = 4.0, 10
"""Longest wait that is searched for, in mean times of a response, and the number of bisections: it is known within 0.4 % of that."""

OVERDUE = 0.25
"""Time in which a response that took longer than all others is taken to end."""


def refine_waits(
    features: FloatArray,
    costs: FloatArray,
    totals: FloatArray,
    state: FloatArray,
    begun: FloatArray,
    rows: RowArray,
    survival: FloatArray,
    numbers: WaitNumbers,
) -> None:
    """Replace the waits for blocks by the time until the requests that hold them are expected to have released enough, in place.

    Without knowledge of these requests, blocks become free evenly over the usual time for which they are held. Requests
    whose responses began together release them together instead: of one that began the age a ago, the part 1 - S(a + t) / S(a)
    is expected to be released after the time t, where S is the survival of responses.

    Args:
        features: see `cost_quantities`; its line `MEMORY` is refined where it is above 0.
        costs: milliseconds per unit of each.
        totals: sums of their products by endpoint, which follow.
        state: see `Candidates`.
        begun: monotonic seconds and tokens of requests that hold blocks, shape (rows, 2, 16); 0 tokens where there is none.
        rows: of the endpoints in `begun`; beyond it there are none.
        survival: shape (65), see `Releases`.
        numbers: see `WaitNumbers`.
    """
    now, residence_ms = numbers
    if residence_ms <= 0.0:
        return
    survivors, in_use = survival.tolist(), used_now(state)
    for column in np.flatnonzero(features[MEMORY] > 0.0):
        row, used = int(rows[column]), float(in_use[column])
        if not 0 <= row < len(begun) or not used > 0.0:
            continue
        missing = float(features[MEMORY, column]) / residence_ms
        held = [(now - at) * 1000.0 / residence_ms for at in begun[row, 0].tolist()]
        wait = _release_time(missing / used, held, begun[row, 1].tolist(), survivors)
        if wait is not None:
            features[MEMORY, column] = wait * residence_ms
            quantities, units = features[:, column].tolist(), costs[:, column].tolist()
            total = 0.0
            for quantity, unit in zip(quantities, units, strict=True):
                total += unit * quantity
            totals[column] = total


def _release_time(
    part: float, ages: Sequence[float], tokens: Sequence[float], survival: Sequence[float]
) -> float | None:
    """Return after what time a part of the held tokens is expected to be released; None if none are held. Times are in mean ones.

    It is found by bisection of the first `LONGEST` of them. All tokens, and more, take as many mean times as they are.
    """
    held = [(age, n, _survival_at(survival, age)) for age, n in zip(ages, tokens, strict=True) if n > 0.0]
    total = 0.0
    for _, n, _ in held:
        total += n
    if total <= 0.0:
        return None
    if part >= 1.0:
        return part
    low, high = 0.0, LONGEST
    for _ in range(N_BISECTIONS):
        middle = 0.5 * (low + high)
        released = 0.0
        for age, n, alive in held:
            if alive > 0.0:
                released += n * (1.0 - _survival_at(survival, age + middle) / alive)
            else:  # longer than any before
                released += n * min(1.0, middle / OVERDUE)
        if released >= part * total:
            high = middle
        else:
            low = middle
    return high


def _survival_at(survival: Sequence[float], age: float) -> float:
    """Return the survival at an age, linear between those that are known; 0 beyond them."""
    at = max(0.0, age) * SURVIVAL_STEPS
    if not at < len(survival) - 1:
        return 0.0
    before = int(at)
    return survival[before] + (survival[before + 1] - survival[before]) * (at - before)
