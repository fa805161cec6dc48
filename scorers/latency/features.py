"""Quantities from which the time to first token is predicted."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from ..core.candidates import Candidates
from ..core.columns import FloatArray

Features: TypeAlias = tuple[FloatArray, ...]
"""Feature vectors as columns: one array per position, one number per endpoint."""


def features(n_tokens: int, candidates: Candidates, *, n_tiers: int) -> Features:
    """Return the features whose product with the costs in milliseconds is the expected time to first token.

    Args:
        n_tokens: prompt tokens, 0 if nothing is known of the prompt.
        candidates: the endpoints, with their cached prefixes and their requests in flight.
        n_tiers: number of configured tiers; loading from the fastest costs nothing.
    Returns:
        1, uncached tokens of requests ahead, uncached tokens of this request, and for each slower tier the tokens to
        load from it. Cached tokens are multiplied by the trust in the endpoint's events.
    """
    n, queued, prefix = len(candidates), candidates.in_flight_tokens, candidates.prefix
    if prefix is None:
        return (np.ones(n), queued, np.full(n, float(n_tokens)), *(np.zeros(n) for _ in range(n_tiers - 1)))
    tokens_per_block = prefix.block_size * candidates.credit
    uncached = np.maximum(0.0, n_tokens - prefix.usable_blocks * tokens_per_block)
    loaded = (blocks * tokens_per_block for blocks in prefix.reused_blocks[1:n_tiers])
    return (np.ones(n), queued, uncached, *loaded)
