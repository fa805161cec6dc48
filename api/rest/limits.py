"""A bound on request bodies: reading one must not hold up the picker that shares the process."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Room for two million token ids in JSON, twenty times the longest prompts of agents."""


class BodyLimit:
    """Refuses a body with 413 as soon as it is longer than the bound, declared or not.

    Args:
        app: what serves the request.
        max_bytes: the bound.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        n_bytes = 0

        async def bounded() -> Message:
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            if n_bytes > self._max_bytes:
                raise HTTPException(413, f"the body is longer than {self._max_bytes} bytes")
            return message

        await self._app(scope, bounded if scope["type"] == "http" else receive, send)
