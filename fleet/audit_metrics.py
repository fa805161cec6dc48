"""Metrics of the audit, made from current state."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from .families import counter, gauge
from .fleet import Fleet


def audit_families(fleet: Fleet, *, now: float) -> Iterator[Metric]:
    """Yield what the audit has found per endpoint. Cost: O(endpoints * tiers)."""
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
