"""`lora-affinity-scorer`: prefers endpoints that have the LoRA adapter of the request, or capacity for it."""

from __future__ import annotations

from collections.abc import Sequence

from .core.model import UNRATED, Adapters, Candidate, Rating, Ratings, RequestView
from .core.params import NoParams
from .core.registry import Registry


class LoraAffinityScorer:
    """Score 1 if the adapter is active, else 0.8 if one more adapter fits, else 0.6 if it waits, else 0.

    An endpoint whose adapters are unknown scores 0. Ties: endpoints in the same of these states score the same.
    """

    type = "lora-affinity-scorer"

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """Return one rating per candidate; raw is the number of adapters active or waiting, None if it is unknown."""
        ratings: list[Rating] = []
        for candidate in candidates:
            load = candidate.load
            if load is None or load.adapters is None:
                ratings.append(UNRATED)
                continue
            adapters = load.adapters
            n = len(adapters.active) + len(adapters.waiting)
            score = _score(request.model, adapters)
            ratings.append(Rating(raw=float(n), score=score, age_s=load.age_s(request.now)))
        return ratings


def _score(model: str, adapters: Adapters) -> float:
    if model in adapters.active:
        return 1.0
    if len(adapters.active) + len(adapters.waiting) < adapters.max_active:
        return 0.8
    return 0.6 if model in adapters.waiting else 0.0


def register(registry: Registry) -> None:
    """Register `lora-affinity-scorer`, which takes no parameters."""
    registry.scorers.add(LoraAffinityScorer.type, NoParams, lambda _params, _context: LoraAffinityScorer())
