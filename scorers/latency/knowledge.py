"""State of a cost model for people: the costs in force, why, and how well they predict."""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from .fit import MIN_OBSERVATIONS
from .groups import FitReport, GroupedFits

TIMES = "times to first token"


class CostState(Enum):
    """Which costs are in force, and why."""

    FIXED = "fixed"
    """The configured ones, since they are not to be learned."""
    FEW = "few"
    """The configured ones, since too few times are known."""
    REJECTED = "rejected"
    """The configured ones, since the learned ones do not predict better."""
    LEARNED = "learned"


class Knowledge(NamedTuple):
    """State of the costs of one group of endpoints.

    Attributes:
        group: value of the group label, empty without one.
        state: which costs are in force.
        n_observations: observed times to first token behind the fit, without forgotten ones.
        says: the same in a sentence.
    """

    group: str
    state: CostState
    n_observations: float
    says: str


def knowledge(first: GroupedFits, later: GroupedFits | None, *, learns: bool) -> Iterator[Knowledge]:
    """Yield the state of each group seen so far, or that of all endpoints together if no group was seen.

    Args:
        first: costs of the time to first token.
        later: costs of the time per output token, None if there are none.
        learns: whether observed times change the costs.
    """
    later_mape = {each.group: each.mape for each in later.reports()} if later is not None else {}
    reports = first.reports()
    if not reports:
        prefill_ms = dict(zip(first.names, first.costs_of(""), strict=True))["prefill"]
        state = CostState.FEW if learns else CostState.FIXED
        yield Knowledge("", state, 0.0, _sentence(state, 0.0, prefill_ms, is_published=False))
    for report in reports:
        state = _state(report, learns=learns)
        is_published = report.group in first.published
        says = _sentence(state, report.n_observations, report.costs_ms["prefill"], is_published=is_published)
        errors = _errors(report, later_mape.get(report.group, math.nan))
        yield Knowledge(report.group, state, report.n_observations, says + errors)


def _state(report: FitReport, *, learns: bool) -> CostState:
    if report.is_fitted:
        return CostState.LEARNED
    if not learns:
        return CostState.FIXED
    return CostState.FEW if report.n_observations < MIN_OBSERVATIONS else CostState.REJECTED


def _sentence(state: CostState, n_observations: float, prefill_ms: float, *, is_published: bool) -> str:
    origin = "those that the engine publishes" if is_published else "the configured ones"
    costs = f"{origin} ({1000.0 / prefill_ms:,.0f} prompt tokens/s)"
    match state:
        case CostState.FIXED:
            return f"Costs are not learned (fit: false): {costs} are in force."
        case CostState.FEW:
            return (
                f"Costs are not learned yet: {n_observations:.0f} of {MIN_OBSERVATIONS} {TIMES} are known. "
                f"Until then {costs} are in force."
            )
        case CostState.REJECTED:
            return (
                f"Costs are not learned: with {n_observations:.0f} {TIMES} they do not predict better "
                f"than {costs}, which stay in force."
            )
        case CostState.LEARNED:
            return f"Costs are learned from {n_observations:.0f} {TIMES}."


def _errors(report: FitReport, later_mape: float) -> str:
    """Return the errors of predictions as a sentence, empty before the first."""
    if not report.mape:
        return ""
    of_tokens = f", of times per output token {later_mape:.0%}" if later_mape > 0.0 else ""
    return f" Predictions of {TIMES} are off by {report.mape:.0%} in the mean{of_tokens}."
