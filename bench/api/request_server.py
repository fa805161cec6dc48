"""A running server under growing chats at a fixed rate: CPU time and latency.

The server follows publishers, one per endpoint, that hold the conversations' blocks. Requests come over ext-proc as Envoy sends them: full
duplex, the body in chunks, the whole body back. Each request is its conversation with one turn more than last time. They
are sent at their times, whether earlier ones are answered or not. CPU time is the server's own figure.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc.aio

from ..common.benchmark import Benchmark
from ..common.fleet_sizes import add_fleet_sizes
from ..common.processes import raise_file_limit
from ..common.server import CHANNEL, GrowingChat, Server, metric, send
from ..common.tables import Cell, Table

_CPU, _TOKENS, _USABLE = (
    "process_cpu_seconds_total",
    "kvatlas_prompt_tokens_total",
    "kvatlas_usable_prefix_tokens_total",
)
_WITHOUT_PREFIX = r"kvatlas_prompts_without_prefix_total\{.*\}"


@dataclass(frozen=True)
class Figures:
    """One run; times in seconds."""

    n_requests: int
    n_tokens: float
    usable: float
    without_prefix: float
    seconds: float
    cpu_s: float
    latencies: Sequence[float]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_fleet_sizes(parser)
    parser.add_argument("--rate", type=float, default=100, help="requests per second (100)")
    parser.add_argument("--tokens", type=int, default=100_000, help="per conversation, at first (100000)")
    parser.add_argument("--seconds", type=float, default=10, help="length of the run (10)")
    parser.add_argument("--conversations", type=int, default=50, help="how many take turns (50)")
    parser.add_argument("--chunk-kib", type=int, default=64, help="size of the body's chunks (64)")


def run(options: argparse.Namespace) -> list[Table]:
    """Measure one server after the other."""
    raise_file_limit()
    figures = [asyncio.run(_with_server(n_endpoints, options)) for n_endpoints in options.endpoints]
    headings = ("", *(f"{n:,} endpoints" for n in options.endpoints))
    columns = [_column(each) for each in figures]
    rows = tuple((name, *(column[name] for column in columns)) for name in columns[0])
    return [Table(name="server", title="A running server", headings=headings, rows=rows)]


def _column(figures: Figures) -> dict[str, Cell]:
    n_requests, cpu_s, seconds = figures.n_requests, figures.cpu_s, figures.seconds
    ordered = sorted(figures.latencies)
    p99 = ordered[int(n_requests * 0.99)]
    return {
        "requests per second": n_requests / seconds,
        "tokens per request": round(figures.n_tokens / n_requests),
        "usable prefix, % of the tokens": 100 * figures.usable / figures.n_tokens,
        "requests routed without prefix": int(figures.without_prefix),
        "cores of the server": cpu_s / seconds,
        "CPU time per request, ms": cpu_s / n_requests * 1e3,
        "latency, ms: median (p99)": (statistics.median(ordered) * 1e3, p99 * 1e3),
    }


async def _with_server(n_endpoints: int, options: argparse.Namespace) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), n_servers=n_endpoints)
        async with (
            server.running(),
            aiohttp.ClientSession(server.rest) as session,
            grpc.aio.insecure_channel(server.address, CHANNEL) as channel,
        ):
            chats = [GrowingChat(options.tokens, number) for number in range(1, options.conversations + 1)]
            await server.hold([chat.body() for chat in chats], session)
            return await _measure(chats, session, channel, options)


async def _measure(
    chats: Sequence[GrowingChat],
    session: aiohttp.ClientSession,
    channel: grpc.aio.Channel,
    options: argparse.Namespace,
) -> Figures:
    chunk_bytes = options.chunk_kib * 1024
    for chat in chats:
        await send(channel, chat.body(), chunk_bytes)
    before = [await metric(session, name) for name in (_CPU, _TOKENS, _USABLE)]
    begin = time.perf_counter()
    n_requests = int(options.rate * options.seconds)
    sent: list[asyncio.Task[float]] = []
    for number in range(n_requests):
        await asyncio.sleep(max(0.0, begin + number / options.rate - time.perf_counter()))
        body = chats[number % len(chats)].body()
        sent.append(asyncio.create_task(send(channel, body, chunk_bytes)))
    latencies = await asyncio.gather(*sent)
    seconds = time.perf_counter() - begin
    after = [await metric(session, name) for name in (_CPU, _TOKENS, _USABLE)]
    cpu_s, n_tokens, usable = (new - old for new, old in zip(after, before, strict=True))
    without = await metric(session, _WITHOUT_PREFIX)
    return Figures(n_requests, n_tokens, usable, without, seconds, cpu_s, latencies)


BENCHMARK = Benchmark(name="request-server", about=__doc__, add_options=add_options, run=run)
