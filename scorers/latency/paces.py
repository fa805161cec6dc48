"""Paces of endpoints: logarithms of factors of the expected times, in two lines of a table with one column per endpoint."""

from __future__ import annotations

import math

import numpy as np

from ..core.columns import FloatArray
from .lines import LOG_PACE, N_PACE, N_TARGETS, PACE_TARGETS

STEP = 0.05
"""Least step of a pace per observation: it follows about twenty."""

PRIOR = 5.0
"""Observations that the pace 1 counts for."""

MAX_PACE = 8.0
"""Largest factor between the times of an endpoint and those of its group, in both directions."""

MOST_SURPRISE = 0.5
"""Largest logarithm of an error from which a pace learns: a stall is not a speed."""


MOST_LOG_PACE = math.log(MAX_PACE)


def learn_pace(column: FloatArray, log_error: float) -> None:
    """Move the pace of an endpoint towards an observed one, in place.

    Args:
        column: lines of the endpoint.
        log_error: logarithm of observed by predicted time, the pace included.
    """
    target = column[LOG_PACE] + min(max(log_error, -MOST_SURPRISE), MOST_SURPRISE)
    follow_targets(column, 1.0, target)
    column[PACE_TARGETS] += target
    column[N_TARGETS] += 1.0


def follow_targets(column: FloatArray, n: float, mean: float) -> None:
    """Move the pace of an endpoint towards observed ones, in place.

    Args:
        column: lines of the endpoint.
        n: observations.
        mean: of the logarithms of the observed paces.
    """
    column[N_PACE] += n
    step = max(STEP, 1.0 / (column[N_PACE] + PRIOR))
    pace = column[LOG_PACE] + (1.0 - (1.0 - step) ** n) * (mean - column[LOG_PACE])
    column[LOG_PACE] = min(max(pace, -MOST_LOG_PACE), MOST_LOG_PACE)


def common_pace(table: FloatArray) -> float:
    """Return the mean logarithm of all paces of a table, 0 before the first observation. Cost: 4 us, and 1 ns per endpoint.

    It is what the costs in force lack for all endpoints alike, and says nothing of times with other costs.
    """
    n = np.count_nonzero(table[N_PACE])
    return float(np.add.reduce(table[LOG_PACE])) / n if n else 0.0  # endpoints without observation have 0
