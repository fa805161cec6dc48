"""The order of a passage and a pause, for which a call asks the threads of the native transport."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from kvatlas.api.extproc.intake import Intake
from kvatlas.api.http2.call import Call, Responder
from kvatlas.api.http2.context import Limits
from kvatlas.api.http2.native import has_http2
from support.waiting import until

pytestmark = pytest.mark.skipif(not has_http2(), reason="needs libnghttp2")


class Pauses:
    """A call that asks for a passage, and pauses before one can begin; see `Call`."""

    def __init__(self, responder: Responder) -> None:
        self.responder, self.messages = responder, list[bytes]()
        self.is_asked = asyncio.Event()

    def received(self, message: bytes) -> None:
        self.messages.append(message)
        if len(self.messages) == 1:
            self.responder.pass_messages(self._passage)
            self.responder.pause_reading()

    def passed(self, report: bytes) -> None:
        raise AssertionError(report)

    def ended(self) -> None:
        self.responder.finish(grpc.StatusCode.OK)

    def gone(self) -> None:
        pass

    def _passage(self) -> None:
        self.is_asked.set()


class Echoes(Pauses):
    """A call that sends its messages back."""

    def received(self, message: bytes) -> None:
        self.responder.send(message)


async def test_call_that_pauses_stays_paused_though_it_asked_for_a_passage() -> None:
    from kvatlas.api.http2.listener import Http2Listener  # noqa: PLC0415 - cannot be imported if it was not built

    calls: list[Pauses] = []

    def opens(responder: Responder) -> Call:
        calls.append(Pauses(responder))
        return calls[-1]

    methods = {"/test/Pauses": opens, "/test/Echoes": Echoes}
    listener = Http2Listener("server.extProc", methods=methods, limits=Limits(1024), account=Intake())
    port = await listener.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        pausing: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream("/test/Pauses")
        echoing: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream("/test/Echoes")
        client = pausing()
        await client.write(b"first")
        await until(lambda: calls and calls[0].is_asked.is_set(), what="the question for a passage")
        await client.write(b"second")
        # on the same connection, after it
        assert [answer async for answer in echoing(iter([b"here"]))] == [b"here"]
        assert calls[0].messages == [b"first"]

        calls[0].responder.resume_reading()
        await until(lambda: calls[0].messages == [b"first", b"second"], what="the second message")
        client.cancel()
    await listener.stop(0)
