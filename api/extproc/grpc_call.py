"""Calls over `grpc.aio`, with the same interface as calls over http2."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping

import grpc
import grpc.aio
from grpc import StatusCode

from ..errors import place_of
from ..http2.call import Call, MakePassage, OpenCall
from ..http2.context import Account

_log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[bytes, bytes]


def call_handlers(service: str, methods: Mapping[str, OpenCall], account: Account) -> grpc.GenericRpcHandler:
    """Return a service for a `grpc.aio` server.

    Args:
        service: its name.
        methods: name of a method -> what opens a call to it.
        account: counts replies that wait; messages on their way in wait inside of the library, which does not tell.
    """
    # Without (de)serializers messages are bytes, as over http2.
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.stream_stream_rpc_method_handler(_Method(open_call, account).serve)
        for name, open_call in methods.items()
    }
    return grpc.method_handlers_generic_handler(service, handlers)


class _Method:
    def __init__(self, open_call: OpenCall, account: Account) -> None:
        self._open_call, self._account = open_call, account

    async def serve(self, messages: AsyncIterator[bytes], context: Context) -> None:
        """Serve one call: a task reads messages while this one writes replies."""
        responder = GrpcResponder(self._account)
        call = self._open_call(responder)
        reading = asyncio.get_running_loop().create_task(_read(call, messages, responder))
        try:
            status, text = await responder.write_all(context)
        finally:
            # The client is gone, if the call has not ended: `grpc.aio` cancels this task then.
            reading.cancel()
            call.gone()
            responder.close()
        if status is not StatusCode.OK:
            await context.abort(status, text)


class GrpcResponder:
    """Replies that wait for their turn. See `http2.call.Responder`.

    Args:
        account: counts the replies that wait.

    Attributes:
        readable: set unless reading is paused.
    """

    def __init__(self, account: Account) -> None:
        self._outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._end: tuple[StatusCode, str] | None = None
        self._account = account
        self.readable = asyncio.Event()
        self.readable.set()

    def send(self, message: bytes) -> None:
        """See `Responder`."""
        if self._end is None:
            self._account.carry(len(message))
            self._outbox.put_nowait(message)

    def finish(self, status: StatusCode, text: str = "") -> None:
        """See `Responder`."""
        if self._end is None:
            self._end = (status, text)
            self._outbox.put_nowait(None)

    def pass_messages(self, make: MakePassage) -> None:
        """See `Responder`: here each message comes to the service."""

    async def drained(self) -> None:
        """See `Responder`."""
        await self._outbox.join()

    async def write_all(self, context: Context) -> tuple[StatusCode, str]:
        """Write replies until the end of the call, and return how it ended."""
        while (message := await self._outbox.get()) is not None:
            try:
                await context.write(message)
            finally:
                self._account.carry(-len(message))
            self._outbox.task_done()
        return self._end or (StatusCode.OK, "")

    def close(self) -> None:
        """Forget replies that were not written."""
        self._end = self._end or (StatusCode.CANCELLED, "")
        while not self._outbox.empty():
            if (message := self._outbox.get_nowait()) is not None:
                self._account.carry(-len(message))

    def pause_reading(self) -> None:
        """See `Responder`."""
        self.readable.clear()

    def resume_reading(self) -> None:
        """See `Responder`."""
        self.readable.set()


async def _read(call: Call, messages: AsyncIterator[bytes], responder: GrpcResponder) -> None:
    try:
        async for message in messages:
            call.received(message)
            del message  # a request body, which must not stay in memory while the response is waited for
            await responder.drained()  # a gateway that takes no replies is not read either
            await responder.readable.wait()
    except Exception as error:  # noqa: BLE001 - a fault in one call must cost that call alone
        _log.error("a call failed with %s\n%s", type(error).__name__, place_of(error))
        responder.finish(StatusCode.INTERNAL, "the service failed on this call")
    else:
        call.ended()
