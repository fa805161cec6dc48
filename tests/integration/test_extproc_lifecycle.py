"""The ext-proc server over real gRPC: load, disconnects, stops, and addresses."""

from __future__ import annotations

import asyncio
import socket
import struct
from functools import partial

import grpc
import pytest

from kvatlas.api.errors import ListenError
from kvatlas.api.extproc.health import HealthService
from kvatlas.api.extproc.intake import Intake
from kvatlas.api.extproc.server import ExtProcServer
from kvatlas.routing.outcome import Completion, Outcome
from kvatlas.routing.router import RoutingRequest, RoutingResult
from kvatlas.tokenization.eventual import Eventual, Known
from support.ext_proc import (
    DUPLEX,
    FixedRouter,
    kind_of,
    metadata_destination,
    request_body,
    request_headers,
    response_headers,
    streamed,
)
from support.ext_proc_server import BODY, ROUTE, WaitingRouter, receive, send, serving
from support.transports import lack_http2
from support.waiting import until

pytestmark = pytest.mark.usefixtures("each_transport")


async def test_disconnect_while_routing_completes_the_stream_once() -> None:
    router = WaitingRouter()
    async with serving(router) as picker:
        call = picker.open()
        await send(call, request_headers(config=DUPLEX), request_body(BODY, end=True))
        await router.waiting.wait()
        call.cancel()

        assert await picker.completions.get() == Completion("id-1", None, Outcome.ABORTED)
        assert picker.completions.empty()
        assert picker.errors == []


@pytest.mark.parametrize("leave", ["cancel", "close"])
async def test_disconnect_amid_the_response_completes_the_stream_once(leave: str) -> None:
    async with serving(FixedRouter(ROUTE)) as picker:
        call = picker.open()
        await send(call, request_headers(config=DUPLEX), request_body(BODY, end=True), response_headers())
        await receive(call, 3)
        if leave == "cancel":
            call.cancel()
        else:
            await call.done_writing()

        assert (await picker.completions.get()).outcome is Outcome.ABORTED
        assert picker.completions.empty()
        assert picker.errors == []


class BusyRouter(WaitingRouter):
    """Routes at once only what is past a limit."""

    n_within = 0

    def route(self, request: RoutingRequest) -> Eventual[RoutingResult]:
        if request.overload is not None:
            return Known(ROUTE)
        self.n_within += 1
        return super().route(request)

    def has_within(self, n: int) -> bool:
        return self.n_within == n


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
        for number, call in enumerate(waiting, start=1):
            # One by one: what the transport still has of others counts as held too.
            await send(call, request_headers(config=DUPLEX), request_body(BODY, end=True))
            await until(partial(router.has_within, number), what="one more that waits")
        assert held(intake)[0] == 3
        assert held(intake)[1] >= 3 * len(BODY)

        one_more = picker.open()
        await send(one_more, request_headers(config=DUPLEX), request_body(BODY), request_body(end=True))
        answers = await receive(one_more, 3)
        assert metadata_destination(answers[0]) == "10.0.0.1:8000"
        assert streamed(answers, "request_body") == [(BODY, False), (b"", True)]

        router.released.set()
        for call in waiting:
            assert streamed(await receive(call, 2), "request_body") == [(BODY, True)]
        await until(lambda: held(intake) == (0, 0), what="nothing that is held")


def held(intake: Intake) -> tuple[int, int]:
    """Return pending requests and held bytes, with what the transport holds by now."""
    intake.refresh_all()
    return intake.n_requests, intake.n_bytes


async def test_many_streams_are_served_at_once() -> None:
    router = WaitingRouter()
    async with serving(router) as picker:
        calls = [picker.open() for _ in range(200)]
        for call in calls:
            await send(call, request_headers(config=DUPLEX), request_body(BODY, end=True))
        router.released.set()

        for call in calls:
            assert kind_of((await receive(call, 1))[0]) == "request_headers"


async def test_stop_waits_for_requests_in_flight() -> None:
    router = WaitingRouter()
    async with serving(router) as picker:
        call = picker.open()
        await send(call, request_headers(config=DUPLEX), request_body(BODY, end=True))
        await router.waiting.wait()
        stopping = asyncio.create_task(picker.server.stop(30))
        router.released.set()
        await receive(call, 2)
        await send(call, response_headers(end=True))
        await receive(call, 1)
        await call.done_writing()

        assert await call.code() == grpc.StatusCode.OK
        await stopping
        assert (await picker.completions.get()).outcome is Outcome.COMPLETED


async def test_stop_breaks_off_what_outlasts_its_grace() -> None:
    router = WaitingRouter()
    async with serving(router) as picker:
        call = picker.open()
        await send(call, request_headers(config=DUPLEX), request_body(BODY, end=True))
        await router.waiting.wait()

        await picker.server.stop(0)

        assert (await picker.completions.get()).outcome is Outcome.ABORTED


async def test_second_server_on_a_port_fails_with_the_address_and_the_setting() -> None:
    async with serving(FixedRouter(ROUTE)) as picker:
        second = ExtProcServer(FixedRouter(ROUTE), HealthService())

        with pytest.raises(
            ListenError,
            match=rf"server\.extProc: cannot listen on 127\.0\.0\.1:{picker.port}: (Address already )?in use",
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
    lack_http2(monkeypatch, "libnghttp2-14 is missing")

    with pytest.raises(ListenError, match=r"extProc\.transport: http2 .*libnghttp2-14.* auto"):
        ExtProcServer(FixedRouter(ROUTE), HealthService(ready=True), transport="http2")
