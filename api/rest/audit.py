"""`/v1/audit`: how well what is known of each endpoint agrees with its engine."""

from __future__ import annotations

from fastapi import APIRouter

from .answers import Answers
from .audit_models import AuditOut


def audit_routes(answers: Answers) -> APIRouter:
    """`/v1/audit`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/audit", summary="Do engines reuse what they are thought to hold?")
    async def audit() -> AuditOut:
        """Expected and reused prompt tokens of every endpoint, and why they differ."""
        return await answers.audit()

    return router
