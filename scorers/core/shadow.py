"""Comparison of the picks of two profiles: how often they differ, and the gain that the other would have brought."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from .base import Rng
from .candidates import Candidates
from .decision import Decision, qualified
from .model import Candidate

NORMAL_975 = 1.96
"""Quantile 0.975 of the normal distribution, for intervals that cover 95 %."""


class Draws:
    """Random draws that are recorded for replay, so that two profiles break equal ties alike.

    Args:
        rng: source of the draws.
    """

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._drawn: list[float] = []

    def __call__(self) -> float:
        """Return the next draw."""
        draw = self._rng()
        self._drawn.append(draw)
        return draw

    def replay(self) -> Rng:
        """Return a source of the same draws from the first one on, followed by new draws."""
        return partial(next, chain(self._drawn, iter(self._rng, None)))


@dataclass(frozen=True, slots=True)
class Repeat:
    """What another profile needs to decide on the same request.

    Attributes:
        candidates: the candidates as they were.
        draws: the draws of the decision.
    """

    candidates: Candidates
    draws: Draws


@dataclass(slots=True)
class RunningMean:
    """Running mean with its 95 % interval; the interval treats the values as independent.

    Attributes:
        n: number of values.
        mean: their mean, 0 if there is none.
    """

    n: int = 0
    mean: float = 0.0
    _squares: float = field(default=0.0, init=False)

    def add(self, value: float) -> None:
        """Add one value."""
        self.n += 1
        before, self.mean = self.mean, self.mean + (value - self.mean) / self.n
        self._squares += (value - before) * (value - self.mean)

    @property
    def margin(self) -> float | None:
        """Return half the width of the interval, None with fewer than two values."""
        if self.n < 2:
            return None
        return NORMAL_975 * math.sqrt(self._squares / (self.n - 1) / self.n)


def share_interval(part: int, whole: int) -> tuple[float, float]:
    """Return the 95 % interval of a share by Wilson's score, which is valid near 0 and 1; (0, 1) if `whole` is 0."""
    if not whole:
        return 0.0, 1.0
    share, spread = part / whole, NORMAL_975**2 / whole
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(slots=True)
class ShadowTally:
    """Tally of the requests on which a shadow profile decided too.

    Attributes:
        agreed: requests for which it picked the same endpoint first, for every stage.
        disagreed: requests for which it picked another.
        refused: requests for which its filters dropped every endpoint, or no endpoint can do a stage.
        prompt_tokens: prompt tokens of the requests for which it picked.
        live_tokens: tier -> tokens expected to be reused on the live picks, where the prompt is computed.
        shadow_tokens: tier -> the same for the shadow's picks.
        cached_gain: additional tokens that a request is expected to reuse on the shadow's pick.
        ttft_gain_s: seconds by which its first token is expected earlier, for requests with a prediction.
        live_ttft_s: expected seconds to the first token on the live picks, for the same requests.
        shadow_ttft_s: the same on the shadow's picks.
        terms: scorer of the shadow -> its weighted score of the shadow's pick minus that of the live pick, for requests
            with different picks.
    """

    agreed: int = 0
    disagreed: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    live_tokens: dict[str, int] = field(default_factory=dict[str, int])
    shadow_tokens: dict[str, int] = field(default_factory=dict[str, int])
    cached_gain: RunningMean = field(default_factory=RunningMean)
    ttft_gain_s: RunningMean = field(default_factory=RunningMean)
    live_ttft_s: RunningMean = field(default_factory=RunningMean)
    shadow_ttft_s: RunningMean = field(default_factory=RunningMean)
    terms: dict[str, RunningMean] = field(default_factory=dict[str, RunningMean])

    @property
    def compared(self) -> int:
        """Return the number of requests for which the shadow picked."""
        return self.agreed + self.disagreed

    def add(self, live: Decision, shadow: Decision, ttft_s: Mapping[str, float]) -> None:
        """Add one request.

        Args:
            live: decision that routed it.
            shadow: decision of the shadow on the same candidates.
            ttft_s: endpoint -> expected time to first token, for both endpoints that compute the prompt; empty if there is
                no prediction.
        Cost: O(candidates).
        """
        if not shadow.picked:
            self.refused += 1
            return
        differing = list(_differing(live, shadow))
        if differing:
            self.disagreed += 1
        else:
            self.agreed += 1
        for profile, live_pick, own in differing:
            self._add_terms(profile, live_pick, own)
        live_pick, shadow_pick = live.computing.best, shadow.computing.best
        self.prompt_tokens += live.n_tokens
        gain = _add_tokens(self.shadow_tokens, shadow_pick) - _add_tokens(self.live_tokens, live_pick)
        self.cached_gain.add(gain)
        if ttft_s:
            live_s, shadow_s = ttft_s[live_pick.name], ttft_s[shadow_pick.name]
            self.ttft_gain_s.add(live_s - shadow_s)
            self.live_ttft_s.add(live_s)
            self.shadow_ttft_s.add(shadow_s)

    def _add_terms(self, profile: str | None, live_pick: Candidate, shadow: Decision) -> None:
        """Add the differences of terms, unless the shadow's filters dropped the live pick, which then has no terms."""
        own, other = shadow.kept.row(live_pick.name), shadow.row
        if own is None:
            return
        for (name, _, weight), scores in zip(shadow.scorers, shadow.scores, strict=True):
            advantage = weight * float(scores[other] - scores[own])
            key = name if profile is None else qualified(profile, name)
            self.terms.setdefault(key, RunningMean()).add(advantage)


def _differing(live: Decision, shadow: Decision) -> Iterator[tuple[str | None, Candidate, Decision]]:
    """Yield the shadow's decisions that picked other endpoints, with profile (None without handler) and live pick.

    A stage that is apart in one of the two only is compared with the endpoint that answers in the other.
    """
    answering = shadow.placement.profile if shadow.placement is not None else None
    if shadow.best.name != live.best.name:
        yield answering, live.best, shadow
    before = {each.name: each.decision for each in live.stages}
    for stage in shadow.stages:
        theirs = before.pop(stage.name, live)
        if theirs.picked != stage.decision.picked:
            yield stage.profile, theirs.best, stage.decision
    if before and shadow.best.name == live.best.name:
        yield answering, next(iter(before.values())).best, shadow


def _add_tokens(total: dict[str, int], candidate: Candidate) -> int:
    """Add the tokens that an endpoint is expected to reuse to `total`, per tier; return their sum."""
    tokens = candidate.prefix.usable_tier_tokens if candidate.prefix is not None else {}
    for tier, count in tokens.items():
        total[tier] = total.get(tier, 0) + count
    return sum(tokens.values())
