"""Quantities from which the time to first token is predicted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.model import RequestView
from .arithmetic import Quantities
from .operations import cost_quantities

ATTENTION_TOKENS = 35_000.0
"""Context at which attention to it costs as much as all else of a prompt token: about that of a model of 32 billion
weights. It is a prior, from which the fit departs."""


class Typical(NamedTuple):
    """What is taken for requests that nothing is known of.

    Attributes:
        prompt_tokens: tokens of a prompt.
        work_tokens: those of them that are computed.
        residence_ms: milliseconds for which a request holds its blocks.
        output_tokens: tokens that a response under way has.
    """

    prompt_tokens: float
    work_tokens: float
    residence_ms: float
    output_tokens: float


def features(
    request: RequestView,
    candidates: Candidates,
    accounts: FloatArray,
    *,
    n_tiers: int,
    costs: FloatArray,
    pace: FloatArray | float,
    typical: Typical,
) -> Quantities:
    """Return the features, whose product with the costs in milliseconds is the expected time to first token.

    Args:
        request: its prompt has 0 tokens if nothing is known of it.
        candidates: the endpoints, with their cached prefixes and their requests in flight.
        accounts: own requests there, see `Accounts`.
        n_tiers: number of configured tiers; loading from the fastest costs nothing.
        costs: milliseconds per unit of each feature, shape (d, n) or (d, 1); further lines are left out.
        pace: factors of the costs of each endpoint.
        typical: what is taken for requests that nothing is known of.
    Returns:
        features of the shape (7 + slower tiers, n): 1; tokens ahead, less those computed since the first of them began; uncached tokens of
        this request; millions of pairs of such a token and one before it; requests beside it; milliseconds until blocks
        are free, if too few are; 1 where its adapter is not loaded; and the tokens to load from each slower tier.
        Cached tokens are multiplied by the trust in the endpoint's events.
    """
    prefix = candidates.prefix
    held = None
    if prefix is not None:
        reused = prefix.reused_blocks if prefix.interleaved else None
        held = prefix.figures, reused, prefix.block_size
    adapter = _must_load(request.model, candidates) if candidates.has_adapters else None
    numbers = (
        request.now,
        float(request.n_tokens),
        typical.prompt_tokens,
        typical.work_tokens,
        typical.residence_ms,
        typical.output_tokens,
    )
    return cost_quantities(candidates.state, accounts, costs, pace, held, adapter, numbers, n_tiers - 1)


def _must_load(model: str, candidates: Candidates) -> FloatArray:
    """Return 1 where the model is an adapter that is not on the GPU: some endpoint knows it, and this one has it not there."""
    held, is_adapter = np.zeros(len(candidates)), False
    for row, adapters in enumerate(candidates.adapters):
        if adapters is None:
            continue
        if model in adapters.active or model in adapters.on_gpu or model in adapters.recent:
            held[row], is_adapter = 1.0, True
        elif model in adapters.waiting or model in adapters.in_memory:
            is_adapter = True
    return 1.0 - held if is_adapter else np.zeros(len(candidates))
