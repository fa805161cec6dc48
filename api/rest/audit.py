"""`/v1/audit`: how well the expected prefix of each endpoint agrees with its engine's own count."""

from __future__ import annotations

from fastapi import APIRouter

from .answers import Answers
from .audit_models import AuditOut


def audit_routes(answers: Answers) -> APIRouter:
    """Return the route of `/v1/audit`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/audit", summary="Do engines reuse what they are thought to hold?")
    async def audit() -> AuditOut:
        """Return expected and reused prompt tokens of every endpoint, and why they differ."""
        return await answers.audit()

    return router
