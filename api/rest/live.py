"""`/v1/live`: the fleet and the last decisions as server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from .feed import LiveFeed
from .frame_models import LiveFrame
from .metrics import RestMetrics

log = logging.getLogger(__name__)

PATH = "/v1/live"

STALLED_S = 30.0
"""Longest time without progress before a viewer is dropped."""


class _Stalled(Exception):  # noqa: N818 - ends a stream, and never leaves this module
    """A viewer does not read."""


class LiveStream(StreamingResponse):
    """The frames of a feed for one viewer, which entered the feed already and leaves it at the end.

    Args:
        feed: source of the frames.
        metrics: counts viewers that are dropped.
        stalled_s: longest time to send one frame, in seconds.
    """

    media_type = "text/event-stream"

    def __init__(self, feed: LiveFeed, metrics: RestMetrics, *, stalled_s: float = STALLED_S) -> None:
        super().__init__(_events(feed), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._feed, self._metrics, self._stalled_s = feed, metrics, stalled_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the viewer until either side ends it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._feed.leave()

    async def stream_response(self, send: Send) -> None:
        """Send frames; drop a viewer that does not read for too long."""

        async def patiently(message: Message) -> None:
            try:
                async with asyncio.timeout(self._stalled_s):
                    await send(message)
            except TimeoutError:
                raise _Stalled from None

        try:
            await super().stream_response(patiently)
        except _Stalled:
            self._metrics.live_viewers_dropped.inc()
            log.info("a viewer of %s read nothing for %.0f s and was dropped", PATH, self._stalled_s)


async def _events(feed: LiveFeed) -> AsyncGenerator[bytes]:
    seen = 0
    while (frame := await feed.after(seen)) is not None:
        seen = frame.number
        yield b"id: %d\ndata: %b\n\n" % (seen, frame.data)


_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"model": LiveFrame, "description": "each event's `data` is one frame, the whole state anew"},
    503: {
        "description": "as many viewers as rest.maxLiveViewers are there",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorOut"}}},
    },
}


class _EventStream(StreamingResponse):
    media_type = "text/event-stream"


def live_routes(feed: LiveFeed, metrics: RestMetrics) -> APIRouter:
    """Return the route of `/v1/live`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/live", summary="Watch", responses=_ANSWERS, response_class=_EventStream)
    async def live() -> LiveStream:
        """Stream the fleet and the newest decisions, at most once per second, less often for a large fleet.

        Server-sent events without end. A viewer that reads slowly only misses frames.
        """
        feed.enter()
        return LiveStream(feed, metrics)

    return router
