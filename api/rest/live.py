"""`/v1/live`: the fleet and the last decisions, again and again, as server-sent events."""

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
"""How long a viewer may take nothing before its seat is given to others."""


class _Stalled(Exception):  # noqa: N818 - ends a stream, and is seen by nobody
    """A viewer takes nothing."""


class LiveStream(StreamingResponse):
    """The frames of a feed for one viewer, who has a seat already and gives it back at the end.

    Args:
        feed: what is shown.
        metrics: counts viewers that are let go.
        stalled_s: seconds that one frame may take to be taken.
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
        """Send frames; a viewer that takes none for too long is let go."""

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
            log.info("a viewer of %s took nothing for %.0f s and was let go", PATH, self._stalled_s)


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
    """`/v1/live`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/live", summary="Watch", responses=_ANSWERS, response_class=_EventStream)
    async def live() -> LiveStream:
        """The fleet and the newest decisions, at most once a second and less often where the fleet is large.

        Server-sent events without end. A viewer that reads slowly misses frames, and nothing else.
        """
        feed.enter()
        return LiveStream(feed, metrics)

    return router
