"""The bound of a tier without a configured one, from the engine's own evictions."""

from __future__ import annotations

import math

from .capacity import ObservedCapacity

HEADROOM = 0.05
"""Fraction by which the bound exceeds the observed capacity: if the engine's blocks reached the bound, it would hide that
there are more."""


class AutoBound:
    """The bound of one tier of one publisher, for one life of it.

    Events report evictions; the bound catches removals that were lost or never sent, whose blocks would stay for ever.

    An engine's capacity does not change during its life, so the bound never falls. It is lifted when the engine fills it,
    and returns only for a higher observation: at least `HEADROOM` more each time, so it settles after a few.
    """

    def __init__(self) -> None:
        self._bound: int | None = None
        self._outgrown = 0
        self._n_doubts = 0

    def follow(self, observed: ObservedCapacity | None, *, n_held: int, n_doubts: int) -> int | None:
        """Update and return the bound, None if there is none.

        Args:
            observed: observed capacity, None while unknown.
            n_held: blocks in the tier.
            n_doubts: events that may have hidden removals: lost batches, and resets, which engines do not report for
                slower tiers. After one, a full tier may contain blocks that are gone, so the bound stays.
        """
        if self._bound is not None:
            if n_held >= self._bound and n_doubts == self._n_doubts:
                self._outgrown, self._bound = self._bound, None
        elif observed is not None and observed.n_blocks >= self._outgrown:
            self._bound, self._n_doubts = math.ceil(observed.n_blocks * (1 + HEADROOM)), n_doubts
        return self._bound
