"""Work that endpoints were sent lately, in fading lines of `Accounts`."""

from __future__ import annotations

import math

from .lines import BUSY_AT, BUSY_MS, BUSY_S, PLACED, PLACED_AT, PLACED_NEW, PLACED_S
from .open_request import OpenRequest


def add_work(cells: memoryview[float], request: OpenRequest, *, now: float) -> None:
    """Add the work of a request that is sent to its endpoint.

    Args:
        cells: the lines by endpoint, changed in place.
        request: the request.
        now: monotonic seconds.
    """
    row, new = request.row, request.tokens if request.is_new else 0.0
    faded = math.exp((cells[BUSY_AT, row] - now) / BUSY_S)
    cells[BUSY_MS, row] = cells[BUSY_MS, row] * faded + request.busy_ms
    cells[BUSY_AT, row] = now
    faded = math.exp((cells[PLACED_AT, row] - now) / PLACED_S)
    cells[PLACED, row] = cells[PLACED, row] * faded + request.tokens
    cells[PLACED_NEW, row] = cells[PLACED_NEW, row] * faded + new
    cells[PLACED_AT, row] = now


def take_back_work(cells: memoryview[float], request: OpenRequest) -> None:
    """Take back what is left of the work that `add_work` added for a request; never more than there is."""
    row, new = request.row, request.tokens if request.is_new else 0.0
    for line, changed_at, seconds, added in (
        (BUSY_MS, BUSY_AT, BUSY_S, request.busy_ms),
        (PLACED, PLACED_AT, PLACED_S, request.tokens),
        (PLACED_NEW, PLACED_AT, PLACED_S, new),
    ):
        left = added * math.exp(min(0.0, (request.decision.at - cells[changed_at, row]) / seconds))
        cells[line, row] = max(0.0, cells[line, row] - left)
