"""Peers that open more connections than the process may have descriptors."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from support.ext_proc import request_headers
from support.ext_proc_client import connected
from support.serve import ANY_PORTS, Served, serving
from support.waiting import until

LIMIT = 256
"""Descriptors, of which the process needs about 25 itself."""

FLOOD = 300
"""Connections to one listener."""

CONFIG = {
    "endpoints": {"static": [{"name": "a", "address": "127.0.0.1:1", "events": "", "replay": ""}]},
    "rest": {"requestTimeout": "60s"},
}


@contextmanager
def flooded(served: Served, *listeners: str) -> Generator[None]:
    """Hold `FLOOD` connections to each listener, which say nothing of use."""
    with ExitStack() as stack:
        for listener in listeners:
            for _ in range(FLOOD):
                address = ("127.0.0.1", served.ports[listener])
                stack.enter_context(socket.create_connection(address, timeout=30)).sendall(b"P")
        yield


async def is_serving(served: Served) -> bool:
    """Ask the health listener by a connection of its own."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.ports['health']}") as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        try:
            answer = await check(HealthCheckRequest(), timeout=5)
        except grpc.aio.AioRpcError:
            return False
    return bool(answer.status == HealthCheckResponse.SERVING)


async def probed(served: Served) -> tuple[bool, int, int]:
    """Probe the process in each way, every time by a connection of its own."""
    return await is_serving(served), await served.status("/healthz"), await served.status("/readyz")


@pytest.mark.parametrize("listeners", [("extProc",), ("health",), tuple(ANY_PORTS)], ids="+".join)
async def test_probes_are_answered_while_peers_open_more_connections_than_there_are_descriptors(
    tmp_path: Path, listeners: tuple[str, ...]
) -> None:
    async with serving(CONFIG, tmp_path, descriptors=LIMIT) as served:
        with flooded(served, *listeners):
            during = [await probed(served) for _ in range(3)]
            n_open = len(list(Path(f"/proc/{served.process.pid}/fd").iterdir()))  # noqa: ASYNC240
        await until(lambda: is_serving(served), what="the health listener again")
        async with connected(served.ports["extProc"]) as client:
            conversation = client.request([request_headers(end=True)])
            assert await conversation.ended is None
        after = [await served.status(path) for path in ("/healthz", "/readyz", "/metrics")]
        told = [line for line in served.log if "descriptors" in line]

    assert during == [(True, 200, 200)] * 3
    assert n_open < LIMIT - 10
    assert after == [200] * 3
    assert len(told) == 1
    assert "server.extProc 40, server.rest 40, server.metrics 40" in told[0]
