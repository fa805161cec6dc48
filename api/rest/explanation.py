"""Answers made of decisions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from ...fleet.audit import Audited
from ...routing.decision_log import KeptDecision
from ...scorers.core.counterfactual import WeightChange, smallest_change
from ...scorers.core.decision import Decision, Placement, Stage
from .decision_models import AuditedOut, CounterfactualOut, DecisionSummaryOut
from .explained_endpoints import explained_endpoints

_encode = msgspec.json.Encoder().encode


class Explained(NamedTuple):
    """The decision on a request with its reasons.

    Attributes:
        at: wall-clock seconds.
        body: `DecisionOut` in JSON.
    """

    at: float
    body: bytes


def score_body(decision: Decision) -> bytes:
    """Return a decision with all its reasons: `ScoreResponse` in JSON."""
    return _encode(_reasons(decision))


def explained(kept: KeptDecision) -> Explained:
    """Return the decision on a request; otherwise as `score_body`."""
    origin = kept.decision.origin
    more = {
        "requestId": kept.request_id,
        "time": _time(kept),
        "traceparent": origin.traceparent if origin else "",
        "objective": origin.objective if origin else "",
        "priority": origin.priority if origin else 0,
        "fairnessId": origin.fairness_id if origin else "",
        "slo": {"ttftMs": origin.slo.ttft_ms, "tpotMs": origin.slo.tpot_ms}
        if origin and origin.slo
        else None,
        "audited": _audited(kept.audited).model_dump(by_alias=True) if kept.audited else None,
    }
    return Explained(kept.at, _encode(_reasons(kept.decision) | more))


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
        tokens_estimated=decision.is_estimated,
        usable_tokens=prefix.usable_tokens if prefix else None,
        picked=list(decision.picked),
        placement=decision.placement.kind if decision.placement is not None else None,
        stages={each.name: list(each.decision.picked) for each in decision.stages},
        total=first.total if first else None,
        tie=decision.tie,
        config_generation=decision.config_generation,
    )


def _reasons(decision: Decision) -> dict[str, object]:
    """Return the members of `ScoreResponse`; written by hand, as thousands of endpoints are too many for its checks."""
    change, prefixes = smallest_change(decision), decision.prefixes
    return {
        "model": decision.model,
        "tokens": decision.n_tokens,
        "tokensEstimated": decision.is_estimated,
        "blocks": prefixes.max_blocks if prefixes is not None else 0,
        "picked": decision.picked,
        "tie": decision.tie,
        "tied": decision.tied,
        "picker": decision.picker,
        "configGeneration": decision.config_generation,
        "noPrefixReason": decision.no_prefix_reason,
        "cutReason": decision.cut_reason,
        "counterfactual": _counterfactual(change).model_dump(by_alias=True) if change else None,
        "faults": _faults(decision),
        "placement": _placement(decision.placement) if decision.placement is not None else None,
        "endpoints": explained_endpoints(decision),
    }


def _faults(decision: Decision) -> list[dict[str, str]]:
    return [{"name": fault.name, "reason": fault.reason, "detail": fault.detail} for fault in decision.faults]


def _placement(placement: Placement) -> dict[str, object]:
    """Return the members of `PlacementOut`."""
    return {
        "kind": placement.kind,
        "profile": placement.profile,
        "lacking": placement.lacking,
        "headers": placement.headers,
        "stages": [_stage(each) for each in placement.stages],
        "options": [
            {
                "prefill": each.prefill,
                "decode": each.decode,
                "totalMs": each.total_ms,
                "termsMs": each.terms_ms,
            }
            for each in placement.options
        ],
    }


def _stage(stage: Stage) -> dict[str, object]:
    """Return the members of `StageOut`."""
    decision, prefixes = stage.decision, stage.decision.prefixes
    return {
        "name": stage.name,
        "profile": stage.profile,
        "picked": decision.picked,
        "blocks": prefixes.max_blocks if prefixes is not None else 0,
        "tie": decision.tie,
        "picker": decision.picker,
        "faults": _faults(decision),
        "endpoints": explained_endpoints(decision),
    }


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


def _time(kept: KeptDecision) -> datetime:
    return datetime.fromtimestamp(kept.at, UTC)
