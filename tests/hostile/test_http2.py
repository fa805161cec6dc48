"""Peers that reach the ext-proc port themselves: floods of frames, calls without end, connections without number."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from kvatlas.api.http2.native import has_http2
from support.ext_proc import DUPLEX, request_body, request_headers
from support.ext_proc_client import ExtProcClient, Frame, connected
from support.gateway import FLEET
from support.http2 import frame, framed
from support.peer import (
    HEALTH,
    REFLECTION,
    STREAM_WINDOW,
    data,
    flood,
    opening,
    peer_of,
    repeated,
    reset,
    streams,
)
from support.serve import Served, serving
from support.waiting import until

pytestmark = [
    pytest.mark.skipif(not has_http2(), reason="the transport of the hot path needs libnghttp2"),
    pytest.mark.asyncio(loop_scope="module"),
]

ENHANCE_YOUR_CALM = 11
MIB = 1 << 20
GET = request_headers(end=True)
"""A whole request."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="served")
async def _served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Served]:
    limits = {
        "transport": "http2",
        "maxPendingRequests": 500,
        "maxHeldBytes": MIB,
        "maxBodyBytes": MIB,
        "maxConnections": 8,
        "maxStreams": 1000,
    }
    async with serving({"endpoints": FLEET, "extProc": limits}, tmp_path_factory.mktemp("http2")) as served:
        yield served


async def metric(served: Served, series: str) -> float:
    """Return the value of a series, 0 if it is absent."""
    lines = (await served.metrics()).splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(series + " ")), 0.0)


async def until_metric(served: Served, series: str, value: float) -> None:
    async def has_it() -> bool:
        return await metric(served, series) == value

    await until(has_it, what=f"{series} {value}")


async def answered(client: ExtProcClient) -> None:
    """Send a usual request, which must be routed."""
    conversation = client.converse([GET], [])
    assert await conversation.ended is None
    assert len(conversation.answers) == 1


async def answered_beside(served: Served, frames: bytes) -> int:
    """Return how many usual requests, one after the other, are routed while one connection floods."""
    n = 0
    done = asyncio.create_task(flood(served.ports["extProc"], frames))
    async with connected(served.ports["extProc"]) as client:
        while not done.done():
            await answered(client)
            n += 1
    await done
    return n


async def test_rapid_resets_end_their_connection_alone(served: Served) -> None:
    async with peer_of(served.ports["extProc"]) as peer:
        async with connected(served.ports["extProc"]) as client:
            await answered(client)
            for first in range(1, 8000, 200):
                peer.write(streams(100, lambda stream: opening(stream) + reset(stream), first=first))
            await until(lambda: peer.is_over, what="the end of the connection")
            await answered(client)

        assert peer.error == ENHANCE_YOUR_CALM
        await until_metric(served, 'kvatlas_extproc_connections_closed_total{reason="resets"}', 1)
        await until_metric(served, "kvatlas_open_streams", 0)


# Each is some ten to some hundred milliseconds of work.
FLOODS = {
    "bodies_of_one_byte": streams(
        16,
        lambda stream: (
            opening(stream)
            + data(stream, framed(request_headers(config=DUPLEX).SerializeToString()))
            + data(stream, repeated(request_body(b"x").SerializeToString(), 1 << 16))
        ),
    ),
    "unknown_methods": streams(20_000, lambda stream: opening(stream, "/none", ends=True)),
    # One field of 4 kB goes into the table; each further header block names it 2,000 times.
    "references": frame(Frame.HEADERS, b"\x40\x01a\x7f\xa1\x1e" + b"b" * 4000, 4, 1)
    + streams(400, lambda stream: frame(Frame.HEADERS, b"\xbe" * 2000, 4, stream), first=3),
    "pings": frame(Frame.PING, bytes(8), 0, 0) * 500_000,
    "priorities": streams(400_000, lambda stream: frame(2, b"\x80\x00\x00\x00\xff", 0, stream)),
}


@pytest.mark.parametrize("frames", FLOODS.values(), ids=FLOODS.keys())
async def test_others_are_served_while_one_connection_floods(frames: bytes, served: Served) -> None:
    before = await metric(served, "kvatlas_extproc_turns_deferred_total")

    n_answered = await answered_beside(served, frames)

    n_turns = await metric(served, "kvatlas_extproc_turns_deferred_total") - before
    assert n_turns >= 20
    # How many depends on this client's part of the processor. Without turns, the first would wait for the end of the flood.
    assert n_answered >= 2 or n_turns < 1000  # turns may be short


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        pytest.param(
            frame(Frame.SETTINGS, b"\x00\x04\x00\x01\x00\x00", 0, 0) * 200, "settings", id="settings"
        ),
        pytest.param(
            frame(Frame.HEADERS, b"", 0, 1) + frame(9, b"", 0, 1) * 200, "header_block", id="continuations"
        ),
    ],
)
async def test_endless_frames_of_a_kind_end_the_connection(
    frames: bytes, reason: str, served: Served
) -> None:
    async with peer_of(served.ports["extProc"]) as peer:
        peer.write(frames)
        await until(lambda: peer.is_over, what="the end of the connection")

        assert peer.error == ENHANCE_YOUR_CALM
        await until_metric(served, f'kvatlas_extproc_connections_closed_total{{reason="{reason}"}}', 1)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        pytest.param(HEALTH, b"", id="watch"),
        pytest.param(
            REFLECTION, ServerReflectionRequest(list_services="").SerializeToString(), id="reflection"
        ),
    ],
)
async def test_calls_take_no_messages_that_their_service_has_not_asked_for(
    path: str, message: bytes, served: Served
) -> None:
    async with peer_of(served.ports["extProc"], window=0) as peer:
        peer.write(opening(1, path) + data(1, repeated(message, STREAM_WINDOW)))
        await peer.ponged()

        assert peer.frames[Frame.WINDOW_UPDATE, 1] == 0
        assert await metric(served, "kvatlas_held_bytes") > STREAM_WINDOW * 0.9

        peer.write(reset(1))
        await until_metric(served, "kvatlas_held_bytes", 0)


async def test_partial_messages_are_held_and_the_calls_past_the_limit_refused(served: Served) -> None:
    part = MIB.to_bytes(5) + bytes(900_000)
    async with peer_of(served.ports["extProc"]) as peer:
        peer.write(streams(12, lambda stream: opening(stream) + data(stream, part)))
        await peer.ponged()

        held = await metric(served, "kvatlas_held_bytes")
        assert 1.8e6 < held < 5e6
        assert (
            await metric(served, 'kvatlas_extproc_calls_refused_total{reason="held_bytes"}')
            == 12 - held // 900_000
        )
        async with connected(served.ports["extProc"]) as client:
            await answered(client)

    await until_metric(served, "kvatlas_held_bytes", 0)


async def test_answers_that_a_client_does_not_read_are_held(served: Served) -> None:
    async with peer_of(served.ports["extProc"], window=0) as peer:
        peer.write(opening(1) + data(1, repeated(GET.SerializeToString(), 200)))

        async def are_held() -> bool:
            return await metric(served, "kvatlas_held_bytes") > 50

        await until(are_held, what="bytes that are held")
        peer.write(reset(1))
        await until_metric(served, "kvatlas_held_bytes", 0)


async def test_calls_past_the_limit_are_refused(served: Served) -> None:
    async with peer_of(served.ports["extProc"]) as peer:
        peer.write(streams(1000, opening))
        await peer.ponged()
        async with peer_of(served.ports["extProc"]) as other:
            other.write(streams(1000 // 8 + 10, opening))
            await other.ponged()

        assert await metric(served, 'kvatlas_extproc_calls_refused_total{reason="streams"}') == 10
        async with connected(served.ports["extProc"]) as client:
            await answered(client)  # each connection has a few calls of its own


async def test_idle_connections_make_room_for_others(served: Served) -> None:
    before = await metric(served, 'kvatlas_extproc_connections_closed_total{reason="full"}')
    async with contextlib.AsyncExitStack() as stack, connected(served.ports["extProc"]) as client:
        await answered(client)
        busy = await stack.enter_async_context(peer_of(served.ports["extProc"]))
        busy.write(opening(1))
        await busy.ponged()
        for _ in range(40):
            await stack.enter_async_context(peer_of(served.ports["extProc"], greets=False))
        await until_metric(served, 'kvatlas_extproc_connections_closed_total{reason="full"}', before + 34)

        assert not busy.is_over
        async with connected(served.ports["extProc"]) as other:
            await answered(other)


async def test_probes_pass_beside_many_connections_to_their_port(served: Served) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(200):
            await stack.enter_async_context(peer_of(served.ports["health"], greets=False))

        async with grpc.aio.insecure_channel(f"127.0.0.1:{served.ports['health']}") as channel:
            check: grpc.aio.UnaryUnaryMultiCallable[
                health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
            ] = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            answer = await check(health_pb2.HealthCheckRequest())

        assert answer.status == health_pb2.HealthCheckResponse.SERVING
