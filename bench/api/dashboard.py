"""CPU time of a running `kvatlas serve` for viewers of the dashboard.

The endpoints publish events and hold a chat each, and chats have been routed, so that frames are as full as they get. A viewer
is a client of `/v1/live` that reads what comes. Rounds with so many viewers take turns with rounds without any; what the process
uses more than in those is the viewers'. The process' CPU time is the kernel's, in nanoseconds, over all its threads.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import grpc.aio

from ..common.benchmark import Benchmark
from ..common.processes import cpu_s, raise_file_limit
from ..common.server import CHANNEL, GrowingChat, Server, metric, send
from ..common.tables import Cell, Table

N_CHATS, CHAT_TOKENS, CHUNK_BYTES = 64, 4000, 65536
SETTLING_S = 0.5
"""Between the arrival of viewers and the begin of a round."""


@dataclass
class Figures:
    """Rounds with one number of viewers: shares of a core of the whole process, and all bytes and frames received."""

    cores: list[float] = field(default_factory=list[float])
    n_bytes: int = 0
    n_frames: int = 0


@dataclass
class Seen:
    """What one viewer received."""

    n_bytes: int = 0
    n_frames: int = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--seconds", type=float, default=5, help="length of a round (5)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per case (3)")
    parser.add_argument("--endpoints", type=int, nargs="+", default=[8, 64], help="(8 64)")
    parser.add_argument("--viewers", type=int, nargs="+", default=[1, 32], help="(1 32)")


def run(options: argparse.Namespace) -> list[Table]:
    """Measure every number of endpoints and viewers."""
    raise_file_limit()
    rows = [row for n in options.endpoints for row in asyncio.run(_with_endpoints(n, options))]
    headings = ("endpoints", "viewers", "frame, kB", "frames/s", "cores, %", "cores per viewer, %")
    return [Table(name="viewers", title="Viewers of the dashboard", headings=headings, rows=tuple(rows))]


async def _with_endpoints(n_endpoints: int, options: argparse.Namespace) -> list[tuple[Cell, ...]]:
    """Return a row for each number of viewers."""
    figures = {n: Figures() for n in (0, *options.viewers)}
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = Server(Path(folder), n_servers=n_endpoints)
        await stack.enter_async_context(server.running())
        timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(
            aiohttp.ClientSession(server.rest, timeout=timeout, connector=connector)
        )
        await _prepare(server, session)
        for _ in range(options.rounds):
            for n_viewers, each in figures.items():
                await _round(server, session, n_viewers, options.seconds, each)
    return list(_rows(n_endpoints, figures, options))


def _rows(
    n_endpoints: int, figures: dict[int, Figures], options: argparse.Namespace
) -> Iterator[tuple[Cell, ...]]:
    without = statistics.median(figures.pop(0).cores)
    for n_viewers, each in figures.items():
        percent = 100 * (statistics.median(each.cores) - without)
        size = each.n_bytes / max(1, each.n_frames) / 1000
        rate = each.n_frames / (n_viewers * options.rounds * options.seconds)
        yield n_endpoints, n_viewers, size, rate, percent, percent / n_viewers


async def _prepare(server: Server, session: aiohttp.ClientSession) -> None:
    """Have endpoints hold chats, and decide on them."""
    chats = [GrowingChat(CHAT_TOKENS, number) for number in range(1, N_CHATS + 1)]
    await server.hold([chat.body() for chat in chats], session)
    async with grpc.aio.insecure_channel(server.address, CHANNEL) as channel:
        for chat in chats:
            await send(channel, chat.body(), CHUNK_BYTES)


async def _round(
    server: Server, session: aiohttp.ClientSession, n_viewers: int, seconds: float, figures: Figures
) -> None:
    async with _watched(session, n_viewers) as seen:
        await asyncio.sleep(SETTLING_S)
        loop = asyncio.get_running_loop()
        before = [(each.n_bytes, each.n_frames) for each in seen]
        begun, cpu = loop.time(), cpu_s(server.process.pid)
        await asyncio.sleep(seconds)
        figures.cores.append((cpu_s(server.process.pid) - cpu) / (loop.time() - begun))
        for each, (n_bytes, n_frames) in zip(seen, before, strict=True):
            figures.n_bytes += each.n_bytes - n_bytes
            figures.n_frames += each.n_frames - n_frames


@asynccontextmanager
async def _watched(session: aiohttp.ClientSession, n_viewers: int) -> AsyncGenerator[list[Seen]]:
    """Have so many viewers connected."""
    seen = [Seen() for _ in range(n_viewers)]
    tasks = [asyncio.create_task(_watch(session, each)) for each in seen]
    try:
        while await metric(session, "kvatlas_live_viewers") != n_viewers:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)
        yield seen
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(session: aiohttp.ClientSession, seen: Seen) -> None:
    async with session.get("/v1/live") as answer:
        async for chunk in answer.content.iter_any():
            seen.n_bytes += len(chunk)
            seen.n_frames += chunk.count(b"\n\n")


BENCHMARK = Benchmark(name="dashboard", about=__doc__, add_options=add_options, run=run)
