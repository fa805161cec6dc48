"""Quantities from which the time to first token is predicted."""

from __future__ import annotations

from ..core.model import Candidate

OVERHEAD, QUEUE, PREFILL, FIRST_LOAD = range(4)
"""Positions in a feature vector; the loads of the slower tiers follow, fastest first."""


def features(n_tokens: int, candidate: Candidate, *, n_tiers: int) -> tuple[float, ...]:
    """Return the features whose product with the costs in milliseconds is the expected time to first token.

    Args:
        n_tokens: prompt tokens, 0 when the prompt was not tokenized.
        candidate: the endpoint, with its cached prefix and its requests in flight.
        n_tiers: number of configured tiers; loading from the fastest costs nothing.
    Returns:
        1, uncached tokens of requests ahead, uncached tokens of this request, and for each slower tier the tokens to
        load from it. Cached tokens are multiplied by the trust in the endpoint's events.
    """
    queued = float(candidate.in_flight.tokens)
    prefix = candidate.prefix
    if prefix is None:
        return (1.0, queued, float(n_tokens), *(0.0,) * (n_tiers - 1))
    reused = [0] * n_tiers
    remaining = prefix.usable_blocks
    for tier, n_blocks in prefix.held.runs:
        reused[tier] += min(n_blocks, remaining)
        remaining -= min(n_blocks, remaining)
    tokens_per_block = prefix.block_size * candidate.credit
    uncached = max(0.0, n_tokens - prefix.usable_blocks * tokens_per_block)
    return (1.0, queued, uncached, *(n_blocks * tokens_per_block for n_blocks in reused[1:]))
