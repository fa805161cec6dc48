"""The servers beside which kvatlas is measured, each in a process of its own on one core."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

import grpc
import grpc.aio
import uvloop

from kvatlas.api.extproc.health import EXT_PROC_SERVICE, HealthService
from kvatlas.api.extproc.listener import GrpcListener
from kvatlas.api.extproc.server import ExtProcServer
from kvatlas.configs.listeners import ExtProcTransport
from kvatlas.routing.router import Route, Router, RoutingRequest, RoutingResult
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.profile import Profile
from kvatlas.tokenization.eventual import Eventual, Known

HOST = "127.0.0.1"
_ANSWER = bytes(300)
"""As long as the answer with a destination."""


@dataclass(frozen=True)
class Work:
    """Work of a server so far: requests it answered, and seconds of CPU time."""

    n_requests: int
    cpu_s: float

    def since(self, before: Work) -> Work:
        """Return the work since then."""
        return Work(self.n_requests - before.n_requests, self.cpu_s - before.cpu_s)


class NoOp:
    """A server that reads a gateway's messages and sends two, without looking at any: the cost of gRPC itself."""

    def __init__(self) -> None:
        self.n_requests = 0

    async def start(self) -> int:
        """Start to listen; returns the port."""
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._process)
        service = grpc.method_handlers_generic_handler(EXT_PROC_SERVICE, {"Process": handler})
        self._listener = GrpcListener("bench", (service,))
        return await self._listener.start(HOST, 0)

    async def _process(
        self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        n_left = 2
        async for _ in messages:
            if n_left:
                await context.write(_ANSWER)
                n_left -= 1
        self.n_requests += 1


class Protocol(Router):
    """kvatlas's ext-proc server, with one address for every request.

    Args:
        transport: carries the calls.
    """

    def __init__(self, transport: ExtProcTransport) -> None:
        self._transport: ExtProcTransport = transport
        alone = Candidates.of([Candidate("a", "10.0.0.1:8000")])
        decision = Profile([], MaxScorePicker()).decide(RequestView("", 0.0), alone, rng=random.random)
        self._route = Route(("10.0.0.1:8000",), decision)
        self.n_requests = 0

    async def start(self) -> int:
        """Start to listen; returns the port."""
        self._server = ExtProcServer(self, HealthService(ready=True), transport=self._transport)
        return await self._server.start(HOST, 0)

    def route(self, request: RoutingRequest) -> Eventual[RoutingResult]:  # noqa: ARG002 (Router)
        """See `Router.route`."""
        self.n_requests += 1
        return Known(self._route)


SERVERS: dict[str, Callable[[], NoOp | Protocol]] = {
    "no-op": NoOp,
    "grpc": partial(Protocol, "grpc"),
    "http2": partial(Protocol, "http2"),
}


def serve(pipe: Connection, name: str, cpu: int) -> None:
    """Run a server on one core: sends its port, then its `Work` for every message, until the pipe closes."""
    os.sched_setaffinity(0, {cpu})
    uvloop.run(_serve(pipe, name))


async def _serve(pipe: Connection, name: str) -> None:
    server = SERVERS[name]()
    pipe.send(await server.start())
    asked = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), asked.set)
    while True:
        await asked.wait()
        asked.clear()
        if pipe.recv() is None:
            os._exit(0)  # nothing here is worth a drain
        pipe.send(Work(server.n_requests, time.process_time()))
