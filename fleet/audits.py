"""From finished requests to the audit, and what it shows."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from ..indexer.atlas import Atlas
from ..indexer.tiers import TierId
from ..scorers.core.decision import Decision
from .audit import Audited, TierState, judged
from .fleet import Fleet
from .metrics import counter, gauge

FULL = 0.95
"""Part of a tier's bound from which it counts as full: engines keep some blocks for requests under way."""


def audited(decision: Decision, fleet: Fleet, *, prompt_tokens: int, cached_tokens: int) -> Audited | None:
    """Compare what the engine counted for a finished request with what was expected of the picked endpoint.

    Args:
        decision: of the request, which the picked endpoint answered.
        fleet: the endpoints as they are.
        prompt_tokens: of the whole prompt, as the engine counted them.
        cached_tokens: found in the engine's cache, as it counted them.
    Returns:
        None if the endpoint is gone, or nothing was expected of the whole prompt.
    """
    endpoint, prefix = fleet.get(decision.best.name), decision.best.prefix
    if endpoint is None or prefix is None or endpoint.publisher(prefix.rank) is None:
        return None
    return judged(
        decision,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        n_ranks=len(endpoint.publishers),
        tiers=_tier_states(fleet.atlas, endpoint.name, prefix.rank),
    )


def _tier_states(atlas: Atlas, endpoint: str, rank: int) -> dict[str, TierState]:
    """What is known of every configured tier of one rank."""
    ledger = atlas.ledger(endpoint, rank)
    states: dict[str, TierState] = {}
    for number, name in enumerate(atlas.tiers.names):
        bound = ledger.capacity(TierId(number))
        is_full = bound is not None and ledger.residencies(TierId(number)) >= FULL * bound
        states[name] = TierState(ledger.sources.of(TierId(number)), is_full)
    return states


def audit_families(fleet: Fleet, *, now: float) -> Iterator[Metric]:
    """Metrics of the audit. Cost: O(endpoints * tiers)."""
    requests = counter("audited_requests", "Requests by how well they were expected.", "endpoint", "verdict")
    expected = counter("audit_expected_tokens", "Tokens expected to be reused.", "endpoint", "tier")
    reused = counter("audit_reused_tokens", "Tokens reused, along the expected tiers.", "endpoint", "tier")
    errors = counter("audit_error_tokens", "Tokens expected or reused alone.", "endpoint", "direction")
    credit = gauge("audit_credit", "Factor of the endpoint's prefix scores.", "endpoint")
    for endpoint in fleet:
        books = fleet.audit.of(endpoint.name)
        if books is None:
            continue
        for verdict, count in books.verdicts.items():
            requests.add_metric([endpoint.name, verdict.value], count)
        for family, tokens in ((expected, books.expected), (reused, books.reused)):
            for tier, count in tokens.items():
                family.add_metric([endpoint.name, tier], count)
        errors.add_metric([endpoint.name, "over"], books.over_tokens)
        errors.add_metric([endpoint.name, "under"], books.under_tokens)
        credit.add_metric([endpoint.name], books.credit(now))
    yield from (requests, expected, reused, errors, credit)
