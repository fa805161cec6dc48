"""The audit of one finished request, with the fleet's state at that moment."""

from __future__ import annotations

from ..indexer.ledger import RankLedger
from ..indexer.predicted import Prediction
from ..indexer.tiers import TierId
from ..scorers.core.decision import Decision
from .audit import Audited, TierState, judge
from .endpoint import Endpoint
from .fleet import Fleet

FULL = 0.95
"""Part of its bound from which a tier counts as full: engines reserve some blocks for running requests."""


def audit_request(
    decision: Decision,
    fleet: Fleet,
    *,
    prompt_tokens: int,
    cached_tokens: int,
    prediction: Prediction | None = None,
) -> Audited | None:
    """Compare the engine's counts for a finished request with the expectation for the picked endpoint.

    Args:
        decision: decision for the request; the picked endpoint must have responded.
        fleet: the endpoints.
        prompt_tokens: tokens of the whole prompt, counted by the engine.
        cached_tokens: tokens found in the engine's cache, counted by the engine.
        prediction: what the picked endpoint was predicted to hold, None if that was nothing new.
    Returns:
        None if the endpoint is gone, or if there was no expectation for the whole prompt.
    """
    endpoint, prefix = fleet.get(decision.best.name), decision.best.prefix
    if endpoint is None or prefix is None or (rank := endpoint.rank(prefix.rank)) is None:
        return None
    return judge(
        decision,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        ran_on=_ran_on(endpoint, prediction),
        tiers=_tier_states(fleet.atlas.tiers.names, rank.ledger),
    )


def _ran_on(endpoint: Endpoint, prediction: Prediction | None) -> int | None:
    """Return the rank that ran a request, None if it is unknown: with several, the only one that has the prompt's last block."""
    if len(endpoint.ranks) == 1:
        return endpoint.ranks[0].number
    if prediction is None or prediction.endpoint != endpoint.name:
        return None
    last, size = prediction.last_key, prediction.block_size
    holding = [
        each.number for each in endpoint.ranks if each.ledger.block_size == size and each.ledger.has(last)
    ]
    return holding[0] if len(holding) == 1 else None


def _tier_states(tiers: tuple[str, ...], ledger: RankLedger) -> dict[str, TierState]:
    states: dict[str, TierState] = {}
    for number, name in enumerate(tiers):
        bound = ledger.capacity(TierId(number))
        is_full = bound is not None and ledger.residencies(TierId(number)) >= FULL * bound
        states[name] = TierState(ledger.sources.of(TierId(number)), is_full)
    return states
