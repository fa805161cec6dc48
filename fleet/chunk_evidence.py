"""Chunks of slower tiers that are assumed too large, as an endpoint's answers show.

Engines load whole chunks from slower tiers, so that what they reuse ends with a chunk. Chunks that are assumed too small cost
little: events announce whole chunks, and matches end with what is held.
"""

from __future__ import annotations

from math import gcd

from .audit import Audited, Verdict

ENOUGH = 4
"""Answers that end within an assumed chunk, after which its size is reported; fewer may be events that came late."""

_NO_EVIDENCE = frozenset({Verdict.TOKENIZER, Verdict.OTHER_RANK, Verdict.STALE})


class ChunkEvidence:
    """Ends of reuse in the slower tiers of one endpoint.

    Args:
        in_use: blocks per chunk that matches assume.

    Attributes:
        in_use: the same.
        shown: blocks per chunk that answers show; None while they agree with `in_use`.
    """

    def __init__(self, in_use: int = 1) -> None:
        self.in_use = in_use
        self.shown: int | None = None
        self._n = self._n_within = 0
        self._common = 0
        """Greatest common divisor of the ends within a chunk, in blocks."""

    def learn(self, found: Audited, *, block_size: int) -> None:
        """Learn from an audited answer; one that reuses nothing of a slower tier says nothing."""
        in_fastest = next(iter(found.held.values()), 0)
        reused = sum(found.reused.values())
        if found.verdict in _NO_EVIDENCE or reused <= in_fastest or reused % block_size:
            return
        end = reused // block_size
        self._n += 1
        if end % self.in_use:
            self._n_within += 1
            self._common = gcd(self._common, end)
        is_enough = self._n_within >= ENOUGH and 2 * self._n_within >= self._n
        self.shown = self._common if is_enough else None
