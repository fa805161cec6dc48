"""`no-hit-lru-scorer`: spreads requests without any cached prefix, so that caches grow evenly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .core.decision import Decision
from .core.model import Candidate, Rating, Ratings, RequestView
from .core.params import PluginParams
from .core.registry import Registry
from .producers import Size


class NoHitLruParams(PluginParams, frozen=True):
    """Parameters of `no-hit-lru-scorer`."""

    lru_size: Size = 1024
    """Endpoints to remember."""
    prefix_match_info_producer_name: str = ""
    """Accepted without effect: a request is cold if no tier of any candidate has its first block."""
    prefix_plugin_type: str = ""
    """Accepted without effect; the reference ignores it too."""
    prefix_plugin_name: str = ""
    """Accepted without effect; the reference ignores it too."""


class NoHitLruScorer:
    """Score `1 - rank / (N - 1)` of N candidates for a cold request, 0.5 for any other request.

    Candidates that never received a cold request come first in rank, by name; then the least recently used.
    Ties: none for a cold request, since ranks differ; all candidates tie for any other.

    Args:
        size: endpoints to remember.
    """

    type = "no-hit-lru-scorer"

    def __init__(self, size: int) -> None:
        self._size = size
        self._used: dict[str, None] = {}
        """Endpoints that received a cold request, least recently used first."""

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:  # noqa: ARG002 (Scorer)
        """Return one rating per candidate; raw is its rank from 0, None if the request is not cold."""
        if not _is_cold(candidates):
            return [Rating(raw=None, score=0.5)] * len(candidates)
        names = {candidate.name for candidate in candidates}
        never = sorted(names - self._used.keys())
        ranks = {
            name: rank for rank, name in enumerate([*never, *(each for each in self._used if each in names)])
        }
        last = max(1, len(candidates) - 1)
        return [
            Rating(raw=float(ranks[candidate.name]), score=1 - ranks[candidate.name] / last)
            for candidate in candidates
        ]

    def picked(self, request: RequestView, decision: Decision) -> None:  # noqa: ARG002 (LearnsFromPicks)
        """Remember the endpoint of a cold request. Cost: O(candidates)."""
        if not _is_cold(decision.kept):
            return
        name = decision.picked[0]
        self._used.pop(name, None)
        self._used[name] = None
        if len(self._used) > self._size:
            del self._used[next(iter(self._used))]


def _is_cold(candidates: Iterable[Candidate]) -> bool:
    """Return whether no tier of any candidate has the first block of the request."""
    return not any(
        candidate.prefix is not None and any(candidate.prefix.held.tier_blocks) for candidate in candidates
    )


def register(registry: Registry) -> None:
    """Register `no-hit-lru-scorer`."""
    registry.scorers.add(
        NoHitLruScorer.type, NoHitLruParams, lambda params, _: NoHitLruScorer(params.lru_size)
    )
