"""`POST /events`: batches of LMCache's MP servers, in place of LMCache's own coordinator."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import Field

from ...fleet.lmcache.batches import LmcacheError, Outcome, read_batches
from ...fleet.lmcache.publishers import LmcachePublishers
from .errors import BadRequestError, NotFoundError
from .models import ErrorOut, Standard


class CacheEventsOut(Standard):
    """Answer to batches of cache events."""

    applied: int = Field(description="batches that were applied")
    duplicates: int = Field(description="batches that came before")
    stale: int = Field(description="batches of an incarnation that has ended")


def lmcache_routes(publishers: LmcachePublishers | None) -> APIRouter:
    """Return the route of `/events`.

    Args:
        publishers: takes the batches; None if `lmcache.acceptEvents` is off.
    """
    router = APIRouter(tags=["lmcache"])

    @router.post(
        "/events",
        summary="Take cache events of LMCache servers",
        responses={
            400: {"model": ErrorOut, "description": "the body is no list of batches"},
            404: {"model": ErrorOut, "description": "`lmcache.acceptEvents` is off"},
        },
    )
    async def events(request: Request) -> CacheEventsOut:
        """Apply the batches in order; duplicates and stale ones are counted and no errors."""
        if publishers is None:
            raise NotFoundError("no batches of LMCache are taken: set lmcache.acceptEvents")
        try:
            batches = read_batches(await request.body())
        except LmcacheError as error:
            raise BadRequestError(str(error)) from None
        found = await publishers.take(batches)
        return CacheEventsOut(
            applied=found[Outcome.APPLIED], duplicates=found[Outcome.DUPLICATE], stale=found[Outcome.STALE]
        )

    return router
