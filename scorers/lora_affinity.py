"""`lora-affinity-scorer`: prefers endpoints that have the request's LoRA adapter, or room for it."""

from __future__ import annotations

from collections.abc import Sequence

from .core.model import UNRATED, Adapters, Candidate, Rating, Ratings, RequestView
from .core.params import NoParams
from .core.registry import Registry


class LoraAffinityScorer:
    """1 where the adapter is active, 0.8 where another one fits, 0.6 where it waits, else 0."""

    type = "lora-affinity-scorer"

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """One rating a candidate; raw is the number of adapters active or waiting, None when nothing is known of them."""
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
    """Adds `lora-affinity-scorer`, which takes no parameters."""
    registry.scorers.add(LoraAffinityScorer.type, NoParams, lambda _params, _context: LoraAffinityScorer())
