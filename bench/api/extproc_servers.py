"""The servers beside which kvatlas is measured, each in a process of its own on one core."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
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

from .extproc_load import HOST

_ANSWER = bytes(300)
"""As long as the answer with a destination."""


class NoOp:
    """A server that reads a gateway's messages and sends two, without looking at any: the cost of gRPC itself."""

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

    async def start(self) -> int:
        """Start to listen; returns the port."""
        self._server = ExtProcServer(self, HealthService(ready=True), transport=self._transport)
        return await self._server.start(HOST, 0)

    def route(self, request: RoutingRequest) -> Eventual[RoutingResult]:  # noqa: ARG002 (Router)
        """See `Router.route`."""
        return Known(self._route)


SERVERS: dict[str, Callable[[], NoOp | Protocol]] = {
    "no-op": NoOp,
    "grpc": partial(Protocol, "grpc"),
    "http2": partial(Protocol, "http2"),
}


def serve(pipe: Connection, name: str, cpu: int) -> None:
    """Run a server on one core: sends its port and its process, then runs until a message comes."""
    os.sched_setaffinity(0, {cpu})
    uvloop.run(_serve(pipe, name))


async def _serve(pipe: Connection, name: str) -> None:
    pipe.send((await SERVERS[name]().start(), os.getpid()))
    told = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), told.set)
    await told.wait()
    os._exit(0)  # nothing here is worth a drain
