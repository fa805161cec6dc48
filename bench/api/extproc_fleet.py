"""CPU time, latency and memory of pickers whose fleets have different sizes, beside the reference picker and a server without work.

Each size runs both pickers, and a round of each follows a round of the server that does nothing, so that the ratios hold on a
machine whose speed changes. Every endpoint of kvatlas publishes events and has been scraped once; the reference has none of both,
its index is learned from its own decisions.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import grpc.aio

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.health import EXT_PROC_SERVICE

from ..common.load_reports import LoadReports
from ..common.processes import rss_bytes
from ..common.server import Server
from ..common.tables import Cell, Table
from .extproc_load import (
    HOST,
    SERVER_CPU,
    Running,
    best_of,
    chat,
    conversation,
    pin,
    send_all,
)
from .reference import folder, reference

MODE, BODY_BYTES = "BUFFERED", 1000
N_STREAMS = 8
"""Requests open at any time: few, so that a latency is more work than queue."""

N_REQUESTS_BEFORE_MEMORY = 8000
POLICIES = {"kvatlas": "weights", "kvatlas, latency": "latency"}
"""Value of `policy` by the name of a server."""

DESTINATION = "x-gateway-destination-endpoint"


async def by_size(options: argparse.Namespace, noop: Running) -> list[Table]:
    """Measure each size of fleet; return the times and the memory."""
    times: list[tuple[Cell, ...]] = []
    memory: list[tuple[Cell, ...]] = []
    for n_endpoints in options.endpoints:
        async with AsyncExitStack() as stack:
            ours: dict[str, _Picker] = {}
            for name, policy in POLICIES.items():
                beside = next(iter(ours.values()), None)
                ours[name] = await stack.enter_async_context(_Picker.running(n_endpoints, policy, beside))
            pickers = {name: each.process for name, each in ours.items()}
            if not options.without_reference and (where := folder()) is not None:
                pickers["reference"] = await stack.enter_async_context(reference(where, n_endpoints))
            frames = conversation(MODE, chat(BODY_BYTES))
            for name, picker in pickers.items():
                await _check_destination(name, picker, frames)
                await send_all(picker, frames, n_requests=N_REQUESTS_BEFORE_MEMORY, n_streams=N_STREAMS)
            megabytes = {name: rss_bytes(picker.pid) / 1e6 for name, picker in pickers.items()}
            for kvatlas in ours.values():
                await kvatlas.hold(chat(BODY_BYTES))
            best = await best_of(
                {"no-op": noop, **pickers},
                frames,
                rounds=options.rounds,
                seconds=options.seconds,
                n_streams=N_STREAMS,
            )
        own = best["kvatlas"].cpu_us
        for name, each in best.items():
            ratio = f"{own / each.cpu_us:.2f}x" if name not in POLICIES else ""
            times.append(
                (n_endpoints, name, each.cpu_us, ratio, (each.p50_ms, each.p99_ms), round(each.per_second))
            )
        memory.append((n_endpoints, megabytes["kvatlas"], megabytes.get("reference")))
    return [
        Table(
            name="fleets",
            title="Fleets of several sizes",
            headings=(
                "endpoints",
                "server",
                "CPU time per request, us",
                "kvatlas / it",
                "latency, ms: median (p99)",
                "requests/s",
            ),
            rows=tuple(times),
        ),
        Table(
            name="memory",
            title="Memory",
            headings=("endpoints", "kvatlas, MB", "reference, MB"),
            rows=tuple(memory),
        ),
    ]


class _Picker:
    """A `kvatlas serve` on one core with endpoints that publish events."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self._server, self._session = server, session
        self.process = Running(int(server.address.rpartition(":")[2]), server.process.pid)

    @classmethod
    @asynccontextmanager
    async def running(cls, n_endpoints: int, policy: str, beside: _Picker | None) -> AsyncGenerator[_Picker]:
        """Run it, with the endpoints of the one beside it if there is one; every endpoint has been scraped."""
        async with AsyncExitStack() as stack:
            where = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            metrics = LoadReports()
            await stack.enter_async_context(metrics.running())
            others = beside._server if beside is not None else None  # noqa: SLF001 - of the same class
            server = Server(where, n_servers=n_endpoints, metrics=metrics.url, policy=policy, beside=others)
            await stack.enter_async_context(server.running())
            pin(server.process.pid, SERVER_CPU)
            session = await stack.enter_async_context(aiohttp.ClientSession(server.rest))
            await metrics.until_sent(n_endpoints)
            yield cls(server, session)

    async def hold(self, body: bytes) -> None:
        """Have an engine hold the blocks of a chat."""
        await self._server.hold([body], self._session)


async def _check_destination(name: str, picker: Running, frames: bytes) -> None:
    """Send one request and look at the replies, which h2load does not.

    Raises:
        SystemExit: no reply names a destination.
    """

    async def messages() -> AsyncIterator[bytes]:
        start = 0
        while start < len(frames):
            end = start + 5 + int.from_bytes(frames[start + 1 : start + 5])
            yield frames[start + 5 : end]
            start = end

    async with grpc.aio.insecure_channel(f"{HOST}:{picker.port}") as channel:
        process: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            f"/{EXT_PROC_SERVICE}/Process"
        )
        replies = [pb.ProcessingResponse.FromString(reply) async for reply in process(messages())]
    if not any(DESTINATION in str(reply) for reply in replies):
        raise SystemExit(f"{name} named no destination, but answered {replies}")
