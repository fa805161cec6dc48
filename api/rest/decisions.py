"""`/v1/decisions`: the last decisions and why each came about."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ..decisions import DecisionLog
from .decision_models import DecisionOut, DecisionsOut
from .errors import NotFoundError
from .explanation import decision_out, summary

Limit = Annotated[int, Query(ge=1, le=1000, description="at most so many")]
Picked = Annotated[str | None, Query(description="only decisions that picked this endpoint first")]
Cursor = Annotated[int | None, Query(ge=1, description="`nextCursor` of the page before; absent: the newest")]


def decision_routes(log: DecisionLog) -> APIRouter:
    """`/v1/decisions` and `/v1/decisions/{request_id}`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/decisions", summary="The last decisions")
    async def decisions(limit: Limit = 100, endpoint: Picked = None, cursor: Cursor = None) -> DecisionsOut:
        """Newest first; what `decisions` of the configuration has room for."""
        found = log.page(limit=limit + 1, endpoint=endpoint, before=cursor)
        page, has_more = found[:limit], len(found) > limit
        return DecisionsOut(
            decisions=[summary(kept) for kept in page], next_cursor=page[-1].number if has_more else None
        )

    @router.get("/decisions/{request_id:path}", summary="Why did this request go there?")
    async def decision(request_id: str) -> DecisionOut:
        """The newest decision on a request with this `x-request-id`, with all its reasons."""
        kept = log.get(request_id)
        if kept is None:
            raise NotFoundError(
                f"no decision on request {request_id[:80]!r} is kept; the last {len(log)} are, see /v1/decisions"
            )
        return decision_out(kept)

    return router
