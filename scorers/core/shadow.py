"""What another profile would have picked, beside what was picked: how often it differs, and what that would have brought."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from .base import Rng
from .decision import Decision
from .model import Candidate

NORMAL_975 = 1.96
"""Quantile 0.975 of the normal distribution: intervals cover 95 %."""


class Draws:
    """Random draws that can be made again, so that two profiles break equal ties alike.

    Args:
        rng: makes them.
    """

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._drawn: list[float] = []

    def __call__(self) -> float:
        """The next draw."""
        draw = self._rng()
        self._drawn.append(draw)
        return draw

    def again(self) -> Rng:
        """The same draws from the first on, and new ones behind them."""
        return partial(next, chain(self._drawn, iter(self._rng, None)))


@dataclass(slots=True)
class RunningMean:
    """Mean of values that come one by one, with its 95 % interval as if they were independent.

    Attributes:
        n: values so far.
        mean: of them, 0 without any.
    """

    n: int = 0
    mean: float = 0.0
    _squares: float = field(default=0.0, init=False)

    def add(self, value: float) -> None:
        """One more value."""
        self.n += 1
        before, self.mean = self.mean, self.mean + (value - self.mean) / self.n
        self._squares += (value - before) * (value - self.mean)

    @property
    def margin(self) -> float | None:
        """Half the width of the interval, None with fewer than two values."""
        if self.n < 2:
            return None
        return NORMAL_975 * math.sqrt(self._squares / (self.n - 1) / self.n)


def share_interval(part: int, whole: int) -> tuple[float, float]:
    """95 % interval of a share, by Wilson's score, which holds near 0 and 1 as well; 0 to 1 of nothing."""
    if not whole:
        return 0.0, 1.0
    share, spread = part / whole, NORMAL_975**2 / whole
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(slots=True)
class ShadowTally:
    """All requests on which a shadow decided too.

    Attributes:
        agreed: it picked the same endpoint first.
        disagreed: it picked another.
        refused: its filters left nobody.
        prompt_tokens: of the requests on which it picked.
        live_tokens: tier -> tokens expected to be reused where requests went.
        shadow_tokens: tier -> the same where the shadow would have sent them.
        cached_gain: how many more tokens a request would be expected to reuse.
        ttft_gain_s: how many seconds sooner its first token would be expected; of requests since that can be predicted.
        terms: scorer of the shadow -> how much more it gave the shadow's pick than the endpoint picked, of requests on
            which they differ.
    """

    agreed: int = 0
    disagreed: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    live_tokens: dict[str, int] = field(default_factory=dict[str, int])
    shadow_tokens: dict[str, int] = field(default_factory=dict[str, int])
    cached_gain: RunningMean = field(default_factory=RunningMean)
    ttft_gain_s: RunningMean = field(default_factory=RunningMean)
    terms: dict[str, RunningMean] = field(default_factory=dict[str, RunningMean])

    @property
    def compared(self) -> int:
        """Requests on which it picked."""
        return self.agreed + self.disagreed

    def add(self, live: Decision, shadow: Decision, ttft_s: Mapping[str, float]) -> None:
        """One more request.

        Args:
            live: by which it was routed.
            shadow: on the same candidates.
            ttft_s: endpoint -> expected time to first token, of both first picks; empty where it cannot be predicted.
        Cost: O(candidates).
        """
        if not shadow.picked:
            self.refused += 1
            return
        ours, theirs = live.best, shadow.best
        if ours.name == theirs.name:
            self.agreed += 1
        else:
            self.disagreed += 1
            self._add_terms(ours, shadow)
        self.prompt_tokens += live.n_tokens
        gain = _add_tokens(self.shadow_tokens, theirs) - _add_tokens(self.live_tokens, ours)
        self.cached_gain.add(gain)
        if ttft_s:
            self.ttft_gain_s.add(ttft_s[ours.name] - ttft_s[theirs.name])

    def _add_terms(self, ours: Candidate, shadow: Decision) -> None:
        """Nothing where the shadow's filters dropped the endpoint picked: it has no terms there."""
        names = [each.name for each in shadow.kept]
        if ours.name not in names:
            return
        own, other = names.index(ours.name), names.index(shadow.picked[0])
        for name, _, weight, ratings in shadow.columns:
            advantage = weight * (ratings[other].score - ratings[own].score)
            self.terms.setdefault(name, RunningMean()).add(advantage)


def _add_tokens(books: dict[str, int], candidate: Candidate) -> int:
    """Put down what an endpoint is expected to reuse; all of it."""
    tokens = candidate.prefix.usable_tier_tokens if candidate.prefix is not None else {}
    for tier, count in tokens.items():
        books[tier] = books.get(tier, 0) + count
    return sum(tokens.values())
