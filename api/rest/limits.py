"""Limits of REST calls, so that they do not delay the picker in the same process."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .auth import PROBES
from .errors import error_response
from .live import PATH as LIVE_PATH
from .metrics import RestMetrics

_UNCOUNTED = PROBES | {LIVE_PATH}
"""Paths outside of `rest.maxPendingRequests`; viewers have a limit of their own, `rest.maxLiveViewers`."""


class BodyLimit:
    """Refuses a body with 413 as soon as it exceeds the limit, declared or not.

    Args:
        app: serves the request.
        max_bytes: the limit.
        metrics: counts refusals.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, metrics: RestMetrics) -> None:
        self._app, self._max_bytes, self._metrics = app, max_bytes, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        n_bytes = 0

        async def bounded() -> Message:
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            if n_bytes > self._max_bytes:
                self._metrics.refused("too_long")
                raise HTTPException(
                    413, f"the body is longer than rest.maxBodyBytes of {self._max_bytes} bytes"
                )
            return message

        await self._app(scope, bounded if scope["type"] == "http" else receive, send)


class CallLimit:
    """Refuses a call with 503 while too many are being served; probes and viewers are exempt.

    Args:
        app: serves the call.
        max_calls: the limit.
        metrics: counts refusals.
    """

    def __init__(self, app: ASGIApp, *, max_calls: int, metrics: RestMetrics) -> None:
        self._app, self._max_calls, self._metrics = app, max_calls, metrics
        self._n_calls = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] != "http" or scope["path"] in _UNCOUNTED:
            await self._app(scope, receive, send)
            return
        if self._n_calls >= self._max_calls:
            self._metrics.refused("too_many")
            message = f"{self._n_calls} calls are being answered, rest.maxPendingRequests; come again later"
            await error_response(503, message, headers={"Retry-After": "1"})(scope, receive, send)
            return
        self._n_calls += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._n_calls -= 1
