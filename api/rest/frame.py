"""One frame of `/v1/live`."""

from __future__ import annotations

from datetime import UTC, datetime

from ...routing.decision_log import KeptDecision
from ...routing.picker import Picker
from ...routing.plan.live import LiveConfig
from ...scorers.core.decision import Decision, ScoredCandidate, Stage
from .endpoints import endpoint_out
from .explanation import summary
from .feed import Pieces
from .frame_models import LiveDecisionOut, LiveFrame, LiveStageOut, RivalOut, TermOut
from .models import EndpointOut

MAX_ENDPOINTS, MAX_DECISIONS = 500, 20
"""Most endpoints and decisions in a frame; `/v1/endpoints` and `/v1/decisions` have all."""

_ENDPOINTS_PER_STEP = 16
"""Endpoints per step; a step holds the loop for about 1 ms."""


def frame_pieces(picker: Picker, live: LiveConfig, *, ready: bool) -> Pieces:
    """Make the frame of the present state, in steps between which requests are served."""
    fleet, log = picker.fleet, picker.records.decisions
    names = sorted(endpoint.name for endpoint in fleet)
    endpoints: list[EndpointOut] = []
    for number, name in enumerate(names[:MAX_ENDPOINTS], 1):
        endpoint = fleet.get(name)
        if endpoint is not None:  # otherwise it was removed between two steps
            endpoints.append(endpoint_out(endpoint, fleet))
        if not number % _ENDPOINTS_PER_STEP:
            yield
    stats = fleet.atlas.stats()
    frame = LiveFrame(
        time=datetime.now(UTC),
        ready=ready,
        generation=live.generation,
        keys=stats.keys,
        residencies=stats.residencies,
        bytes=stats.size_bytes,
        endpoint_count=len(names),
        endpoints=endpoints,
        decision_count=log.n_seen,
        decisions=[live_decision(kept) for kept in log.page(limit=MAX_DECISIONS)],
    )
    yield
    return frame.model_dump_json(by_alias=True).encode()


def live_decision(kept: KeptDecision) -> LiveDecisionOut:
    """Return a decision's summary with the totals of the picked endpoint and the next best, of each stage."""
    decision, placement = kept.decision, kept.decision.placement
    return LiveDecisionOut(
        **dict(summary(kept)),
        terms=_terms(decision.first) if decision.picked else [],
        rival=_rival(decision),
        dropped=decision.n_dropped,
        no_prefix_reason=decision.no_prefix_reason,
        lacking=placement.lacking if placement is not None else None,
        stage_reasons=[_stage(each) for each in decision.stages],
        verdict=kept.audited.verdict.value if kept.audited else None,
    )


def _stage(stage: Stage) -> LiveStageOut:
    first = stage.decision.first
    return LiveStageOut(
        name=stage.name,
        picked=list(stage.decision.picked),
        total=first.total,
        tie=stage.decision.tie,
        terms=_terms(first),
        rival=_rival(stage.decision),
    )


def _rival(decision: Decision) -> RivalOut | None:
    rival = decision.runner_up
    return RivalOut(name=rival.candidate.name, total=rival.total, terms=_terms(rival)) if rival else None


def _terms(scored: ScoredCandidate) -> list[TermOut]:
    return [TermOut(name=term.name, product=term.product) for term in scored.terms]
