"""The bound of a tier without eviction events, learned from the blocks that its engine reused.

A bound above the engine's capacity expects evicted blocks; one below it misses blocks. Each request shows which: the
expected tokens were reused or not, or more were reused than expected. After each request the logarithm of the bound
moves by a step in proportion to the request's tokens; steps become shorter over time. The bound settles where
`TOLERATED` of the expected tokens fail: at the capacity or just above it, as precisely as requests can show.

Source: stochastic approximation after Robbins and Monro.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from .capacity import Basis, ObservedCapacity

ENOUGH_REQUESTS = 16
"""Requests with evidence before the bound is first changed."""

TOLERATED = 0.03
"""Fraction of expected tokens that fails at the final bound; with less, a bound that is too low would recover too slowly."""

GONE = 0.5
"""Fraction of expected tokens that must be reused to count as present: the last blocks of an offload chunk of unknown
size are expected but not reused, although all are there."""

FIRST_STEP = 0.5
"""First change of the bound's logarithm by a request whose expected tokens all failed."""

LAST_STEP = 0.03
"""The same in the long run; not 0, since an engine may change which blocks it keeps."""

SHORTER_AFTER = 32
"""Requests after which steps have half their first length."""

FULL = 0.95
"""Fraction of the bound that must be held before it may grow: only a full tier shows its capacity."""

RECENT = 32
"""Latest bounds behind an observation."""

SETTLED = 0.25
"""Largest range of these bounds, as a fraction, for an observation."""


@dataclass(frozen=True, slots=True)
class TierReuse:
    """Evidence of one request about a tier.

    Attributes:
        expected: tokens that the tier was expected to hold.
        reused: those of them that the engine reused.
        beyond: tokens that the engine reused after all expected ones.
    """

    expected: int
    reused: int
    beyond: int


class LearnedBound:
    """The bound of one tier of one rank. Cost: O(1) per request.

    Args:
        highest: upper limit of the bound in blocks.
    """

    def __init__(self, *, highest: int) -> None:
        self.n_blocks: int | None = None
        """The bound in blocks; None until enough requests gave evidence."""
        self._highest = highest
        self._exact = 0.0
        self._n_requests = self._n_tokens = 0
        self._recent: deque[int] = deque(maxlen=RECENT)

    def update(self, reuse: TierReuse, *, bound: int, n_held: int) -> None:
        """Update the bound with one more request.

        Args:
            reuse: evidence of the request.
            bound: current bound of the tier in blocks.
            n_held: blocks that the index has for it.
        """
        n_tokens = reuse.expected + reuse.beyond
        if not n_tokens:
            return
        self._n_requests += 1
        self._n_tokens += n_tokens
        if self._n_requests <= ENOUGH_REQUESTS:
            return
        learned = self._exact if bound == self.n_blocks else float(bound)
        if failed := reuse.reused < GONE * reuse.expected:
            learned = min(learned, n_held)  # blocks fail although the index has no more than these
        elif n_held < FULL * bound:
            return
        step = max(LAST_STEP, FIRST_STEP / (1 + (self._n_requests - ENOUGH_REQUESTS) / SHORTER_AFTER))
        weight = min(1.0, n_tokens * self._n_requests / self._n_tokens)
        change = TOLERATED - 1 if failed else TOLERATED + (1 - TOLERATED) * reuse.beyond / n_tokens
        learned *= math.exp(step * weight * change)
        self._exact = min(float(self._highest), max(1.0, learned))
        self.n_blocks = round(self._exact)
        self._recent.append(self.n_blocks)

    def observed(self) -> ObservedCapacity | None:
        """Return the median of the latest bounds, None if they are too few or too far apart. Cost: O(1)."""
        if len(self._recent) < RECENT:
            return None
        *_, highest = ordered = sorted(self._recent)
        spread = (highest - ordered[0]) / highest
        if spread > SETTLED:
            return None
        return ObservedCapacity(ordered[len(ordered) // 2], spread, self._n_requests, Basis.AUDIT)
