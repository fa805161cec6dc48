"""Chunks of streamed responses: CPU time, added latency, memory per stream.

Each chunk is sent when it is due. `chunkload` is the gateway, on two connections: it comes with the reference picker (see reference.py) and writes one answer of
250-byte chunks per stream. It has one core, and the server another one; every case is measured once in each round, one after the
other. CPU time is that of the whole server, with what its requests cost; the deciding thread is that of kvatlas's event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from ..common.benchmark import Benchmark
from ..common.processes import cpu_s, rss_bytes
from ..common.server import Server
from ..common.tables import Cell, Table
from . import reference
from .extproc_load import CLIENT_CPU, HOST, SERVER_CPU, Running, pin

N_STREAMS, N_CONNECTIONS = 512, 2
"""Open responses at once, and connections: those of a gateway with two threads."""

OVER_GRPC = "kvatlas over grpc.aio"

SETTLE_S = 2.0
"""Time after the last chunk, in which what streams held is freed."""

Start = Callable[[], AbstractAsyncContextManager[Running]]


class Said(msgspec.Struct):
    """What `chunkload` prints: chunks, chunks per second, added latency in milliseconds, streams that came up short."""

    n: int
    rate: float
    p50: float
    p99: float
    short: int


@dataclass(frozen=True)
class Round:
    """One measurement: CPU time per chunk of the process and of its main thread, and what the client saw."""

    cpu_us: float
    main_us: float
    said: Said


def thread_cpu_s(pid: int) -> float:
    """Return the CPU time of the main thread of a process."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


@asynccontextmanager
async def kvatlas(*, transport: str, tls: bool) -> AsyncGenerator[Running]:
    """Run `kvatlas serve` on one core."""
    sections: dict[str, dict[str, object]] = {
        "extProc": {"transport": transport},
        "server": {"tls": {"selfSigned": tls, "http": False}},
    }
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), sections=sections)
        async with server.running():
            pin(server.process.pid, SERVER_CPU)
            yield Running(int(server.address.rpartition(":")[2]), server.process.pid)


async def load(running: Running, binary: Path, options: Sequence[str]) -> Said:
    """Run `chunkload` once.

    Raises:
        SystemExit: a stream failed.
    """
    address = f"{HOST}:{running.port}"
    client = await asyncio.create_subprocess_exec(
        *("taskset", "--cpu-list", str(CLIENT_CPU), str(binary), "-addr", address, *options),
        stdout=asyncio.subprocess.PIPE,
    )
    lines = (await client.communicate())[0].decode().splitlines()
    said = msgspec.json.decode(lines[-1], type=Said)
    if said.short or len(lines) > 1:
        raise SystemExit(f"chunkload: {said.short} streams came up short: {lines[:3]}")
    return said


def shape(n_streams: int, per_second: float, seconds: float, *, tls: bool) -> tuple[str, ...]:
    """Return the options of `chunkload` for so many chunks per second of all streams together."""
    rate = per_second / n_streams
    numbers = {
        "streams": n_streams,
        "conns": N_CONNECTIONS,
        "rate": rate,
        "chunks": max(2, int(rate * seconds)),
    }
    return (*(f"-{name}={value}" for name, value in numbers.items()), *(["-tls"] if tls else []))


async def measured(running: Running, binary: Path, options: Sequence[str]) -> Round:
    """Measure one round of one case."""
    cpu, main = cpu_s(running.pid), thread_cpu_s(running.pid)
    said = await load(running, binary, options)
    cpu, main = cpu_s(running.pid) - cpu, thread_cpu_s(running.pid) - main
    return Round(cpu / said.n * 1e6, main / said.n * 1e6, said)


async def remembered(running: Running, binary: Path, options: Sequence[str]) -> tuple[float, float]:
    """Return resident memory over that of the idle server in MB: the most while the streams are open, and after them."""
    idle, most = rss_bytes(running.pid), 0
    loading = asyncio.create_task(load(running, binary, options))
    while not loading.done():
        await asyncio.wait([loading], timeout=0.2)
        most = max(most, rss_bytes(running.pid))
    await loading
    await asyncio.sleep(SETTLE_S)
    return (most - idle) / 1e6, (rss_bytes(running.pid) - idle) / 1e6


async def _measure(options: argparse.Namespace, where: Path) -> list[Table]:
    process = await asyncio.create_subprocess_exec(str(where / "get.sh"), stdout=asyncio.subprocess.PIPE)
    binary = Path((await process.communicate())[0].decode().strip()) / "chunkload"
    cases: dict[str, tuple[Start, bool]] = {
        "kvatlas": (partial(kvatlas, transport="http2", tls=False), False),
        "kvatlas with TLS": (partial(kvatlas, transport="http2", tls=True), True),
        OVER_GRPC: (partial(kvatlas, transport="grpc", tls=False), False),
        "reference": (partial(reference.reference, where, 8), False),
    }
    rounds: dict[tuple[float, str], list[Round]] = {}
    memory: dict[str, tuple[float, float]] = {}
    async with contextlib.AsyncExitStack() as stack:
        for name, (start, tls) in cases.items():
            if name == OVER_GRPC:  # cancels some of thousands of streams that open at once
                continue
            async with start() as fresh:
                streams = shape(options.streams, options.streams, options.seconds, tls=tls)
                memory[name] = await remembered(fresh, binary, streams)
        running = {
            name: (await stack.enter_async_context(start()), tls) for name, (start, tls) in cases.items()
        }
        for _ in range(options.rounds):
            for per_second in options.rates:
                for name, (server, tls) in running.items():
                    sent = shape(N_STREAMS, per_second, options.seconds, tls=tls)
                    rounds.setdefault((per_second, name), []).append(await measured(server, binary, sent))
    return [
        Table(
            name="chunks",
            title="chunks due a second",
            headings=("chunks due a second", "server", "sent a second", "CPU, us", "of it deciding, us", "added, ms: median (p99)"),
            rows=tuple((per_second, name, *_figures(each, name)) for (per_second, name), each in rounds.items()),
        ),
        Table(
            name="streams",
            title=f"{options.streams} open streams, one chunk a second each",
            headings=("server", "resident over idle, MB", "after them, MB"),
            rows=tuple((name, *each) for name, each in memory.items()),
        ),
    ]  # fmt: skip


def _figures(rounds: Sequence[Round], name: str) -> tuple[Cell, ...]:
    def median(value: Callable[[Round], float]) -> float:
        return statistics.median(map(value, rounds))

    return (
        round(median(lambda each: each.said.rate)),
        median(lambda each: each.cpu_us),
        median(lambda each: each.main_us) if name.startswith("kvatlas") else None,
        (median(lambda each: each.said.p50), median(lambda each: each.said.p99)),
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[2560, 10_240, 20_480, 40_960], help="chunks due a second (2560 ...)"
    )  # fmt: skip
    parser.add_argument("--streams", type=int, default=8000, help="open streams of the second table (8000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of one measurement (10)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of a case (3)")


def run(options: argparse.Namespace) -> list[Table]:
    """Measure every case."""
    where = reference.folder()
    if where is None or (os.cpu_count() or 1) < 2:
        raise SystemExit(
            f"needs two cores, and {reference.VARIABLE}, the folder of the reference picker with its chunkload"
        )
    return asyncio.run(_measure(options, where))


BENCHMARK = Benchmark(name="chunks", about=__doc__, add_options=add_options, run=run, has_tables=False)
