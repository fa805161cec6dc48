"""Specification of what a copy of a shared prompt saves later requests, in numpy and Python; see `operations`."""

from __future__ import annotations

import numpy as np

from ..core.columns import FloatArray
from .lines import BATCH, PREFILL

BOTH = 2.0
"""A request delays those beside it in a batch as much as they delay it."""


def copy_savings(
    costs_ms: FloatArray,
    spent_ms: FloatArray,
    features: FloatArray,
    costs: FloatArray,
    n_tokens: float,
    sharing: FloatArray,
) -> FloatArray:
    """Return the milliseconds that computing a prompt saves requests after it, by endpoint; shape (n).

    As many requests as share the prompt now will come while this one is served. Once an endpoint has the prompt too, they can
    go there, to a smaller batch than that of the best endpoint of now. A difference of batches lasts, so that it is theirs as well;
    a difference of queues is gone before they come. They share the cost of what they share with this one, also of
    what it displaces: more is not saved.

    Args:
        costs_ms: what the choice of each endpoint costs.
        spent_ms: the part of it that a copy costs: computing the prompt there, for this request and others, and what it displaces.
        features: see `cost_quantities`.
        costs: milliseconds per unit of each.
        n_tokens: of the prompt.
        sharing: number of requests that share leading tokens of the prompt and number of these tokens, ascending; shape (2, k).
    """
    saved: FloatArray = np.zeros(len(costs_ms))
    if not sharing.size or not len(costs_ms):
        return saved
    batch_ms = costs[BATCH] * features[BATCH]
    best = np.argmin(np.where(np.isnan(costs_ms), np.inf, costs_ms))
    gain = np.fmax(0.0, batch_ms[best] - batch_ms)
    uncached = features[PREFILL]
    start, n_first, paid = 0.0, np.zeros(len(costs_ms)), np.zeros(len(costs_ms))
    for n, end in sharing.T.tolist():
        missing = np.maximum(0.0, end - np.maximum(start, n_tokens - uncached))
        n_first = np.where((n_first == 0.0) & (missing > 0.0), n, n_first)
        paid += n / (1.0 + n) * missing
        start = end
    saved = spent_ms * (paid / np.maximum(1.0, uncached))
    np.fmin(saved, BOTH * n_first * gain, out=saved)
    return saved
