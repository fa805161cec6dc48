"""Answers made of decisions."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from ...fleet.audit import Audited
from ...indexer.match import PrefixMatch
from ...routing.decision_log import KeptDecision
from ...scorers.core.counterfactual import WeightChange, smallest_change
from ...scorers.core.decision import Decision, ScoredCandidate, ScoreTerm
from ...scorers.core.model import Load
from .decision_models import (
    AuditedOut,
    CounterfactualOut,
    DecisionOut,
    DecisionSummaryOut,
    FaultOut,
    InFlightOut,
    PrefixOut,
    RunOut,
    ScoredEndpointOut,
    ScoreOut,
    ScoreResponse,
    SeenLoadOut,
)


def score_response(decision: Decision) -> ScoreResponse:
    """Return a decision with all its reasons."""
    change = smallest_change(decision)
    return ScoreResponse(
        model=decision.model,
        tokens=decision.n_tokens,
        blocks=decision.prefixes.max_blocks if decision.prefixes is not None else 0,
        picked=list(decision.picked),
        tie=decision.tie,
        tied=list(decision.tied),
        picker=decision.picker,
        config_generation=decision.config_generation,
        no_prefix_reason=decision.no_prefix_reason,
        cut_reason=decision.cut_reason,
        counterfactual=_counterfactual(change) if change else None,
        faults=[
            FaultOut(name=fault.name, reason=fault.reason, detail=fault.detail) for fault in decision.faults
        ],
        endpoints=[_endpoint(decision, scored) for scored in decision.scored],
    )


def decision_out(kept: KeptDecision) -> DecisionOut:
    """Return the decision on a request; otherwise as `score_response`."""
    reasons, origin = dict(score_response(kept.decision)), kept.decision.origin
    return DecisionOut(
        **reasons,
        request_id=kept.request_id,
        time=_time(kept),
        traceparent=origin.traceparent if origin else "",
        objective=origin.objective if origin else "",
        priority=origin.priority if origin else 0,
        fairness_id=origin.fairness_id if origin else "",
        audited=_audited(kept.audited) if kept.audited else None,
    )


def summary(kept: KeptDecision) -> DecisionSummaryOut:
    """Return the summary of a decision."""
    decision = kept.decision
    first = decision.first if decision.picked else None
    prefix = first.candidate.prefix if first else None
    return DecisionSummaryOut(
        request_id=kept.request_id,
        time=_time(kept),
        model=decision.model,
        tokens=decision.n_tokens,
        usable_tokens=prefix.usable_tokens if prefix else None,
        picked=list(decision.picked),
        total=first.total if first else None,
        tie=decision.tie,
        config_generation=decision.config_generation,
    )


def _endpoint(decision: Decision, scored: ScoredCandidate) -> ScoredEndpointOut:
    candidate = scored.candidate
    return ScoredEndpointOut(
        name=candidate.name,
        address=candidate.address,
        total=scored.total,
        filtered_by=scored.dropped.by if scored.dropped else None,
        filter_reason=scored.dropped.reason if scored.dropped else None,
        filters_passed=list(decision.filters_passed(scored.dropped)),
        trust=candidate.trust.value,
        credit=candidate.credit,
        load=_load(candidate.load, decision.at) if candidate.load else None,
        in_flight=InFlightOut(requests=candidate.in_flight.requests, tokens=candidate.in_flight.tokens),
        prefix=_prefix(candidate.prefix) if candidate.prefix else None,
        scores=[_term(term) for term in scored.terms],
    )


def _load(load: Load, now: float) -> SeenLoadOut:
    return SeenLoadOut(
        waiting=load.waiting,
        running=load.running,
        kv_utilization=load.kv_utilization,
        age_seconds=load.age_s(now),
    )


def _prefix(match: PrefixMatch) -> PrefixOut:
    return PrefixOut(
        rank=match.rank,
        usable_tokens=match.usable_tokens,
        predicted_tokens=match.predicted_blocks * match.block_size,
        tier_tokens={tier: n_blocks * match.block_size for tier, n_blocks in match.tier_blocks.items()},
        runs=[RunOut(tier=run.tier, blocks=run.n_blocks) for run in match.runs],
    )


def _term(term: ScoreTerm) -> ScoreOut:
    return ScoreOut(
        name=term.name,
        type=term.type,
        raw=_finite(term.rating.raw),
        score=term.rating.score,
        weight=term.weight,
        product=term.product,
        age_seconds=_finite(term.rating.age_s),
    )


def _audited(audited: Audited) -> AuditedOut:
    return AuditedOut(
        verdict=audited.verdict.value,
        tier=audited.tier,
        expected_tokens=dict(audited.expected),
        reused_tokens=dict(audited.reused),
        error_tokens=audited.error_tokens,
    )


def _counterfactual(change: WeightChange) -> CounterfactualOut:
    return CounterfactualOut(
        scorer=change.scorer, weight=change.weight, new_weight=change.new_weight, picks=list(change.picks)
    )


def _finite(number: float | None) -> float | None:
    """Return a plugin's figure for JSON: null if it is not finite."""
    return number if isinstance(number, float | int) and math.isfinite(number) else None


def _time(kept: KeptDecision) -> datetime:
    return datetime.fromtimestamp(kept.at, UTC)
