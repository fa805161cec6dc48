"""Calls served by `grpc.aio` handlers, so that one service runs on both transports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc import StatusCode

from ..errors import place_of
from .call import Responder

_log = logging.getLogger(__name__)


class AbortedError(Exception):
    """The handler ended the call with its own status."""

    def __init__(self, status: StatusCode, text: str) -> None:
        super().__init__(text)
        self.status = status


class CallContext:
    """The part of `grpc.aio.ServicerContext` that handlers use."""

    async def abort(self, code: StatusCode, details: str = "") -> NoReturn:
        """End the call with a status."""
        raise AbortedError(code, details)


class HandledCall:
    """Runs one handler in its own task. See `Call`.

    Args:
        handler: unary-unary, unary-stream or stream-stream, written for `grpc.aio`.
        responder: the client.
        method: its path, for the log.
    """

    def __init__(self, handler: grpc.RpcMethodHandler[Any, Any], responder: Responder, method: str) -> None:
        self._handler: Any = handler  # the stubs cover only handlers of threads
        self._responder, self._method = responder, method
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def received(self, message: bytes) -> None:
        """See `Call`. The client waits with its next message until the handler asks for it."""
        self._responder.pause_reading()
        self._messages.put_nowait(message)

    def passed(self, report: bytes) -> None:
        """See `Call`: never called, since no passage is asked for."""

    def ended(self) -> None:
        """See `Call`."""
        self._messages.put_nowait(None)

    def gone(self) -> None:
        """See `Call`."""
        self._task.cancel()

    async def _run(self) -> None:
        try:
            await self._serve()
        except AbortedError as error:
            self._responder.finish(error.status, str(error))
        except Exception as error:  # noqa: BLE001 - a fault in one call must cost that call alone
            _log.error("%s failed with %s\n%s", self._method, type(error).__name__, place_of(error))
            self._responder.finish(StatusCode.UNKNOWN, "the service failed on this call")
        else:
            self._responder.finish(StatusCode.OK)

    async def _serve(self) -> None:
        handler, context = self._handler, CallContext()
        if handler.stream_stream is not None:
            await self._send_all(handler.stream_stream(self._requests(), context))
            return
        request = await anext(self._requests(), None)
        if request is None:
            raise AbortedError(StatusCode.INTERNAL, "the call has no message")
        if handler.unary_stream is not None:
            await self._send_all(handler.unary_stream(request, context))
        elif handler.unary_unary is not None:
            self._send(await handler.unary_unary(request, context))
        else:
            raise AbortedError(StatusCode.UNIMPLEMENTED, "calls of this form are not served here")

    async def _requests(self) -> AsyncIterator[Any]:
        while (message := await self._next()) is not None:
            try:
                yield self._handler.request_deserializer(message)
            except DecodeError as error:
                raise AbortedError(
                    StatusCode.INTERNAL, f"a message of {len(message)} bytes is malformed"
                ) from error

    async def _next(self) -> bytes | None:
        if self._messages.empty():
            self._responder.resume_reading()
        return await self._messages.get()

    async def _send_all(self, replies: AsyncIterator[Any]) -> None:
        async for reply in replies:
            self._send(reply)
            await self._responder.drained()

    def _send(self, reply: object) -> None:
        self._responder.send(self._handler.response_serializer(reply))
