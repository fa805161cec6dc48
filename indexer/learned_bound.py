"""The bound of a tier whose evictions nobody tells, learned from what its engine reused of prompts.

A bound above the engine's capacity expects blocks that are gone, one below it forgets blocks that are there. Each request
shows which: what the tier was expected to give was reused or not, or more was reused than expected. Steps of the bound's
logarithm after each, in proportion to its tokens and shorter and shorter, end where `TOLERATED` of the expected tokens
fail: at the capacity or just above it, as near as requests can show.

Source: stochastic approximation after Robbins and Monro.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from .capacity import Basis, ObservedCapacity

ENOUGH_REQUESTS = 16
"""Requests that must have shown something before the bound is changed."""

TOLERATED = 0.03
"""Part of the expected tokens that fails where the bound rests: with less, it would return too slowly when it is too low."""

GONE = 0.5
"""Part of the expected tokens below which they count as gone: of an offload chunk whose size is not known, the last blocks
are expected and not reused though all is there."""

FIRST_STEP = 0.5
"""Change of the bound's logarithm by a request of which all failed, at first."""

LAST_STEP = 0.03
"""The same in the long run: an engine may come to keep other blocks than it did."""

SHORTER_AFTER = 32
"""Requests after which steps have half their first length."""

FULL = 0.95
"""Part of the bound that must be held before it may grow: a tier that is not full shows nothing of its end."""

RECENT = 32
"""Bounds that an observation rests on."""

SETTLED = 0.25
"""Part by which these may differ for them to be an observation."""


@dataclass(frozen=True, slots=True)
class TierReuse:
    """What one request showed of a tier.

    Attributes:
        expected: tokens that the tier was expected to give.
        reused: of them, reused by the engine.
        beyond: tokens reused behind all that was expected.
    """

    expected: int
    reused: int
    beyond: int


class LearnedBound:
    """Bounds one tier of one rank. Cost: O(1) a request.

    Args:
        highest: blocks that the bound never exceeds.
    """

    def __init__(self, *, highest: int) -> None:
        self.n_blocks: int | None = None
        """The bound; None until enough requests have shown something."""
        self._highest = highest
        self._exact = 0.0
        self._n_requests = self._n_tokens = 0
        self._recent: deque[int] = deque(maxlen=RECENT)

    def update(self, reuse: TierReuse, *, bound: int, n_held: int) -> None:
        """One more request.

        Args:
            reuse: what it showed.
            bound: blocks that the tier is bounded to.
            n_held: blocks that it is thought to hold.
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
            learned = min(learned, n_held)  # blocks fail though the tier holds no more than that
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
        """The middle of the last bounds; None while these are too few or too far apart. Cost: O(1)."""
        if len(self._recent) < RECENT:
            return None
        *_, highest = ordered = sorted(self._recent)
        spread = (highest - ordered[0]) / highest
        if spread > SETTLED:
            return None
        return ObservedCapacity(ordered[len(ordered) // 2], spread, self._n_requests, Basis.AUDIT)
