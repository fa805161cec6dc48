"""gRPC over the native transport, asked by the gRPC library and by others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from prometheus_client import CollectorRegistry

from kvatlas.api.errors import ListenError
from kvatlas.api.extproc.intake import Intake
from kvatlas.api.http2.call import Responder
from kvatlas.api.http2.context import Limits, Times
from kvatlas.api.http2.listener import Http2Listener
from kvatlas.api.http2.metrics import TransportMetrics
from support.waiting import until

SERVICE = "test.Service"
MIB = 1 << 20


class Service:
    """Methods of every form, as they are written for `grpc.aio`."""

    def __init__(self) -> None:
        self.n_begun = self.n_cancelled = 0
        self.may_answer = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler:
        codec = (StringValue.FromString, StringValue.SerializeToString)
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Upper": grpc.unary_unary_rpc_method_handler(self.upper, *codec),
                "Letters": grpc.unary_stream_rpc_method_handler(self.letters, *codec),
                "Echo": grpc.stream_stream_rpc_method_handler(self.echo, *codec),
                "Wait": grpc.unary_unary_rpc_method_handler(self.wait, *codec),
                "Fail": grpc.unary_unary_rpc_method_handler(self.fail, *codec),
                "Sum": grpc.stream_unary_rpc_method_handler(self.fail, *codec),
            },
        )

    async def upper(
        self, request: StringValue, context: grpc.aio.ServicerContext[StringValue, StringValue]
    ) -> StringValue:
        if not request.value:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "nothing to say: 100 %")
        return StringValue(value=request.value.upper())

    async def letters(self, request: StringValue, _: object) -> AsyncIterator[StringValue]:
        for letter in request.value:
            yield StringValue(value=letter)

    async def echo(self, requests: AsyncIterator[StringValue], _: object) -> AsyncIterator[StringValue]:
        async for request in requests:
            yield request

    async def wait(self, request: StringValue, _: object) -> StringValue:
        self.n_begun += 1
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise
        return request

    async def fail(self, request: StringValue, _: object) -> StringValue:
        raise RuntimeError(f"prompt: {request.value}")


class Mirror:
    """A call that answers where its messages are read; see `Call`."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    def received(self, message: bytes) -> None:
        if message.startswith(b"fail"):
            raise RuntimeError(message)
        self._responder.send(message)

    def passed(self, report: bytes) -> None:
        raise AssertionError(report)

    def ended(self) -> None:
        self._responder.finish(grpc.StatusCode.OK)

    def gone(self) -> None:
        pass


@asynccontextmanager
async def listening(
    service: Service | None = None,
    *,
    max_message_bytes: int = 16 * MIB,
    max_connections: int = 100,
    max_streams: int = 1000,
    account: Intake | None = None,
    registry: CollectorRegistry | None = None,
    times: Times = Times(),  # noqa: B008 - it cannot change
    n_threads: int = 2,
) -> AsyncGenerator[tuple[Http2Listener, int]]:
    listener = Http2Listener(
        "server.extProc",
        methods={"/test.Direct/Mirror": Mirror},
        handlers=[(service or Service()).handler()],
        limits=Limits(
            max_message_bytes,
            max_connections=max_connections,
            max_streams=max_streams,
            times=times,
            n_threads=n_threads,
        ),
        account=account or Intake(),
        metrics=TransportMetrics(registry or CollectorRegistry()),
    )
    port = await listener.start("127.0.0.1", 0)
    try:
        yield listener, port
    finally:
        await listener.stop(0)


@asynccontextmanager
async def channel_to(port: int) -> AsyncGenerator[grpc.aio.Channel]:
    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        yield channel


def unary(
    channel: grpc.aio.Channel, name: str, text: str, *, timeout: float | None = None
) -> grpc.aio.UnaryUnaryCall[StringValue, StringValue]:
    method: grpc.aio.UnaryUnaryMultiCallable[StringValue, StringValue] = channel.unary_unary(
        f"/{SERVICE}/{name}", StringValue.SerializeToString, StringValue.FromString
    )
    return method(StringValue(value=text), timeout=timeout)


async def mirrored(channel: grpc.aio.Channel, messages: Sequence[bytes]) -> list[bytes]:
    method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream("/test.Direct/Mirror")
    return [answer async for answer in method(iter(messages))]


async def test_handlers_of_every_form_are_served() -> None:
    async with listening() as (_, port), channel_to(port) as channel:
        letters: grpc.aio.UnaryStreamMultiCallable[StringValue, StringValue] = channel.unary_stream(
            f"/{SERVICE}/Letters", StringValue.SerializeToString, StringValue.FromString
        )
        echo: grpc.aio.StreamStreamMultiCallable[StringValue, StringValue] = channel.stream_stream(
            f"/{SERVICE}/Echo", StringValue.SerializeToString, StringValue.FromString
        )

        assert (await unary(channel, "Upper", "abc")).value == "ABC"
        assert [each.value async for each in letters(StringValue(value="xyz"))] == ["x", "y", "z"]
        texts = [StringValue(value=text) for text in ("a", "", "c")]
        assert [each async for each in echo(iter(texts))] == texts
        assert await mirrored(channel, [b"1", b"", b"3"]) == [b"1", b"", b"3"]


@pytest.mark.parametrize(
    ("method", "text", "code", "words"),
    [
        pytest.param("Upper", "", grpc.StatusCode.INVALID_ARGUMENT, "nothing to say: 100 %", id="aborted"),
        pytest.param(
            "Fail", "secret", grpc.StatusCode.UNKNOWN, "the service failed on this call", id="raised"
        ),
        pytest.param("Sum", "", grpc.StatusCode.UNIMPLEMENTED, "not served", id="unserved_form"),
        pytest.param("None", "", grpc.StatusCode.UNIMPLEMENTED, "no method /test.Service/None", id="unknown"),
    ],
)
async def test_call_fails_with_its_status_and_others_go_on(
    method: str, text: str, code: grpc.StatusCode, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as (_, port), channel_to(port) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await unary(channel, method, text)

        assert raised.value.code() is code
        assert words in str(raised.value.details())
        assert "secret" not in caplog.text
        assert (await unary(channel, "Upper", "on")).value == "ON"


async def test_call_that_fails_where_it_is_read_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as (_, port), channel_to(port) as channel:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            "/test.Direct/Mirror"
        )
        other = method()
        await other.write(b"before")
        assert await other.read() == b"before"

        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await mirrored(channel, [b"fail: secret"])

        assert raised.value.code() is grpc.StatusCode.INTERNAL
        assert "RuntimeError" in caplog.text
        assert "secret" not in caplog.text
        await other.write(b"after")
        assert await other.read() == b"after"
        await other.done_writing()


async def test_handler_is_cancelled_when_the_client_waits_no_longer() -> None:
    service = Service()
    async with listening(service) as (_, port), channel_to(port) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await unary(channel, "Wait", "a", timeout=0.05)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: service.n_cancelled == 1, what="the end of the first handler")

        call = unary(channel, "Wait", "b")
        await until(lambda: service.n_begun == 2, what="the second call")
        call.cancel()
        await until(lambda: service.n_cancelled == 2, what="the end of the second handler")


async def test_long_messages_pass_both_ways_beside_each_other() -> None:
    async with listening() as (_, port), channel_to(port) as channel:
        messages = [bytes([number]) * (8 * MIB) for number in range(2)]

        answers = await asyncio.gather(*(mirrored(channel, messages) for _ in range(3)))

    assert answers == [messages] * 3


async def test_message_over_the_limit_fails_its_call_alone() -> None:
    async with listening(max_message_bytes=1000) as (_, port), channel_to(port) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await mirrored(channel, [b"x" * 1001])

        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1001 bytes" in str(raised.value.details())
        assert await mirrored(channel, [b"x" * 1000]) == [b"x" * 1000]


async def test_many_calls_are_served_on_one_connection() -> None:
    async with listening() as (_, port), channel_to(port) as channel:
        answers = await asyncio.gather(*(mirrored(channel, [b"%d" % number]) for number in range(300)))

    assert answers == [[b"%d" % number] for number in range(300)]


async def test_stop_waits_for_calls_under_way_and_takes_no_new_ones() -> None:
    service = Service()
    async with listening(service) as (listener, port), channel_to(port) as channel:
        waiting = unary(channel, "Wait", "last words")
        await until(lambda: service.n_begun == 1, what="the call")

        stopping = asyncio.create_task(listener.stop(30))
        await until(lambda: channel.get_state() is not grpc.ChannelConnectivity.READY, what="the goodbye")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await unary(channel, "Upper", "new")
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not stopping.done()

        service.may_answer.set()
        assert (await waiting).value == "last words"
        await stopping


async def test_stop_breaks_off_what_outlasts_its_grace() -> None:
    service = Service()
    async with listening(service) as (listener, port), channel_to(port) as channel:
        waiting = unary(channel, "Wait", "too long")
        await until(lambda: service.n_begun == 1, what="the call")

        await listener.stop(0.05)

        with pytest.raises(grpc.aio.AioRpcError):
            await waiting
        await until(lambda: service.n_cancelled == 1, what="the end of the handler")


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", bytes(100)]
)
async def test_peer_that_speaks_no_http2_is_hung_up_on(data: bytes) -> None:
    async with listening() as (_, port), channel_to(port) as channel:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data + b"\r\n" * 50)

        await reader.read()  # until the end

        writer.close()
        assert (await unary(channel, "Upper", "on")).value == "ON"


async def test_client_that_vanished_is_hung_up_on() -> None:
    times = Times(greeting_s=0.5, silence_s=0.05, pong_s=0.05)
    async with listening(times=times) as (_, port), channel_to(port) as channel:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        assert (await unary(channel, "Upper", "a")).value == "A"

        with contextlib.suppress(ConnectionResetError):  # it never answers a ping
            await reader.read()

        assert (await unary(channel, "Upper", "b")).value == "B"  # the library of this one does
        writer.close()


async def test_peer_that_never_begins_is_hung_up_on() -> None:
    registry = CollectorRegistry()
    async with (
        listening(registry=registry, times=Times(greeting_s=0.05)) as (_, port),
        channel_to(port) as channel,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PRI * HTTP/2.0\r\n")

        with contextlib.suppress(ConnectionResetError):
            await reader.read()

        name = "kvatlas_extproc_connections_closed_total"
        assert registry.get_sample_value(name, {"reason": "greeting"}) == 1
        assert (await unary(channel, "Upper", "on")).value == "ON"
        writer.close()


async def test_call_without_a_message_is_ended() -> None:
    async with listening(times=Times(first_message_s=0.05)) as (_, port), channel_to(port) as channel:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            "/test.Direct/Mirror"
        )
        spoken, silent = method(), method()
        await spoken.write(b"first")

        assert await silent.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await spoken.read() == b"first"
        await spoken.write(b"later")
        assert await spoken.read() == b"later"
        await spoken.done_writing()


async def test_second_listener_on_a_port_says_which_setting_to_change() -> None:
    async with listening() as (_, port):
        other = Http2Listener("server.extProc", methods={}, limits=Limits(1), account=Intake())
        with pytest.raises(ListenError, match=rf"server\.extProc: cannot listen on 127\.0\.0\.1:{port}"):
            await other.start("127.0.0.1", port)
