"""`no-hit-lru-scorer`: spreads requests without any cached prefix, so that caches grow evenly."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from .core.candidates import Candidates
from .core.decision import Decision
from .core.model import RequestView
from .core.params import PluginParams
from .core.ratings import Inputs, Ratings
from .core.registry import Registry
from .core.shared import SharedUses
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
    max_load_age_s = math.inf

    def __init__(self, size: int) -> None:
        self._size = size
        self._used: dict[str, None] = {}
        """Endpoints that received a cold request, least recently used first."""
        self._shared = SharedUses(self._used_elsewhere, dict)

    def shared_uses(self) -> Mapping[str, SharedUses]:
        """See `SharesUses`: endpoints that received a cold request; the order alone counts."""
        return {"cold": self._shared}

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        """Return one rating per candidate; raw is its rank from 0, None if the request is not cold."""
        if not _is_cold(candidates):
            return Ratings(np.full(len(candidates), 0.5))
        names = set(candidates.names)
        never = sorted(names - self._used.keys())
        places = {
            name: rank for rank, name in enumerate([*never, *(each for each in self._used if each in names)])
        }
        ranks = np.array([places[name] for name in candidates.names], np.float64)
        return Ratings(1 - ranks / max(1, len(candidates) - 1), Inputs(ranks))

    def picked(self, request: RequestView, decision: Decision) -> None:  # noqa: ARG002 (LearnsFromPicks)
        """Remember the endpoint of a cold request."""
        if not _is_cold(decision.kept):
            return
        name = decision.picked[0]
        self._use(name)
        self._shared.note(name, "")

    def _used_elsewhere(self, name: str, _value: str, _used_at: float, _now: float) -> None:
        self._use(name)

    def _use(self, name: str) -> None:
        self._used.pop(name, None)
        self._used[name] = None
        if len(self._used) > self._size:
            del self._used[next(iter(self._used))]


def _is_cold(candidates: Candidates) -> bool:
    """Return whether no tier of any candidate has the first block of the request."""
    return candidates.prefix is None or not candidates.prefix.holds_any


def register(registry: Registry) -> None:
    """Register `no-hit-lru-scorer`."""
    registry.scorers.add(
        NoHitLruScorer.type, NoHitLruParams, lambda params, _: NoHitLruScorer(params.lru_size)
    )
