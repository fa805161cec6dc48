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
from collections.abc import Iterable, Sequence
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

MAX_COUNT = 2**52
"""Highest count that is taken of another process; a float still has a next one."""


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

    Several processes learn it together, as one would from all their requests: each goes on from the newest bound of any of
    them. Of two that moved it at the same time, the higher one stays.

    Args:
        highest: upper limit of the bound in blocks.
    """

    def __init__(self, *, highest: int) -> None:
        self.n_blocks: int | None = None
        """The bound in blocks; None until enough requests gave evidence."""
        self._highest = highest
        self._exact = 0.0
        self._n_moves = 0
        """Changes of the bound so far, those of other processes included."""
        self._n_requests = self._n_tokens = 0
        self._their_requests = self._their_tokens = 0
        """The same of the other processes."""
        self._recent: deque[int] = deque(maxlen=RECENT)

    @property
    def lesson(self) -> Sequence[float]:
        """Return what other processes go on from: own requests and tokens, changes so far, and the bound, 0 if there is none."""
        return self._n_requests, self._n_tokens, self._n_moves, self._exact

    def add_up(self, others: Iterable[Sequence[float]]) -> None:
        """Take what other processes have learned, in place of what was given before.

        Args:
            others: `lesson` of each of them; what is none is ignored.
        """
        known = [each for each in others if self._is_lesson(each)]
        self._their_requests = int(sum(each[0] for each in known))
        self._their_tokens = int(sum(each[1] for each in known))
        n_moves, exact = max(((each[2], each[3]) for each in known), default=(0, 0.0))
        if (n_moves, exact) > (self._n_moves, self._exact) and exact:
            self._n_moves = int(n_moves)
            self._move_to(exact)

    def _is_lesson(self, numbers: Sequence[float]) -> bool:
        return (
            len(numbers) == 4
            and all(0 <= number < MAX_COUNT for number in numbers[:3])
            and (numbers[3] == 0 or 1 <= numbers[3] <= self._highest)
        )

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
        n_requests, all_tokens = self._n_requests + self._their_requests, self._n_tokens + self._their_tokens
        if n_requests <= ENOUGH_REQUESTS:
            return
        learned = self._exact if bound == self.n_blocks else float(bound)
        if failed := reuse.reused < GONE * reuse.expected:
            learned = min(learned, n_held)  # blocks fail although the index has no more than these
        elif n_held < FULL * bound:
            return
        step = max(LAST_STEP, FIRST_STEP / (1 + (n_requests - ENOUGH_REQUESTS) / SHORTER_AFTER))
        weight = min(1.0, n_tokens * n_requests / all_tokens)
        change = TOLERATED - 1 if failed else TOLERATED + (1 - TOLERATED) * reuse.beyond / n_tokens
        learned *= math.exp(step * weight * change)
        self._n_moves += 1
        self._move_to(min(float(self._highest), max(1.0, learned)))

    def _move_to(self, exact: float) -> None:
        self._exact, self.n_blocks = exact, round(exact)
        self._recent.append(self.n_blocks)

    def observed(self) -> ObservedCapacity | None:
        """Return the median of the latest bounds, None if they are too few or too far apart. Cost: O(1)."""
        if len(self._recent) < RECENT:
            return None
        *_, highest = ordered = sorted(self._recent)
        spread = (highest - ordered[0]) / highest
        if spread > SETTLED:
            return None
        n_requests = self._n_requests + self._their_requests
        return ObservedCapacity(ordered[len(ordered) // 2], spread, n_requests, Basis.AUDIT)
