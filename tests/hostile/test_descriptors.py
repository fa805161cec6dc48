"""Peers that open more connections than the process may have descriptors."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from support.serve import Served, serving
from support.waiting import until

LIMIT = 200
"""Descriptors, of which the process needs about 25 itself."""

CONFIG = {
    "endpoints": {"static": [{"name": "a", "address": "127.0.0.1:1", "events": "", "replay": ""}]},
    "rest": {"requestTimeout": "60s"},
}


@contextmanager
def flooded(served: Served, *listeners: str) -> Generator[None]:
    """Hold more connections to each listener than there are descriptors."""
    with ExitStack() as stack:
        for listener in listeners:
            for _ in range(LIMIT + 20):
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


async def test_probes_are_answered_while_peers_open_more_connections_than_there_are_descriptors(
    tmp_path: Path,
) -> None:
    async with serving(CONFIG, tmp_path, descriptors=LIMIT) as served:
        with flooded(served, "rest", "metrics"):
            rest = [await served.status(path) for path in ("/healthz", "/readyz", "/healthz")]
            healthy = await is_serving(served)
        with flooded(served, "extProc"):
            beside = [await served.status(path) for path in ("/healthz", "/readyz", "/healthz")]
            full = [line for line in (await served.metrics()).splitlines() if 'reason="full"' in line]
        with flooded(served, "health"):
            # The library takes every descriptor but the spare ones.
            spared = [await served.status(path) for path in ("/healthz", "/readyz", "/healthz")]
        await until(lambda: is_serving(served), what="the health listener again")
        told = [line for line in served.log if "descriptors" in line]

    assert rest == [200] * 3
    assert healthy
    assert beside == [200] * 3
    assert full[0].startswith("kvatlas_extproc_connections_closed_total")
    assert spared == [200] * 3
    assert len(told) == 1
    assert "server.rest 21" in told[0]
