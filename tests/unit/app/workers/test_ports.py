"""Ports that workers share, and nobody else."""

from __future__ import annotations

from typing import Any, cast

import grpc.aio
import msgspec
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from prometheus_client import CollectorRegistry

from kvatlas.api.acceptor import listen
from kvatlas.api.errors import ListenError
from kvatlas.api.extproc.health import HealthService
from kvatlas.api.extproc.server import health_listener
from kvatlas.api.http2.metrics import TransportMetrics
from kvatlas.app.workers.ports import SharedPorts
from kvatlas.configs.address import HostPort
from kvatlas.configs.listeners import ExtProcTransport, ServerConfig

ANY = ServerConfig(ext_proc="127.0.0.1:0", health="", rest="127.0.0.1:0", metrics="")


def test_workers_listen_together_and_nobody_else() -> None:
    ports = SharedPorts(ANY)
    server = ports.applied(ANY)
    where = HostPort.parse(server.ext_proc)
    assert (server.health, server.rest) == ("", ANY.rest)
    workers = [listen("server.extProc", where.host, where.port, is_shared=True) for _ in range(2)]
    try:
        assert {each.getsockname()[1] for each in workers} == {where.port}
        with pytest.raises(ListenError, match=r"server\.rest: cannot listen"):
            listen("server.rest", where.host, where.port)
        with pytest.raises(
            ListenError, match=r"server\.extProc: cannot listen on .*; stop what listens there"
        ):
            SharedPorts(server)
    finally:
        ports.close()
        for each in workers:
            each.close()
    listen("server.rest", where.host, where.port).close()


@pytest.mark.parametrize("transport", ["http2", "grpc"])
async def test_connections_find_whichever_worker_still_listens(transport: ExtProcTransport) -> None:
    ports = SharedPorts(ANY)
    where = HostPort.parse(ports.applied(ANY).ext_proc)
    workers = [
        health_listener(HealthService(), transport, TransportMetrics(CollectorRegistry())) for _ in range(2)
    ]
    for each in workers:
        assert await each.start(where.host, where.port, is_shared=True) == where.port
    for each in workers:
        async with grpc.aio.insecure_channel(
            str(where), options=(("grpc.use_local_subchannel_pool", 1),)
        ) as channel:
            stub: Any = HealthStub(channel)
            answer = cast("HealthCheckResponse", await stub.Check(HealthCheckRequest(service="liveness")))
            assert answer.status == HealthCheckResponse.SERVING
        await each.stop(0)
    ports.close()


def test_address_that_was_changed_since_the_start_stays_as_it_is() -> None:
    ports = SharedPorts(ANY)
    changed = msgspec.structs.replace(ANY, ext_proc="127.0.0.1:9002")
    assert ports.applied(changed) == changed
    ports.close()
