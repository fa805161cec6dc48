"""Metrics of the audit, made from current state."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from .families import counter, gauge
from .fleet import Fleet


def audit_families(fleet: Fleet, *, now: float) -> Iterator[Metric]:
    """Yield what the audit has found per endpoint. Cost: O(endpoints * tiers)."""
    requests = counter("audited_requests", "Audited requests by verdict.", "endpoint", "verdict")
    expected = counter("audit_expected_tokens", "Tokens expected to be reused.", "endpoint", "tier")
    reused = counter("audit_reused_tokens", "Tokens reused, along the expected tiers.", "endpoint", "tier")
    errors = counter(
        "audit_error_tokens",
        "Tokens expected but not reused (over), or reused but not expected (under).",
        "endpoint",
        "direction",
    )
    credit = gauge("audit_credit", "Factor of the endpoint's prefix scores.", "endpoint")
    for endpoint in fleet:
        audit = fleet.audit.of(endpoint.name)
        if audit is None:
            continue
        for verdict, count in audit.verdicts.items():
            requests.add_metric([endpoint.name, verdict.value], count)
        for family, tokens in ((expected, audit.expected), (reused, audit.reused)):
            for tier, count in tokens.items():
                family.add_metric([endpoint.name, tier], count)
        errors.add_metric([endpoint.name, "over"], audit.over_tokens)
        errors.add_metric([endpoint.name, "under"], audit.under_tokens)
        credit.add_metric([endpoint.name], audit.credit(now))
    yield from (requests, expected, reused, errors, credit)
