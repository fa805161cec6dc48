"""`lora-affinity-scorer`: prefers endpoints that have the LoRA adapter of the request loaded."""

from __future__ import annotations

import numpy as np

from .core.candidates import Candidates
from .core.model import Adapters, RequestView
from .core.params import NoParams
from .core.ratings import Inputs, Ratings
from .core.registry import Registry

LOADED, RECENT, IN_MEMORY, WAITING = 1.0, 0.8, 0.7, 0.6
"""Scores of an adapter by where it is. Sources: the reference for the first and the last, and for the third its
`lora-load-state-scorer`; the second is a guess, so that it is less."""


class LoraAffinityScorer:
    """Score 1 if the adapter has requests or is on the GPU, 0.8 if it probably is, 0.7 in host memory, 0.6 if it waits, else 0.

    An endpoint whose adapters are unknown scores 0. Ties: endpoints in the same of these states score the same.
    """

    type = "lora-affinity-scorer"

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is the number of adapters active or waiting, None if it is unknown."""
        scores, n_adapters = np.zeros(len(candidates)), np.full(len(candidates), np.nan)
        for row, adapters in enumerate(candidates.adapters):
            if adapters is not None:
                scores[row] = _score(request.model, adapters)
                n_adapters[row] = len(adapters.active | adapters.waiting)
        return Ratings(scores, Inputs(n_adapters, is_load=True))


def _score(model: str, adapters: Adapters) -> float:
    if model in adapters.active or model in adapters.on_gpu:
        return LOADED
    if model in adapters.recent:
        return RECENT
    if model in adapters.in_memory:
        return IN_MEMORY
    return WAITING if model in adapters.waiting else 0.0


def register(registry: Registry) -> None:
    """Register `lora-affinity-scorer`, which takes no parameters."""
    registry.scorers.add(LoraAffinityScorer.type, NoParams, lambda _params, _context: LoraAffinityScorer())
