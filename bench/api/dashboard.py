"""CPU time of a running `kvatlas serve` for each viewer of the dashboard.

Use: python -m bench.dashboard [--seconds 10] [--rounds 3] [--endpoints 8 64] [--viewers 1 8 32]

The endpoints publish events and hold a chat each, and chats have been routed, so that frames are as full as they get. A viewer
is a client of `/v1/live` that reads what comes. Rounds with so many viewers take turns with rounds without any; what the process
uses more than in those is the viewers'. The process' CPU time is the kernel's, in nanoseconds, over all its threads.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import grpc.aio

from kvatlas.api.tokenization.tokenizer import load_tokenizer

from ..common.conversations import model_folder
from ..common.processes import raise_file_limit
from .request_server import CHANNEL, Server, Talk, ask, metric

N_CHATS, CHAT_TOKENS, CHUNK_BYTES = 64, 4000, 65536
SETTLING_S = 0.5
"""Between the coming of viewers and the begin of a round."""


@dataclass
class Figures:
    """Rounds with one number of viewers: shares of a core of the whole process, and bytes that one viewer got."""

    cores: list[float] = field(default_factory=list[float])
    n_bytes: int = 0
    n_frames: int = 0


@dataclass
class Seen:
    """What one viewer got."""

    n_bytes: int = 0
    n_frames: int = 0


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, all threads."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9


async def watch(session: aiohttp.ClientSession, seen: Seen) -> None:
    """One viewer."""
    async with session.get("/v1/live") as answer:
        async for chunk in answer.content.iter_any():
            seen.n_bytes += len(chunk)
            seen.n_frames += chunk.count(b"\n\n")


@asynccontextmanager
async def watched(session: aiohttp.ClientSession, n_viewers: int) -> AsyncGenerator[list[Seen]]:
    """So many viewers, there."""
    seen = [Seen() for _ in range(n_viewers)]
    tasks = [asyncio.create_task(watch(session, each)) for each in seen]
    try:
        while await metric(session, "kvatlas_live_viewers") != n_viewers:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)
        yield seen
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measure(
    server: Server, session: aiohttp.ClientSession, n_viewers: int, seconds: float, figures: Figures
) -> None:
    """One round."""
    async with watched(session, n_viewers) as seen:
        await asyncio.sleep(SETTLING_S)
        loop = asyncio.get_running_loop()
        before = [(each.n_bytes, each.n_frames) for each in seen]
        begun, cpu = loop.time(), cpu_s(server.process.pid)
        await asyncio.sleep(seconds)
        figures.cores.append((cpu_s(server.process.pid) - cpu) / (loop.time() - begun))
        for each, (n_bytes, n_frames) in zip(seen, before, strict=True):
            figures.n_bytes += each.n_bytes - n_bytes
            figures.n_frames += each.n_frames - n_frames


async def prepare(server: Server, session: aiohttp.ClientSession) -> None:
    """Chats that endpoints hold, and decisions on them."""
    tokenizer = load_tokenizer(model_folder())
    talks = [Talk(CHAT_TOKENS, number) for number in range(1, N_CHATS + 1)]
    n_blocks = sum(server.hold(talk.body(), number, tokenizer) for number, talk in enumerate(talks))
    while await metric(session, r"kvatlas_residencies\{.*\}") < n_blocks:  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.1)
    async with grpc.aio.insecure_channel(server.address, CHANNEL) as channel:
        for talk in talks:
            await ask(channel, talk.body(), CHUNK_BYTES)


async def bench(n_endpoints: int, viewers: list[int], seconds: float, rounds: int) -> None:
    """Prints a line for each number of viewers."""
    figures = {n: Figures() for n in (0, *viewers)}
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = Server(Path(folder), n_servers=n_endpoints)
        await stack.enter_async_context(server.running())
        timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(
            aiohttp.ClientSession(server.rest, timeout=timeout, connector=connector)
        )
        await prepare(server, session)
        for _ in range(rounds):
            for n_viewers, each in figures.items():
                await measure(server, session, n_viewers, seconds, each)
    without = statistics.median(figures.pop(0).cores)
    for n_viewers, each in figures.items():
        cores = statistics.median(each.cores) - without
        size = each.n_bytes / max(1, each.n_frames) / 1000
        rate = each.n_frames / (n_viewers * rounds * seconds)
        print(
            f"| {n_endpoints} | {n_viewers} | {size:.0f} kB | {rate:.2f} | {cores:.2%} | {cores / n_viewers:.2%} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--endpoints", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--viewers", type=int, nargs="+", default=[1, 8, 32])
    given = parser.parse_args()
    raise_file_limit()
    print("| endpoints | viewers | frame | frames/s | cores | cores a viewer |")
    print("|---|---|---|---|---|---|")
    for n_endpoints in given.endpoints:
        asyncio.run(bench(n_endpoints, given.viewers, given.seconds, given.rounds))


if __name__ == "__main__":
    main()
