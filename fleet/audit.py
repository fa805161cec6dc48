"""Audit of the index: expected prompt tokens to reuse, compared with the engine's own counts.

The engine counts reused tokens without their tier. They are assigned to the tiers in the order of the expectation: first
the fastest tier, then the slower ones. Tokens beyond the expectation are counted as unexpected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ..events.stream import Trust
from ..indexer.learned_bound import TierReuse
from ..indexer.match import PrefixMatch
from ..indexer.tiers import TierSource
from ..scorers.core.decision import Decision
from ..scorers.core.shared import Contribution, SharedSums

BEYOND = "beyond"
"""Key in place of a tier for reused tokens that were not expected."""

MEMORY = 0.9
"""Weight of a request relative to the next one, so that about the last ten requests decide."""

ENOUGH_TOKENS = 4096.0
"""Weighted expected tokens needed before an endpoint may be doubted."""

TOLERANCE = 0.9
"""Part of the expected tokens that must be reused for full credit; the rest allows for evictions on the way."""

FORGIVEN_S = 60.0
"""Time constant with which lost credit recovers exponentially, so that an endpoint is tried again."""


class Verdict(StrEnum):
    """Result of comparing an expectation with the engine's count; the first that applies."""

    TOKENIZER = "tokenizer"
    """The engine counts a different number of prompt tokens: it encoded the prompt differently."""
    GOOD = "good"
    """The difference is less than a block."""
    OTHER_RANK = "other_rank"
    """Less was reused; the request may have run on another data-parallel rank than the best one, or has."""
    STALE = "stale"
    """The endpoint's events were incomplete, according to their trust."""
    EVENT_LAG = "event_lag"
    """More was reused than the index knew: events were delayed, or the endpoint sends none."""
    TOO_EARLY = "too_early"
    """Less was reused, by at most the predicted blocks: the earlier prompt was not computed yet."""
    EVICTED = "evicted"
    """Less was reused from a tier that is full, or whose evictions the engine does not report."""
    UNKNOWN = "unknown"
    """Less was reused, for an unknown reason."""


INDEX_FAULTS = frozenset({Verdict.STALE, Verdict.EVICTED, Verdict.UNKNOWN})
"""Verdicts that put the endpoint's entries in the index, and so its credit, in doubt."""


@dataclass(frozen=True, slots=True)
class TierState:
    """State of one tier of an endpoint when its response has ended.

    Attributes:
        source: source of the index's knowledge of the tier; None if there is none.
        is_full: whether the tier is nearly full.
    """

    source: TierSource | None
    is_full: bool


@dataclass(frozen=True, slots=True)
class Audited:
    """One audited request.

    Attributes:
        endpoint: name of the endpoint that responded.
        verdict: result of the comparison.
        tier: first tier that gave less than expected; None if each gave at least that.
        expected: tier -> tokens expected from it.
        reused: tier, or `BEYOND` -> tokens reused.
        held: tier -> tokens of the prompt that it was believed to hold without a gap.
        rank: data-parallel rank of which that was expected; None if the request may have run on another one.
        prompt_tokens: tokens of the prompt, counted by the engine.
    """

    endpoint: str
    verdict: Verdict
    tier: str | None
    expected: Mapping[str, int]
    reused: Mapping[str, int]
    held: Mapping[str, int] = field(default_factory=dict[str, int])
    rank: int | None = 0
    prompt_tokens: int = 0

    @property
    def error_tokens(self) -> int:
        """Expected minus reused tokens; positive if too much was expected."""
        return sum(self.expected.values()) - sum(self.reused.values())


def judge(
    decision: Decision,
    *,
    prompt_tokens: int,
    cached_tokens: int,
    ran_on: int | None,
    tiers: Mapping[str, TierState],
) -> Audited | None:
    """Compare a decision with the engine's own counts.

    Args:
        decision: decision for the request; the picked endpoint must have responded.
        prompt_tokens: tokens of the prompt, counted by the engine.
        cached_tokens: those of them that were reused.
        ran_on: data-parallel rank that ran the request, None if it is unknown.
        tiers: state of every configured tier, by name.
    Returns:
        None if there was no expectation for the whole prompt: without block keys, with several prompts, or with a prompt
        that was cut. Also with several choices, of which the engine counts one that may have found what another one computed, and if
        more tokens were reused than the prompt has: the engine counts wrong, and says nothing of tiers.
    """
    prefix = decision.best.prefix
    if cached_tokens > prompt_tokens:
        return None
    if prefix is None or decision.no_prefix_reason or decision.cut_reason:
        return None
    if decision.n_prompts != 1 or decision.n_choices != 1:
        return None
    expected = prefix.usable_tier_tokens
    reused, failed_in = _laid_out(expected, cached_tokens)
    concerned = tiers[failed_in or prefix.tiers[0]]
    rank = prefix.rank if ran_on == prefix.rank else None
    verdict = _verdict(decision, prefix, prompt_tokens, cached_tokens, rank, concerned)
    if verdict in (Verdict.GOOD, Verdict.TOKENIZER):
        failed_in = None
    blocks = zip(prefix.tiers, prefix.held.tier_blocks, strict=True)
    held = {tier: n_blocks * prefix.block_size for tier, n_blocks in blocks}
    return Audited(decision.best.name, verdict, failed_in, expected, reused, held, rank, prompt_tokens)


def tier_reuse(audited: Audited, tier: str) -> TierReuse | None:
    """Return the evidence of a request about the capacity of a tier without eviction events, None if there is none."""
    expected, reused = audited.expected.get(tier, 0), audited.reused.get(tier, 0)
    match audited.verdict:
        case Verdict.GOOD:  # a difference below one block is no missing block
            return TierReuse(expected, expected, 0)
        case Verdict.EVICTED if audited.tier == tier:
            return TierReuse(expected, reused, 0)
        case Verdict.EVENT_LAG:
            return TierReuse(expected, reused, audited.reused.get(BEYOND, 0))
        case _:
            return None


def _laid_out(expected: Mapping[str, int], cached_tokens: int) -> tuple[dict[str, int], str | None]:
    """Assign the reused tokens to tiers; also return the first tier that gave less than expected."""
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
    rank: int | None,
    tier: TierState,
) -> Verdict:
    error = prefix.usable_tokens - cached_tokens
    if prompt_tokens != decision.n_tokens:
        return Verdict.TOKENIZER
    if abs(error) < prefix.block_size:
        return Verdict.GOOD
    if error > 0 and rank is None:
        return Verdict.OTHER_RANK
    has_events = tier.source is TierSource.EVENTS
    if has_events and decision.best.trust is not Trust.LIVE:
        return Verdict.STALE
    if error < 0:
        return Verdict.EVENT_LAG
    if error <= prefix.predicted_blocks * prefix.block_size:
        return Verdict.TOO_EARLY
    return Verdict.EVICTED if tier.is_full or not has_events else Verdict.UNKNOWN


@dataclass(slots=True)
class EndpointAudit:
    """Sums over all audited requests of one endpoint.

    Attributes:
        verdicts: verdict -> requests.
        expected: tier -> tokens expected.
        reused: tier, or `BEYOND` -> tokens reused.
        over_tokens: tokens expected but not reused.
        under_tokens: tokens reused but not expected.
    """

    verdicts: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(Verdict, 0))
    expected: dict[str, int] = field(default_factory=dict[str, int])
    reused: dict[str, int] = field(default_factory=dict[str, int])
    over_tokens: int = 0
    under_tokens: int = 0
    _weighted_expected: float = field(default=0.0, init=False)
    _weighted_reused: float = field(default=0.0, init=False)
    _last_at: float = field(default=0.0, init=False)
    _theirs: tuple[float, float, float] = field(default=(0.0, 0.0, 0.0), init=False)
    """Weighted expected and reused tokens of other processes, and the monotonic seconds of their last request."""

    def add(self, audited: Audited, *, now: float) -> None:
        """Add an audited request; `now` in monotonic seconds."""
        self.verdicts[audited.verdict] += 1
        for sums, tokens in ((self.expected, audited.expected), (self.reused, audited.reused)):
            for tier, count in tokens.items():
                sums[tier] = sums.get(tier, 0) + count
        self.over_tokens += max(0, audited.error_tokens)
        self.under_tokens += max(0, -audited.error_tokens)
        expected = sum(audited.expected.values())
        if expected and (audited.verdict is Verdict.GOOD or audited.verdict in INDEX_FAULTS):
            self._weighted_expected = MEMORY * self._weighted_expected + expected
            self._weighted_reused = MEMORY * self._weighted_reused + expected - max(0, audited.error_tokens)
            self._last_at = now

    @property
    def is_doubted(self) -> bool:
        """Whether less than `TOLERANCE` of enough expected tokens was reused."""
        expected, reused, _ = self._total
        return expected >= ENOUGH_TOKENS and reused / expected < TOLERANCE

    def credit(self, now: float) -> float:
        """Return the factor for the endpoint's prefix scores, 0 to 1: the reused part of the expected tokens.

        1 unless the endpoint is doubted. Lost credit recovers with the time constant `FORGIVEN_S`.
        """
        if not self.is_doubted:
            return 1.0
        expected, reused, last_at = self._total
        return 1.0 - (1.0 - reused / expected) * math.exp(-max(0.0, now - last_at) / FORGIVEN_S)

    def evidence(self, now: float) -> tuple[float, float, float]:
        """Return this process's weighted expected and reused tokens, and the age of the last request in seconds."""
        return self._weighted_expected, self._weighted_reused, now - self._last_at

    def add_up(self, others: Sequence[Contribution]) -> None:
        """Judge by the evidence of other processes too, in place of what was given before; malformed one is ignored."""
        known = [(each.at, each.numbers) for each in others if _is_evidence(each.numbers)]
        self._theirs = (
            sum(numbers[0] for _, numbers in known),
            sum(numbers[1] for _, numbers in known),
            max((at - numbers[2] for at, numbers in known), default=0.0),
        )

    @property
    def _total(self) -> tuple[float, float, float]:
        expected, reused, last_at = self._theirs
        return self._weighted_expected + expected, self._weighted_reused + reused, max(self._last_at, last_at)


def _is_evidence(numbers: Sequence[float]) -> bool:
    """Return whether a process can have told these, see `EndpointAudit.evidence`."""
    return len(numbers) == 3 and 0.0 <= numbers[1] <= numbers[0] and numbers[2] >= 0.0


class Audit:
    """Audited requests of all endpoints. For one event loop; no locks."""

    def __init__(self) -> None:
        self._endpoints: dict[str, EndpointAudit] = {}
        self._doubted: dict[str, EndpointAudit] = {}
        self._elsewhere: dict[str, EndpointAudit] = {}
        """Endpoints of which other processes have evidence; none of this process if they are not in `_endpoints` too."""
        self.shared = SharedSums(self._evidence, self._add_up, lambda: tuple(self._endpoints))
        """Evidence of each endpoint."""

    def add(self, audited: Audited, *, now: float) -> None:
        """Add an audited request; `now` in monotonic seconds."""
        name = audited.endpoint
        sums = self._endpoints.get(name)
        if sums is None:
            sums = self._endpoints[name] = self._elsewhere.get(name) or EndpointAudit()
        sums.add(audited, now=now)
        self._judge(name, sums)
        self.shared.note(name)

    def of(self, endpoint: str) -> EndpointAudit | None:
        """Return the sums of an endpoint, None before its first audited request."""
        return self._endpoints.get(endpoint)

    def doubts(self, *, now: float) -> dict[str, float]:
        """Return `EndpointAudit.credit` of the doubted endpoints. Cost: O(doubted endpoints)."""
        if not self._doubted:  # usual
            return {}
        return {endpoint: sums.credit(now) for endpoint, sums in self._doubted.items()}

    def forget(self, endpoint: str) -> None:
        """Forget a removed endpoint."""
        self._endpoints.pop(endpoint, None)
        self._elsewhere.pop(endpoint, None)
        self._doubted.pop(endpoint, None)
        self.shared.note(endpoint)

    def _judge(self, endpoint: str, sums: EndpointAudit) -> None:
        if sums.is_doubted:
            self._doubted[endpoint] = sums
        else:
            self._doubted.pop(endpoint, None)

    def _evidence(self, endpoint: str, now: float) -> tuple[float, float, float] | None:
        sums = self._endpoints.get(endpoint)
        return sums.evidence(now) if sums is not None else None

    def _add_up(self, endpoint: str, others: Sequence[Contribution]) -> None:
        sums = self._endpoints.get(endpoint) or self._elsewhere.get(endpoint) or EndpointAudit()
        sums.add_up(others)
        if others:
            self._elsewhere[endpoint] = sums
        else:
            self._elsewhere.pop(endpoint, None)
        self._judge(endpoint, sums)
