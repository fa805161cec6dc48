"""The ext-proc server over real gRPC."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import grpc
import grpc.aio
import pytest

from kvatlas.api.errors import ListenError
from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.health import HealthService
from kvatlas.api.extproc.intake import Intake
from kvatlas.api.extproc.server import ExtProcServer
from kvatlas.routing.outcome import Completion, Outcome, ResponseBegun
from kvatlas.routing.router import Refusal, RefusalCode, Router, RoutingRequest, RoutingResult
from kvatlas.tokenization.eventual import Eventual, Known, Later
from support.ext_proc import (
    BUFFERED,
    DUPLEX,
    FixedRouter,
    header_map,
    kind_of,
    make_route,
    metadata_destination,
    request_body,
    request_headers,
    response_body,
    response_headers,
    set_headers,
    streamed,
)
from support.waiting import until

BODY = b'{"model":"m","prompt":"p"}'
ROUTE = make_route("10.0.0.1:8000")
Call = grpc.aio.StreamStreamCall[bytes, pb.ProcessingResponse]


@dataclass
class Picker:
    """A running server, what it reported, and a client of it."""

    server: ExtProcServer
    port: int
    open: Callable[[], Call]
    errors: list[str]
    begun: list[ResponseBegun]
    completions: asyncio.Queue[Completion]


@pytest.fixture(params=["http2", "grpc"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs on a machine with the native transport, and on one without."""
    monkeypatch.setattr("kvatlas.api.extproc.server.has_http2", lambda: request.param == "http2")
    carrier: str = request.param
    return carrier


@asynccontextmanager
async def serving(
    router: Router, *, max_body_bytes: int = 1_000_000, intake: Intake | None = None
) -> AsyncGenerator[Picker]:
    errors: list[str] = []
    begun: list[ResponseBegun] = []
    completions: asyncio.Queue[Completion] = asyncio.Queue()
    server = ExtProcServer(
        router,
        HealthService(ready=True),
        intake=intake,
        max_body_bytes=max_body_bytes,
        on_error=errors.append,
        on_begun=begun.append,
        on_complete=completions.put_nowait,
    )
    port = await server.start("127.0.0.1", 0)
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        process: grpc.aio.StreamStreamMultiCallable[bytes, pb.ProcessingResponse] = channel.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
            response_deserializer=pb.ProcessingResponse.FromString,
        )
        try:
            yield Picker(server, port, process, errors, begun, completions)
        finally:
            await server.stop(0)


async def tell(call: Call, *messages: pb.ProcessingRequest) -> None:
    for message in messages:
        await call.write(message.SerializeToString())


async def hear(call: Call, count: int) -> list[pb.ProcessingResponse]:
    heard: list[pb.ProcessingResponse] = []
    for _ in range(count):
        message = await call.read()
        assert isinstance(message, pb.ProcessingResponse), (
            f"stream ended after {len(heard)} of {count} answers"
        )
        heard.append(message)
    return heard


async def test_duplex_request_and_response_pass_through_one_stream() -> None:
    router = FixedRouter(ROUTE)
    async with serving(router) as picker:
        call = picker.open()
        await tell(call, request_headers(config=DUPLEX), request_body(BODY), request_body(end=True))
        header, body = await hear(call, 2)
        await tell(call, response_headers(), response_body(b"data"), response_body(end=True))
        answer = await hear(call, 3)
        await call.done_writing()

        assert await call.code() == grpc.StatusCode.OK
        assert metadata_destination(header) == "10.0.0.1:8000"
        assert streamed([body], "request_body") == [(BODY, True)]
        assert streamed(answer, "response_body") == [(b"data", False), (b"", True)]
        assert router.asked[0].body == BODY
        assert (await picker.completions.get()).outcome is Outcome.COMPLETED
        assert picker.errors == []


async def test_buffered_request_is_answered_twice() -> None:
    async with serving(FixedRouter(ROUTE)) as picker:
        call = picker.open()
        await tell(call, request_headers(config=BUFFERED))
        (unchanged,) = await hear(call, 1)
        await tell(call, request_body(BODY, end=True))
        (routed,) = await hear(call, 1)
        await call.done_writing()

        assert await call.code() == grpc.StatusCode.OK
        assert unchanged == pb.ProcessingResponse(request_headers=pb.HeadersResponse())
        assert set_headers(routed) == {"x-gateway-destination-endpoint": "10.0.0.1:8000"}
        assert (await picker.completions.get()).outcome is Outcome.ROUTED


async def test_missing_request_id_becomes_a_uuid() -> None:
    router = FixedRouter(ROUTE)
    async with serving(router) as picker:
        call = picker.open()
        headers = pb.HttpHeaders(headers=header_map([(":path", "/")]), end_of_stream=True)
        await tell(call, pb.ProcessingRequest(request_headers=headers))
        (answer,) = await hear(call, 1)
        await call.done_writing()
        await call.code()

        request_id = set_headers(answer)["x-request-id"]
        assert UUID(request_id).version == 4
        assert router.asked[0].request_id == request_id


async def test_refusal_ends_the_stream_with_ok() -> None:
    async with serving(FixedRouter(Refusal(RefusalCode.BAD_REQUEST, "bad"))) as picker:
        call = picker.open()
        await tell(call, request_headers(config=DUPLEX), request_body(b"{", end=True))
        (answer,) = await hear(call, 1)

        assert answer.immediate_response.status.code == 400
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK
        assert (await picker.completions.get()).outcome is Outcome.REFUSED


async def test_body_of_5_mb_in_one_message_is_routed() -> None:
    async with serving(FixedRouter(ROUTE), max_body_bytes=5_000_000) as picker:
        call = picker.open()
        await tell(call, request_headers(config=BUFFERED), request_body(b"x" * 5_000_000))
        _, answer = await hear(call, 2)
        await call.done_writing()
        await call.code()

        assert metadata_destination(answer) == "10.0.0.1:8000"


async def test_body_over_the_limit_is_answered_413_and_not_with_a_grpc_error() -> None:
    async with serving(FixedRouter(ROUTE), max_body_bytes=5_000_000) as picker:
        call = picker.open()
        await tell(call, request_headers(config=BUFFERED), request_body(b"x" * 5_000_001))
        _, answer = await hear(call, 2)

        assert answer.immediate_response.status.code == 413
        assert await call.code() == grpc.StatusCode.OK


class FaultyRouter(Router):
    """Fails with a text that quotes the prompt."""

    def route(self, request: RoutingRequest) -> Eventual[RoutingResult]:
        raise LookupError(f"no block for {request.body!r}")


async def test_failing_router_is_answered_500_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(FaultyRouter()) as picker:
        call = picker.open()
        with caplog.at_level(logging.ERROR):
            await tell(call, request_headers(config=DUPLEX), request_body(b"secret", end=True))
            (answer,) = await hear(call, 1)

        assert answer.immediate_response.status.code == 500
        assert answer.immediate_response.body.startswith(b"inference error: Internal - ")
        assert await call.code() == grpc.StatusCode.OK
        assert picker.errors == ["router"]
        assert "LookupError" in caplog.text
        assert "in route" in caplog.text  # where it failed
        assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("data", "reason", "detail"),
    [
        pytest.param(b"\xff\xff", "not_protobuf", "2 bytes is not", id="not_protobuf"),
        pytest.param(
            request_body(BODY).SerializeToString(), "out_of_order", "request_header_mode", id="body_first"
        ),
    ],
)
async def test_unusable_message_fails_its_stream_alone(data: bytes, reason: str, detail: str) -> None:
    async with serving(FixedRouter(ROUTE)) as picker:
        bystander = picker.open()
        await tell(bystander, request_headers(config=DUPLEX))
        call = picker.open()
        await call.write(data)

        assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert detail in (await call.details() or "")
        assert picker.errors == [reason]
        assert (await picker.completions.get()).outcome is Outcome.ABORTED
        await tell(bystander, request_body(BODY, end=True))
        assert kind_of((await hear(bystander, 1))[0]) == "request_headers"


class WaitingRouter(FixedRouter):
    """Routes once it is released."""

    def __init__(self) -> None:
        super().__init__(ROUTE)
        self.waiting = asyncio.Event()
        self.released = asyncio.Event()

    def route(self, request: RoutingRequest) -> Eventual[RoutingResult]:
        return Later(self._route(request))

    async def _route(self, request: RoutingRequest) -> RoutingResult:
        self.waiting.set()
        await self.released.wait()
        return await super().route(request)


async def test_disconnect_while_routing_completes_the_stream_once() -> None:
    router = WaitingRouter()
    async with serving(router) as picker:
        call = picker.open()
        await tell(call, request_headers(config=DUPLEX), request_body(BODY, end=True))
        await router.waiting.wait()
        call.cancel()

        assert await picker.completions.get() == Completion("id-1", None, Outcome.ABORTED)
        assert picker.completions.empty()
        assert picker.errors == []


@pytest.mark.parametrize("leave", ["cancel", "close"])
async def test_disconnect_amid_the_response_completes_the_stream_once(leave: str) -> None:
    async with serving(FixedRouter(ROUTE)) as picker:
        call = picker.open()
        await tell(call, request_headers(config=DUPLEX), request_body(BODY, end=True), response_headers())
        await hear(call, 3)
        if leave == "cancel":
            call.cancel()
        else:
            await call.done_writing()

        assert (await picker.completions.get()).outcome is Outcome.ABORTED
        assert picker.completions.empty()
        assert picker.errors == []


class BusyRouter(WaitingRouter):
    """Routes at once only what is past a limit."""

    def route(self, request: RoutingRequest) -> Eventual[RoutingResult]:
        return Known(ROUTE) if request.overload is not None else super().route(request)


@pytest.mark.parametrize(
    "intake",
    [
        pytest.param(Intake(max_requests=3), id="pending_requests"),
        pytest.param(Intake(max_bytes=3 * len(BODY)), id="held_bytes"),
    ],
)
async def test_request_past_a_limit_is_answered_while_those_within_it_wait(intake: Intake) -> None:
    router = BusyRouter()
    async with serving(router, intake=intake) as picker:
        waiting = [picker.open() for _ in range(3)]
        for call in waiting:
            await tell(call, request_headers(config=DUPLEX), request_body(BODY, end=True))
        await until(
            lambda: intake.n_requests == 3 and intake.n_bytes == 3 * len(BODY), what="three that wait"
        )

        one_more = picker.open()
        await tell(one_more, request_headers(config=DUPLEX), request_body(BODY), request_body(end=True))
        answers = await hear(one_more, 3)
        assert metadata_destination(answers[0]) == "10.0.0.1:8000"
        assert streamed(answers, "request_body") == [(BODY, False), (b"", True)]

        router.released.set()
        for call in waiting:
            assert streamed(await hear(call, 2), "request_body") == [(BODY, True)]
        assert (intake.n_requests, intake.n_bytes) == (0, 0)


async def test_many_streams_are_served_at_once() -> None:
    router = WaitingRouter()
    async with serving(router) as picker:
        calls = [picker.open() for _ in range(200)]
        for call in calls:
            await tell(call, request_headers(config=DUPLEX), request_body(BODY, end=True))
        router.released.set()

        for call in calls:
            assert kind_of((await hear(call, 1))[0]) == "request_headers"


async def test_stop_waits_for_requests_in_flight() -> None:
    router = WaitingRouter()
    async with serving(router) as picker:
        call = picker.open()
        await tell(call, request_headers(config=DUPLEX), request_body(BODY, end=True))
        await router.waiting.wait()
        stopping = asyncio.create_task(picker.server.stop(30))
        router.released.set()
        await hear(call, 2)
        await tell(call, response_headers(end=True))
        await hear(call, 1)
        await call.done_writing()

        assert await call.code() == grpc.StatusCode.OK
        await stopping
        assert (await picker.completions.get()).outcome is Outcome.COMPLETED


async def test_stop_breaks_off_what_outlasts_its_grace() -> None:
    router = WaitingRouter()
    async with serving(router) as picker:
        call = picker.open()
        await tell(call, request_headers(config=DUPLEX), request_body(BODY, end=True))
        await router.waiting.wait()

        await picker.server.stop(0)

        assert (await picker.completions.get()).outcome is Outcome.ABORTED


async def test_second_server_on_a_port_fails_with_the_address_and_the_setting() -> None:
    async with serving(FixedRouter(ROUTE)) as picker:
        second = ExtProcServer(FixedRouter(ROUTE), HealthService())

        with pytest.raises(
            ListenError, match=rf"server\.extProc: cannot listen on 127\.0\.0\.1:{picker.port}: in use"
        ):
            await second.start("127.0.0.1", picker.port)


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
async def test_listens_on_ipv6() -> None:
    server = ExtProcServer(FixedRouter(ROUTE), HealthService())
    port = await server.start("::1", 0)
    await server.stop(0)

    assert port > 0


def http2_frame(kind: int, payload: bytes, flags: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + bytes(4) + payload


async def test_frequent_pings_of_a_gateway_are_all_answered() -> None:
    ping, goaway, ack = 6, 7, 1
    async with serving(FixedRouter(ROUTE)) as picker:
        reader, writer = await asyncio.open_connection("127.0.0.1", picker.port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4, b""))
        for number in range(20):
            writer.write(http2_frame(ping, number.to_bytes(8)))
            kind, flags, payload = 0, 0, b""
            while (kind, flags) != (ping, ack):
                head = await reader.readexactly(9)
                kind, flags = head[3], head[4]
                payload = await reader.readexactly(int.from_bytes(head[:3]))
                assert kind != goaway, payload
            assert payload == number.to_bytes(8)
        writer.close()
        await writer.wait_closed()


def test_transport_that_is_asked_for_and_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvatlas.api.extproc.server.has_http2", lambda: False)

    with pytest.raises(ListenError, match=r"extProc\.transport: http2 .*libnghttp2-14.* auto"):
        ExtProcServer(FixedRouter(ROUTE), HealthService(ready=True), transport="http2")
