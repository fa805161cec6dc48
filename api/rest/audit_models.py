"""Answers of `/v1/audit`."""

from __future__ import annotations

from pydantic import Field

from .decision_models import VERDICTS
from .models import MISSING_REPLICAS, Own


class EndpointAuditOut(Own):
    """All requests of one endpoint whose reused tokens its engine reported."""

    name: str
    requests: int
    verdicts: dict[str, int] = Field(description=f"how often each was given: {VERDICTS}")
    expected_tokens: dict[str, int] = Field(description="expected to be reused, by tier")
    reused_tokens: dict[str, int] = Field(description="reused, by tier; `beyond`: not expected")
    over_tokens: int = Field(description="expected and not reused")
    under_tokens: int = Field(description="reused and not expected")
    credit: float = Field(
        description="factor of its prefix scores, where audit.lowerCredit is on; the lowest of all replicas"
    )


class AuditOut(Own):
    """Answer of `/v1/audit`."""

    endpoints: list[EndpointAuditOut] = Field(description="those with at least one such request")
    missing_replicas: list[str] = Field(default=[], description=MISSING_REPLICAS)
