"""Expected time per output token of each endpoint, with costs that are learned from streamed responses."""

from __future__ import annotations

import numpy as np

from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.decision import Decision
from .features import Features
from .groups import FitReport, GroupedFits

TOKEN_MS, REQUEST_MS = 15.0, 0.2
"""Milliseconds per output token of a request alone, and more of them per request beside it, before anything is learned:
about those of a model of 32 billion weights on two H100."""


class TpotCosts:
    """Model of the time per output token: a cost per token, and one per request that shares the batch.

    Args:
        group_label: label whose value groups endpoints with equal costs; empty: all endpoints are one group.
    """

    def __init__(self, group_label: str = "") -> None:
        self._fits = GroupedFits({"token": TOKEN_MS, "request": REQUEST_MS}, label=group_label)

    def learned_ms(self, candidates: Candidates) -> FloatArray | None:
        """Return the expected milliseconds by endpoint, NaN for groups of which too few times are known; None if that holds for all."""
        return self._fits.learned_ms(candidates, _features(candidates)) if self._fits.has_learned else None

    def observe(self, decision: Decision, *, tpot_s: float) -> None:
        """Learn from an observed time; the requests beside it are those of the decision."""
        candidate = decision.best
        self._fits.observe(candidate, _features(Candidates.of([candidate])), tpot_s * 1000.0)

    def reports(self) -> list[FitReport]:
        """Return the costs of each group seen so far, in order of appearance."""
        return self._fits.reports()


def _features(candidates: Candidates) -> Features:
    """Return 1 and the requests beside this one: those sent by this process, or those that the engine serves if they are more."""
    beside: FloatArray = np.fmax(candidates.in_flight_requests, candidates.running)  # NaN is unknown
    return np.ones(len(candidates)), beside
