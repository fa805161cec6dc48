"""`/v1/score`: the decision a prompt would get, with its reasons, without routing anything."""

from __future__ import annotations

import math

from fastapi import APIRouter

from ...indexer.atlas import keys_of
from ...indexer.match import PrefixMatch
from ...indexer.prefix import Prefix
from ...scorers.decision import Decision, ScoredCandidate
from ..fleet import Fleet
from ..picker import Picker
from ..tokenization.model import Prompt
from ..tokenization.request import direct_request
from .errors import UnavailableError
from .models import FaultOut, PrefixOut, RunOut, ScoredEndpointOut, ScoreOut, ScoreRequest, ScoreResponse
from .standard import prefix_of_keys

CONFIG_GENERATION = 1
"""A process has one configuration for its whole life."""


def score_routes(picker: Picker) -> APIRouter:
    """`/v1/score`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.post("/score", summary="Which endpoint would take this prompt, and why?")
    async def score(request: ScoreRequest) -> ScoreResponse:
        """Every endpoint with its prefix, scores, weights and total."""
        prompt: Prompt | None = None
        prefix: Prefix | None
        if request.keys is not None:
            prefix = prefix_of_keys(keys_of(request.keys), request.block_size, picker.fleet.atlas)
        else:
            given = direct_request(
                model=request.model,
                text=request.prompt,
                messages=request.messages,
                token_ids=request.token_ids,
                cache_salt=request.cache_salt,
            )
            prompt = await picker.pipeline.tokenize(given)
            prefix = picker.prefix(prompt)
        decision = picker.decide(model=request.model, prefix=prefix, prompt=prompt)
        if decision is None:
            raise UnavailableError("no endpoint is configured; add some under endpoints.static")
        return score_response(decision, picker.fleet)

    return router


def score_response(decision: Decision, fleet: Fleet) -> ScoreResponse:
    """A decision as REST gives it."""
    best = max((s.candidate.prefix.n_blocks for s in decision.scored if s.candidate.prefix), default=0)
    return ScoreResponse(
        model=decision.model,
        tokens=decision.n_tokens,
        blocks=best,
        picked=list(decision.picked),
        tie=decision.tie,
        config_generation=CONFIG_GENERATION,
        no_prefix_reason=decision.no_prefix_reason,
        cut_reason=decision.cut_reason,
        faults=[
            FaultOut(name=fault.name, reason=fault.reason, detail=fault.detail) for fault in decision.faults
        ],
        endpoints=[_endpoint(scored, fleet) for scored in decision.scored],
    )


def _endpoint(scored: ScoredCandidate, fleet: Fleet) -> ScoredEndpointOut:
    candidate = scored.candidate
    endpoint = fleet.get(candidate.name)
    return ScoredEndpointOut(
        name=candidate.name,
        address=candidate.address,
        total=scored.total,
        filtered_by=scored.dropped.by if scored.dropped else None,
        filter_reason=scored.dropped.reason if scored.dropped else None,
        trust=endpoint.trust.value if endpoint else "dark",
        prefix=_prefix(candidate.prefix) if candidate.prefix else None,
        scores=[
            ScoreOut(
                name=term.name,
                type=term.type,
                raw=_finite(term.rating.raw),
                score=term.rating.score,
                weight=term.weight,
                product=term.product,
                age_seconds=_finite(term.rating.age_s),
            )
            for term in scored.terms
        ],
    )


def _finite(number: float | None) -> float | None:
    """A plugin's figure as JSON can carry it: what is no finite number is null."""
    return number if isinstance(number, float | int) and math.isfinite(number) else None


def _prefix(match: PrefixMatch) -> PrefixOut:
    return PrefixOut(
        usable_tokens=match.usable_tokens,
        tier_tokens={tier: n_blocks * match.block_size for tier, n_blocks in match.tier_blocks.items()},
        runs=[RunOut(tier=run.tier, blocks=run.n_blocks) for run in match.runs],
    )
