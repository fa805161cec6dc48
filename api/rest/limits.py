"""Limits of REST calls, so that they do not delay the picker in the same process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...configs.listeners import RestConfig
from .auth import PROBES
from .errors import error_response
from .live import PATH as LIVE_PATH
from .metrics import RestMetrics

_UNCOUNTED = PROBES | {LIVE_PATH}
"""Paths outside of `rest.maxPendingRequests`; viewers have a limit of their own, `rest.maxLiveViewers`."""


_CLOSE = {"Connection": "close"}
"""Header of a refusal whose body is not read to its end."""

QUESTIONS = frozenset({"/query", "/query_by_hash", "/v1/score"})
"""Paths whose bodies may have the full length, and are read in a thread."""

SHORT_BODY_BYTES = 256 * 1024
"""Longest body of every other call, which the event loop reads: 15 ms at most. Registrations and weights take a few 100 bytes."""


@dataclass(eq=False, slots=True)
class _Upload:
    """A body that is being received, or that is held while its call is answered."""

    deadline: asyncio.Timeout
    n_bytes: int = 0
    was_evicted: bool = False


class BodyReception:
    """Receives a whole body before its call is served, within limits of length, time and memory.

    If all bodies together need too much memory, the one that has been coming for longest is refused.

    Args:
        app: serves the call.
        config: the limits.
        metrics: counts refusals.
    """

    def __init__(self, app: ASGIApp, *, config: RestConfig, metrics: RestMetrics) -> None:
        self._app, self._config, self._metrics = app, config, metrics
        self._uploads: dict[_Upload, None] = {}
        self._n_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] != "http" or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        upload: _Upload | None = None
        try:
            try:
                async with asyncio.timeout(self._config.request_timeout) as deadline:
                    upload = _Upload(deadline)
                    body = await self._received(upload, scope, receive)
            except TimeoutError:
                refused = self._late(upload)
            except _TooLongError as error:
                self._metrics.refused("too_long")
                refused = error_response(413, str(error), headers=_CLOSE)
            else:
                if body is not None:
                    await self._app(scope, _replayed(body, receive), send)
                return
            await refused(scope, receive, send)
        finally:
            if upload is not None:
                self._uploads.pop(upload, None)
                self._n_bytes -= upload.n_bytes

    async def _received(self, upload: _Upload, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body, None if the client is gone."""
        limit = self._config.max_body_bytes
        setting = "rest.maxBodyBytes of "
        if scope["path"] not in (*QUESTIONS, "/events") and limit > SHORT_BODY_BYTES:
            limit, setting = SHORT_BODY_BYTES, ""
        pieces: list[bytes] = []
        self._uploads[upload] = None
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            piece = message.get("body", b"")
            upload.n_bytes += len(piece)
            self._n_bytes += len(piece)
            if upload.n_bytes > limit:
                raise _TooLongError(f"the body is longer than {setting}{limit} bytes")
            pieces.append(piece)
            if not message.get("more_body", False):
                break
            if self._n_bytes > self._config.max_held_bytes:
                self._evict()
        del self._uploads[upload]
        return b"".join(pieces)

    def _evict(self) -> None:
        for oldest in self._uploads:
            if not oldest.deadline.expired():  # one that is being refused gives its memory back by itself
                oldest.was_evicted = True
                oldest.deadline.reschedule(asyncio.get_running_loop().time())
                return

    def _late(self, upload: _Upload | None) -> JSONResponse:
        if upload is not None and upload.was_evicted:
            self._metrics.refused("too_much")
            message = (
                f"bodies take more than rest.maxHeldBytes of {self._config.max_held_bytes}; come again later"
            )
            return error_response(503, message, headers=_CLOSE | {"Retry-After": "1"})
        self._metrics.refused("timeout")
        message = f"the body did not come within rest.requestTimeout of {self._config.request_timeout:g} s"
        return error_response(408, message, headers=_CLOSE)


class _TooLongError(Exception):
    """A body above the limit of length."""


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns the whole body first."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


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

    def admits(self, _scope: Scope) -> bool:
        """Return whether one more call may be served."""
        return self._n_calls < self._max_calls

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
