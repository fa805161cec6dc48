"""Whether requests met the objectives that they named."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from http import HTTPStatus

from .outcome import Completion, Outcome


class Objective(StrEnum):
    """What an objective limits; the value is a label of counters."""

    TTFT = "ttft"
    """The time to the first token: to the first byte of the body, which an unstreamed response sends at its end."""
    TPOT = "tpot"
    """The time per output token after the first."""


class Attainment(StrEnum):
    """What became of an objective; the value is a label of counters."""

    MET = "met"
    MISSED = "missed"
    UNKNOWN = "unknown"
    """The response failed, was not shown, came before the work, or has no such time."""


def attained(completion: Completion) -> Iterator[tuple[Objective, Attainment]]:
    """Yield what became of each objective that a routed request named. Times count from the decision."""
    route = completion.route
    if route is None or (origin := route.decision.origin) is None or origin.slo is None:
        return
    decision, response = route.decision, completion.response
    has_come = completion.outcome is Outcome.COMPLETED and response.status == HTTPStatus.OK
    has_come = has_come and not route.is_background
    ttft_s = response.time_to_first_byte_s if has_come else None
    tpot_s = response.tpot_s(decision) if has_come else None
    for objective, limit_ms, seconds in (
        (Objective.TTFT, origin.slo.ttft_ms, ttft_s),
        (Objective.TPOT, origin.slo.tpot_ms, tpot_s),
    ):
        if limit_ms is None:
            continue
        if seconds is None:
            yield objective, Attainment.UNKNOWN
        else:
            yield objective, Attainment.MET if seconds * 1000.0 <= limit_ms else Attainment.MISSED
