"""`/v1/decisions`: the last decisions with their reasons."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from .answers import Answers, PageQuery
from .decision_models import DecisionOut, DecisionsOut
from .errors import NotFoundError

Limit = Annotated[int, Query(ge=1, le=1000, description="at most so many")]
Picked = Annotated[str | None, Query(description="only decisions that picked this endpoint first")]
Cursor = Annotated[
    int | None, Query(ge=1, lt=2**63, description="`nextCursor` of the page before; absent: the newest")
]


def decision_routes(answers: Answers) -> APIRouter:
    """Return the routes of `/v1/decisions` and `/v1/decisions/{request_id}`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/decisions", summary="The last decisions")
    async def decisions(limit: Limit = 100, endpoint: Picked = None, cursor: Cursor = None) -> DecisionsOut:
        """Return the kept decisions, newest first; `decisions` in the configuration bounds their number."""
        return await answers.decisions(PageQuery(limit, endpoint, cursor))

    @router.get(
        "/decisions/{request_id:path}", summary="Why did this request go there?", response_model=DecisionOut
    )
    async def decision(request_id: str) -> Response:
        """Return the newest decision on a request with this `x-request-id`, with its reasons."""
        found = await answers.decision(request_id)
        if found is None:
            raise NotFoundError(
                f"no decision on request {request_id[:80]!r} is kept; the last ones are, see /v1/decisions"
            )
        return Response(found.body, media_type="application/json")

    return router
