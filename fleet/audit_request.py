"""The audit of one finished request, with the fleet's state at that moment."""

from __future__ import annotations

from ..indexer.ledger import RankLedger
from ..indexer.tiers import TierId
from ..scorers.core.decision import Decision
from .audit import Audited, TierState, judge
from .fleet import Fleet

FULL = 0.95
"""Part of its bound from which a tier counts as full: engines reserve some blocks for running requests."""


def audit_request(
    decision: Decision, fleet: Fleet, *, prompt_tokens: int, cached_tokens: int
) -> Audited | None:
    """Compare the engine's counts for a finished request with the expectation for the picked endpoint.

    Args:
        decision: decision for the request; the picked endpoint must have responded.
        fleet: the endpoints.
        prompt_tokens: tokens of the whole prompt, counted by the engine.
        cached_tokens: tokens found in the engine's cache, counted by the engine.
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
        n_ranks=len(endpoint.ranks),
        tiers=_tier_states(fleet.atlas.tiers.names, rank.ledger),
    )


def _tier_states(tiers: tuple[str, ...], ledger: RankLedger) -> dict[str, TierState]:
    states: dict[str, TierState] = {}
    for number, name in enumerate(tiers):
        bound = ledger.capacity(TierId(number))
        is_full = bound is not None and ledger.residencies(TierId(number)) >= FULL * bound
        states[name] = TierState(ledger.sources.of(TierId(number)), is_full)
    return states
