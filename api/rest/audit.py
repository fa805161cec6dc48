"""`/v1/audit`: how well what is known of each endpoint agrees with its engine."""

from __future__ import annotations

import time

from fastapi import APIRouter
from pydantic import Field

from ...scorers.audit import EndpointAudit
from ..fleet import Fleet
from .decision_models import VERDICTS
from .models import Own


class EndpointAuditOut(Own):
    """All requests of one endpoint whose reused tokens its engine told."""

    name: str
    requests: int
    verdicts: dict[str, int] = Field(description=f"how often each was given: {VERDICTS}")
    expected_tokens: dict[str, int] = Field(description="expected to be reused, by tier")
    reused_tokens: dict[str, int] = Field(description="reused, by tier; `beyond`: not expected")
    over_tokens: int = Field(description="expected and not reused")
    under_tokens: int = Field(description="reused and not expected")
    credit: float = Field(description="factor of its prefix scores, where audit.lowerCredit is on")


class AuditOut(Own):
    """Answer of `/v1/audit`."""

    endpoints: list[EndpointAuditOut] = Field(description="those with at least one such request")


def audit_routes(fleet: Fleet) -> APIRouter:
    """`/v1/audit`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/audit", summary="Do engines reuse what they are thought to hold?")
    async def audit() -> AuditOut:
        """Expected and reused prompt tokens of every endpoint, and why they differ."""
        now = time.monotonic()
        return AuditOut(
            endpoints=[
                _endpoint(endpoint.name, books, now)
                for endpoint in fleet
                if (books := fleet.audit.of(endpoint.name)) is not None
            ]
        )

    return router


def _endpoint(name: str, books: EndpointAudit, now: float) -> EndpointAuditOut:
    return EndpointAuditOut(
        name=name,
        requests=sum(books.verdicts.values()),
        verdicts={verdict.value: count for verdict, count in books.verdicts.items()},
        expected_tokens=books.expected.copy(),
        reused_tokens=books.reused.copy(),
        over_tokens=books.over_tokens,
        under_tokens=books.under_tokens,
        credit=books.credit(now),
    )
