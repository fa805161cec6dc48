"""`lora-affinity-scorer`: prefers endpoints that have the LoRA adapter of the request, or capacity for it."""

from __future__ import annotations

import numpy as np

from .core.candidates import Candidates
from .core.model import Adapters, RequestView
from .core.params import NoParams
from .core.ratings import Inputs, Ratings
from .core.registry import Registry


class LoraAffinityScorer:
    """Score 1 if the adapter is active, else 0.8 if one more adapter fits, else 0.6 if it waits, else 0.

    An endpoint whose adapters are unknown scores 0. Ties: endpoints in the same of these states score the same.
    """

    type = "lora-affinity-scorer"

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is the number of adapters active or waiting, None if it is unknown."""
        scores, n_adapters = np.zeros(len(candidates)), np.full(len(candidates), np.nan)
        for row, adapters in enumerate(candidates.adapters):
            if adapters is not None:
                scores[row] = _score(request.model, adapters)
                n_adapters[row] = len(adapters.active) + len(adapters.waiting)
        return Ratings(scores, Inputs(n_adapters, is_load=True))


def _score(model: str, adapters: Adapters) -> float:
    if model in adapters.active:
        return 1.0
    if len(adapters.active) + len(adapters.waiting) < adapters.max_active:
        return 0.8
    return 0.6 if model in adapters.waiting else 0.0


def register(registry: Registry) -> None:
    """Register `lora-affinity-scorer`, which takes no parameters."""
    registry.scorers.add(LoraAffinityScorer.type, NoParams, lambda _params, _context: LoraAffinityScorer())
