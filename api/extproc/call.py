"""An ext-proc stream over `http2`: answered where its messages are read, without a task of its own."""

from __future__ import annotations

import asyncio
from collections import deque

from grpc import StatusCode

from ...routing.router import RoutingResult
from ...tokenization.eventual import Later
from ..errors import ExtProcError
from ..http2.call import Responder
from .conversation import Circle, Conversation
from .stream import Step

MAX_WAITING = 1024
"""Messages that may come while a request is routed; a gateway waits for the answer after a few."""


class ExtProcCall:
    """See `http2.call.Call`.

    Args:
        circle: what all streams share.
        responder: the gateway.
    """

    def __init__(self, circle: Circle, responder: Responder) -> None:
        self._conversation = Conversation(circle)
        self._responder = responder
        self._routing: asyncio.Task[None] | None = None
        self._waiting: deque[bytes | None] = deque()
        self._is_over = False

    def received(self, message: bytes) -> None:
        """See `Call`."""
        if self._is_over:
            return
        if self._routing is None:
            self._take(message)
        elif len(self._waiting) < MAX_WAITING:
            self._waiting.append(message)
        else:
            self._end(StatusCode.RESOURCE_EXHAUSTED, f"more than {MAX_WAITING} messages before an answer")

    def ended(self) -> None:
        """See `Call`."""
        if self._routing is None:
            self._end(StatusCode.OK)
        else:
            self._waiting.append(None)

    def gone(self) -> None:
        """See `Call`."""
        self._end(StatusCode.CANCELLED)

    def _take(self, message: bytes) -> None:
        try:
            step = self._conversation.receive(message)
        except ExtProcError as error:
            self._end(error.grpc_status, str(error))
            return
        if step.route is not None:
            result = self._conversation.route(step.route)
            if isinstance(result, Later):
                self._routing = asyncio.get_running_loop().create_task(self._wait(result))
                return
            step = self._conversation.routed(result.value)
        self._act(step)

    async def _wait(self, coming: Later[RoutingResult]) -> None:
        try:
            step = self._conversation.routed(await coming)
        except asyncio.CancelledError:
            self._conversation.close()
            raise
        self._routing = None
        if self._is_over:  # the answer was there before the end of the wait for it
            self._conversation.close()
            return
        self._act(step)
        waiting, self._waiting = self._waiting, deque()
        for message in waiting:
            if message is None:
                self.ended()
            else:
                self.received(message)

    def _act(self, step: Step) -> None:
        for reply in step.replies:
            self._responder.send(reply)
        if step.end:
            self._end(StatusCode.OK)

    def _end(self, status: StatusCode, text: str = "") -> None:
        if self._is_over:
            return
        self._is_over = True
        self._waiting.clear()
        self._responder.finish(status, text)
        if self._routing is None:
            self._conversation.close()
        else:  # closes it; cancelled after its first step, without which what it awaits would never be awaited
            asyncio.get_running_loop().call_soon(self._routing.cancel)
