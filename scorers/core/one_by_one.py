"""Base classes of plugins that look at one endpoint at a time: simple to write, at some microseconds per endpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from .base import Rng
from .candidates import Candidates
from .model import Candidate, Rating, RequestView
from .ratings import Inputs, Ratings, Verdicts


class ScorerOfOne(ABC):
    """Scorer that rates one endpoint at a time."""

    type: str
    """The plugin type, its name in the configuration."""

    @abstractmethod
    def rate_one(self, request: RequestView, candidate: Candidate) -> Rating | float:
        """Return the score, 0 (worst) to 1 (best), or a rating that shows its input too."""

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return the ratings of all candidates. Cost: one call per candidate."""
        ratings = [self.rate_one(request, each) for each in candidates]
        if not any(isinstance(each, Rating) for each in ratings):
            return Ratings(np.array(ratings, np.float64))
        both = [each if isinstance(each, Rating) else Rating(raw=None, score=each) for each in ratings]
        raws = [np.nan if each.raw is None else each.raw for each in both]
        return Ratings(
            np.array([each.score for each in both], np.float64), Inputs(np.array(raws, np.float64))
        )


class FilterOfOne(ABC):
    """Filter that judges one endpoint at a time."""

    type: str
    """The plugin type, its name in the configuration."""

    @abstractmethod
    def judge_one(self, request: RequestView, candidate: Candidate) -> str | None:
        """Return why the endpoint is dropped, None to keep it."""

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return the verdicts on all candidates. Cost: one call per candidate."""
        reasons = [self.judge_one(request, each) for each in candidates]
        dropped = [reason for reason in reasons if reason is not None]
        return Verdicts(np.array([reason is None for reason in reasons], np.bool_), lambda _: dropped)
