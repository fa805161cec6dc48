"""Slower tiers that their engine emptied without an event, as its answers show.

vLLM does so on request (`/reset_prefix_cache?reset_external=true`): its events tell of the fastest tier alone, with the next step
that it computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .audit import Audited, Verdict

ENOUGH = 2
"""Answers that contradict a tier, without one between them that confirms it, after which it counts as emptied; one is enough
if the fastest tier was cleared since the answer before it."""


class SilentResets:
    """Evidence about the slower tiers of one rank."""

    def __init__(self) -> None:
        self._n_against: dict[str, int] = {}
        self._n_clears = 0

    def learn(
        self, found: Audited, tiers: Sequence[str], *, unit_tokens: int, n_clears: int
    ) -> Iterator[str]:
        """Learn from an audited answer; yield the tiers that have been emptied.

        Args:
            found: the answer.
            tiers: slower tiers that are known from events.
            unit_tokens: tokens by which engines may differ by their rules alone: a block, or a chunk of slower tiers.
            n_clears: resets of the fastest tier so far.
        """
        enough = 1 if n_clears > self._n_clears else ENOUGH
        self._n_clears = n_clears
        reused = sum(found.reused.values())
        for tier in tiers:
            if found.reused.get(tier):
                self._n_against.pop(tier, None)
            elif self._contradicts(found, found.held.get(tier, 0) - reused, unit_tokens):
                self._n_against[tier] = self._n_against.get(tier, 0) + 1
                if self._n_against[tier] >= enough:
                    del self._n_against[tier]
                    yield tier

    @staticmethod
    def _contradicts(found: Audited, missing_tokens: int, unit_tokens: int) -> bool:
        return found.verdict in (Verdict.UNKNOWN, Verdict.EVICTED) and missing_tokens > unit_tokens
