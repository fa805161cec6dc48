"""What endpoints were thought to reuse of prompts, beside what their engines say they reused.

The engine counts tokens without saying from which tier they came, so reused tokens are laid out along the expected runs:
first what was expected of the fastest tier, then the slower ones, and what is beyond was not expected at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ..events.stream import Trust
from ..indexer.learned_bound import TierReuse
from ..indexer.match import PrefixMatch
from ..indexer.tiers import TierSource
from ..scorers.core.decision import Decision

BEYOND = "beyond"
"""In place of a tier: reused tokens that were not expected."""

MEMORY = 0.9
"""What an older request counts beside the one after it: a judgement rests on the last ten or so."""

ENOUGH_TOKENS = 4096.0
"""Expected tokens, by that weight, below which nothing is concluded."""

TOLERANCE = 0.9
"""Part of the expected tokens that must be reused for full credit: a few evictions on the way are no fault of the index."""

FORGIVEN_S = 60.0
"""Time constant with which lost credit comes back without further evidence, so that an endpoint is tried again."""


class Verdict(StrEnum):
    """How an expectation compares with the engine's count; the first that fits."""

    TOKENIZER = "tokenizer"
    """The engine counts another number of prompt tokens: the prompt was encoded otherwise."""
    GOOD = "good"
    """Less than a block apart."""
    OTHER_RANK = "other_rank"
    """Less was reused, and the engine may have used another data-parallel rank than the best."""
    STALE = "stale"
    """The endpoint's events were known to be incomplete."""
    EVENT_LAG = "event_lag"
    """More was reused than the index knew of: events were on their way, or the endpoint has none."""
    TOO_EARLY = "too_early"
    """Less was reused, by what was only predicted: the prompt before it was not computed yet."""
    EVICTED = "evicted"
    """Less was reused, of a tier that is full, or whose evictions the engine does not tell."""
    UNKNOWN = "unknown"
    """Less was reused, and nothing known explains it."""


INDEX_FAULTS = frozenset({Verdict.STALE, Verdict.EVICTED, Verdict.UNKNOWN})
"""Verdicts by which the endpoint's entries in the index, and so its credit, are in doubt."""


@dataclass(frozen=True, slots=True)
class TierState:
    """What is known of one tier of an endpoint when its engine has answered.

    Attributes:
        source: where its knowledge comes from, None for nowhere.
        is_full: whether it holds nearly as much as it can.
    """

    source: TierSource | None
    is_full: bool


@dataclass(frozen=True, slots=True)
class Audited:
    """One request.

    Attributes:
        endpoint: name of the endpoint that answered.
        verdict: how well it was known.
        tier: where the expectation failed, None where it did not or held less than it gave.
        expected: tier -> tokens expected of it.
        reused: tier, or `BEYOND` -> tokens.
    """

    endpoint: str
    verdict: Verdict
    tier: str | None
    expected: Mapping[str, int]
    reused: Mapping[str, int]

    @property
    def error_tokens(self) -> int:
        """Expected less reused tokens: above zero, too much was expected."""
        return sum(self.expected.values()) - sum(self.reused.values())


def judge(
    decision: Decision,
    *,
    prompt_tokens: int,
    cached_tokens: int,
    n_ranks: int,
    tiers: Mapping[str, TierState],
) -> Audited | None:
    """The decision beside the engine's own counts.

    Args:
        decision: that sent the request to the endpoint that answered.
        prompt_tokens: tokens of the prompt, by the engine.
        cached_tokens: of them, reused.
        n_ranks: data-parallel ranks of the endpoint.
        tiers: what is known of its tiers, by name; every configured tier is there.
    Returns:
        None where there was no expectation of the whole prompt: without block keys, with several prompts, or with one whose
        end is not known.
    """
    prefix = decision.best.prefix
    if prefix is None or decision.n_prompts != 1 or decision.no_prefix_reason or decision.cut_reason:
        return None
    expected = prefix.usable_tier_tokens
    reused, failed_in = _laid_out(expected, cached_tokens)
    concerned = tiers[failed_in or prefix.tiers[0]]
    verdict = _verdict(decision, prefix, prompt_tokens, cached_tokens, n_ranks, concerned)
    if verdict in (Verdict.GOOD, Verdict.TOKENIZER):
        failed_in = None
    return Audited(decision.best.name, verdict, failed_in, expected, reused)


def tier_reuse(audited: Audited, tier: str) -> TierReuse | None:
    """What a request showed of the capacity of a tier whose evictions are not told; None for nothing."""
    expected, reused = audited.expected.get(tier, 0), audited.reused.get(tier, 0)
    match audited.verdict:
        case Verdict.GOOD:  # the part of a block that is missing was no block of the tier
            return TierReuse(expected, expected, 0)
        case Verdict.EVICTED if audited.tier == tier:
            return TierReuse(expected, reused, 0)
        case Verdict.EVENT_LAG:
            return TierReuse(expected, reused, audited.reused.get(BEYOND, 0))
        case _:
            return None


def _laid_out(expected: Mapping[str, int], cached_tokens: int) -> tuple[dict[str, int], str | None]:
    """Reused tokens by tier, and the first tier that gave less than expected."""
    reused: dict[str, int] = {}
    failed_in: str | None = None
    left = cached_tokens
    for tier, tokens in expected.items():
        reused[tier] = min(left, tokens)
        left -= reused[tier]
        if reused[tier] < tokens and failed_in is None:
            failed_in = tier
    if left:
        reused[BEYOND] = left
    return reused, failed_in


def _verdict(
    decision: Decision,
    prefix: PrefixMatch,
    prompt_tokens: int,
    cached_tokens: int,
    n_ranks: int,
    tier: TierState,
) -> Verdict:
    error = prefix.usable_tokens - cached_tokens
    if prompt_tokens != decision.n_tokens:
        return Verdict.TOKENIZER
    if abs(error) < prefix.block_size:
        return Verdict.GOOD
    if error > 0 and n_ranks > 1:
        return Verdict.OTHER_RANK
    is_told = tier.source is TierSource.EVENTS
    if is_told and decision.best.trust is not Trust.LIVE:
        return Verdict.STALE
    if error < 0:
        return Verdict.EVENT_LAG
    if error <= prefix.predicted_blocks * prefix.block_size:
        return Verdict.TOO_EARLY
    return Verdict.EVICTED if tier.is_full or not is_told else Verdict.UNKNOWN


@dataclass(slots=True)
class EndpointAudit:
    """All requests of one endpoint that were judge.

    Attributes:
        verdicts: how often each was given.
        expected: tier -> tokens.
        reused: tier, or `BEYOND` -> tokens.
        over_tokens: expected and not reused.
        under_tokens: reused and not expected.
    """

    verdicts: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(Verdict, 0))
    expected: dict[str, int] = field(default_factory=dict[str, int])
    reused: dict[str, int] = field(default_factory=dict[str, int])
    over_tokens: int = 0
    under_tokens: int = 0
    _weighed_expected: float = field(default=0.0, init=False)
    _weighed_reused: float = field(default=0.0, init=False)
    _last_at: float = field(default=0.0, init=False)

    def add(self, audited: Audited, *, now: float) -> None:
        """One more request; `now` in monotonic seconds."""
        self.verdicts[audited.verdict] += 1
        for books, tokens in ((self.expected, audited.expected), (self.reused, audited.reused)):
            for tier, count in tokens.items():
                books[tier] = books.get(tier, 0) + count
        self.over_tokens += max(0, audited.error_tokens)
        self.under_tokens += max(0, -audited.error_tokens)
        expected = sum(audited.expected.values())
        if expected and (audited.verdict is Verdict.GOOD or audited.verdict in INDEX_FAULTS):
            self._weighed_expected = MEMORY * self._weighed_expected + expected
            self._weighed_reused = MEMORY * self._weighed_reused + expected - max(0, audited.error_tokens)
            self._last_at = now

    @property
    def is_doubted(self) -> bool:
        """Whether enough is known of the endpoint, and less than `TOLERANCE` of what was expected was reused."""
        expected = self._weighed_expected
        return expected >= ENOUGH_TOKENS and self._weighed_reused / expected < TOLERANCE

    def credit(self, now: float) -> float:
        """What the index's word on this endpoint is worth, 0 to 1: the part of what was expected that was reused.

        1 unless it is doubted; lost credit comes back with time.
        """
        if not self.is_doubted:
            return 1.0
        part = self._weighed_reused / self._weighed_expected
        return 1.0 - (1.0 - part) * math.exp(-max(0.0, now - self._last_at) / FORGIVEN_S)


class Audit:
    """The books of all endpoints. For one event loop; no locks."""

    def __init__(self) -> None:
        self._endpoints: dict[str, EndpointAudit] = {}
        self._doubted: dict[str, EndpointAudit] = {}

    def add(self, audited: Audited, *, now: float) -> None:
        """One more request; `now` in monotonic seconds."""
        books = self._endpoints.setdefault(audited.endpoint, EndpointAudit())
        books.add(audited, now=now)
        if books.is_doubted:
            self._doubted[audited.endpoint] = books
        else:
            self._doubted.pop(audited.endpoint, None)

    def of(self, endpoint: str) -> EndpointAudit | None:
        """The endpoint's books, None before its first judge request."""
        return self._endpoints.get(endpoint)

    def doubts(self, *, now: float) -> dict[str, float]:
        """See `EndpointAudit.credit`, of the doubted endpoints. Cost: O(doubted endpoints)."""
        return {endpoint: books.credit(now) for endpoint, books in self._doubted.items()}

    def forget(self, endpoint: str) -> None:
        """The endpoint is gone."""
        self._endpoints.pop(endpoint, None)
        self._doubted.pop(endpoint, None)
