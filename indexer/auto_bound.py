"""The bound of a tier that was given none, once the engine's own evictions have shown what it holds."""

from __future__ import annotations

import math

from .capacity import ObservedCapacity

HEADROOM = 0.05
"""Part by which the bound exceeds what was observed: what the engine holds must never press against it, or our bound would
hide that there is more."""


class AutoBound:
    """Bounds one tier of one publisher, for one life of it.

    Events tell themselves what an engine gives up; the bound is for removals that are lost or never told, whose blocks would stay
    for ever.

    An engine's capacity does not change while it lives, so the bound never falls. It is lifted when the engine fills it,
    and comes back only for a higher observation: at least `HEADROOM` more each time, so it settles after a few.
    """

    def __init__(self) -> None:
        self._bound: int | None = None
        self._outgrown = 0
        self._n_doubts = 0

    def follow(self, observed: ObservedCapacity | None, *, n_held: int, n_doubts: int) -> int | None:
        """The bound from now on, None for none.

        Args:
            observed: what the tier holds when it is full, None while that is not known.
            n_held: blocks in it.
            n_doubts: times that removals may have gone unsaid: batches lost, and resets, of which engines tell nothing for
                slower tiers. Since there was one, a full tier may just hold blocks that are gone, and the bound stays.
        """
        if self._bound is not None:
            if n_held >= self._bound and n_doubts == self._n_doubts:
                self._outgrown, self._bound = self._bound, None
        elif observed is not None and observed.n_blocks >= self._outgrown:
            self._bound, self._n_doubts = math.ceil(observed.n_blocks * (1 + HEADROOM)), n_doubts
        return self._bound
