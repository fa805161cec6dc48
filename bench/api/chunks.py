"""Chunks of streamed responses: CPU time, added latency, memory per stream, decisions beside them.

Each chunk is sent when it is due. The first table is of `chunkload`, a gateway in Go on two connections: it comes with the
reference picker (see reference.py) and writes one response of 250-byte chunks per stream. The other ones are of our own gateway
(native/chunk_gateway.cpp), which can send more. A gateway has one core, and the server another one. *echo* is a
server that does nothing but answer chunks: what it shows is what the gateway and the machine take.

CPU time is that of the whole server; what 512 requests with two chunks each take is measured before and subtracted, but in the
column *with requests*. The
deciding thread is that of kvatlas's event loop. Latency is in milliseconds, the median with the 99th percentile.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kvatlas.configs.listeners import ExtProcConfig

from ..common.benchmark import Benchmark
from ..common.processes import cpu_s, rss_bytes
from ..common.server import Server
from ..common.tables import Cell, Table
from . import reference
from .chunk_clients import N_STREAMS, Programs, Said, compiled, echo, load, shape, stream
from .extproc_load import SERVER_CPU, Running, pin

OVER_GRPC = "kvatlas over grpc.aio"
OVER_GRPC_AT_MOST = 2560.0
"""Chunks a second that it can pass on half a core."""

SETTLE_S = 2.0
"""Time after the last chunk, in which what streams held is freed."""

N_THREADS = (1, 2, 4)
BUSY_RATE, FULL_RATE = 100_000.0, 400_000.0
"""Chunks a second: one core passes the first; the second is more than it can."""

N_SHORT, N_LONG, LONG_BYTES = 100.0, 2.0, 420_000
"""Requests a second beside chunks; the long ones have some 100,000 tokens."""

Row = tuple[Cell, ...]
Start = Callable[[], AbstractAsyncContextManager[Running]]


@dataclass(frozen=True)
class Spent:
    """CPU time in seconds: of the process, and of its main thread."""

    all: float
    main: float

    @classmethod
    def by(cls, pid: int) -> Spent:
        """Return what a process has spent so far."""
        main = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]
        return cls(cpu_s(pid), int(main) / 1e9)

    def since(self, before: Spent) -> Spent:
        """Return the difference."""
        return Spent(self.all - before.all, self.main - before.main)


@asynccontextmanager
async def kvatlas(
    *, transport: str = "http2", tls: bool = False, threads: int | str = "auto"
) -> AsyncGenerator[Running]:
    """Run `kvatlas serve` on one core."""
    sections: dict[str, dict[str, object]] = {
        "extProc": {"transport": transport, "threads": threads},
        "server": {"tls": {"selfSigned": tls, "http": False}},
    }
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), sections=sections)
        async with server.running():
            pin(server.process.pid, SERVER_CPU)
            yield Running(int(server.address.rpartition(":")[2]), server.process.pid)


async def measured(running: Running, binary: Path, options: tuple[str, ...]) -> tuple[Said, Spent]:
    """Run `chunkload` once; return its output and the CPU time of the server."""
    before = Spent.by(running.pid)
    said = await load(running, binary, options)
    return said, Spent.by(running.pid).since(before)


async def remembered(running: Running, binary: Path, options: tuple[str, ...]) -> tuple[float, float]:
    """Return resident memory over that of the idle server in MB: the most while the streams are open, and after them."""
    idle, most = rss_bytes(running.pid), 0
    loading = asyncio.create_task(load(running, binary, options))
    while not loading.done():
        await asyncio.wait([loading], timeout=0.2)
        most = max(most, rss_bytes(running.pid))
    await loading
    await asyncio.sleep(SETTLE_S)
    return (most - idle) / 1e6, (rss_bytes(running.pid) - idle) / 1e6


async def passing(
    servers: Mapping[str, tuple[Start, bool]], binary: Path, options: argparse.Namespace
) -> list[Row]:
    """Measure CPU time and latency of each server, those of one rate one after the other."""
    rows: list[Row] = []
    async with contextlib.AsyncExitStack() as stack:
        running = {
            name: (await stack.enter_async_context(start()), tls) for name, (start, tls) in servers.items()
        }
        requests: dict[str, tuple[Said, Spent]] = {}
        for name, (server, tls) in running.items():
            few = shape(N_STREAMS, N_STREAMS, 2, tls=tls)
            await load(server, binary, few)  # the first ones import, allocate and learn
            requests[name] = await measured(server, binary, few)
        for per_second in options.rates:
            for name, (server, tls) in running.items():
                if name == OVER_GRPC and per_second > OVER_GRPC_AT_MOST:
                    continue
                sent = shape(N_STREAMS, per_second, options.seconds, tls=tls)
                said, spent = await measured(server, binary, sent)
                beside, before = requests[name]
                chunks, n = spent.since(before), max(1, said.n - beside.n)
                main = chunks.main / n * 1e6 if name.startswith("kvatlas") else None
                cpu_us, with_requests_us = chunks.all / n * 1e6, spent.all / said.n * 1e6
                times = (said.p50, said.p99)
                rows.append((int(per_second), name, round(said.rate), cpu_us, with_requests_us, main, times))
        rows += [
            ("a request", name, None, spent.all / N_STREAMS * 1e6, None, _main(name, spent), None)
            for name, (_, spent) in requests.items()
        ]
    return rows


def _main(name: str, spent: Spent) -> Cell:
    return spent.main / N_STREAMS * 1e6 if name.startswith("kvatlas") else None


async def limits(
    start: Start, programs: Programs, rates: Sequence[float], seconds: float
) -> list[tuple[float, Row]]:
    """Measure each rate of our gateway, which sends more than `chunkload` can; returns it with the figures."""
    rows: list[tuple[float, Row]] = []
    async with start() as running:
        await stream(running, programs, N_STREAMS, 2)
        for per_second in rates:
            before = cpu_s(running.pid)
            found = await stream(running, programs, per_second, seconds)
            cpu_us = (cpu_s(running.pid) - before) / found.chunks.n * 1e6
            times = (found.chunks.p50, found.chunks.p99)
            rows.append((per_second, (round(found.rate), cpu_us, times, found.chunks.missing)))
    return rows


async def decided(programs: Programs, options: argparse.Namespace) -> list[Row]:
    """Measure decisions while threads pass chunks."""
    rows: list[Row] = []
    async with kvatlas() as running:
        for per_second, n_long in (
            (N_STREAMS, 0.0),
            (BUSY_RATE, 0.0),
            (BUSY_RATE, N_LONG),
            (FULL_RATE, N_LONG),
        ):
            found = await stream(
                running,
                programs,
                per_second,
                options.seconds / 2,
                decisions=(N_SHORT, n_long),
                n_long_bytes=LONG_BYTES,
            )
            parts = (found.chunks, found.short, found.long)
            chunks, short, long = ((each.p50, each.p99) if each.n else None for each in parts)
            missing = sum(each.missing for each in parts)
            rows.append((int(per_second), int(n_long), round(found.rate), chunks, short, long, missing))
    return rows


async def _measure(options: argparse.Namespace, where: Path) -> list[Table]:
    process = await asyncio.create_subprocess_exec(str(where / "get.sh"), stdout=asyncio.subprocess.PIPE)
    binary = Path((await process.communicate())[0].decode().strip()) / "chunkload"
    with tempfile.TemporaryDirectory() as folder:
        programs = compiled(Path(folder))
        plain, with_tls = kvatlas, partial(kvatlas, tls=True)
        servers: dict[str, tuple[Start, bool]] = {
            "kvatlas": (plain, False),
            "kvatlas with TLS": (with_tls, True),
            OVER_GRPC: (partial(kvatlas, transport="grpc"), False),
            "reference": (partial(reference.reference, where, 8), False),
            "echo": (partial(echo, programs), False),
        }
        passed = await passing(servers, binary, options)
        seconds = options.seconds / 2
        high: list[Row] = [
            (int(per_second), name, *figures)
            for name, start in (("kvatlas", plain), ("echo", servers["echo"][0]))
            for per_second, figures in await limits(start, programs, options.high_rates, seconds)
        ]
        threads: list[Row] = [
            (n, *figures)
            for n in N_THREADS
            for _, figures in await limits(partial(kvatlas, threads=n), programs, [BUSY_RATE], seconds)
        ]
        beside = await decided(programs, options)
        memory: list[Row] = []
        for name in ("kvatlas", "kvatlas with TLS", "reference"):
            start, tls = servers[name]
            async with start() as fresh:
                sent = shape(options.streams, options.streams, options.seconds, tls=tls)
                memory.append((name, *await remembered(fresh, binary, sent)))
    return [
        Table(
            name="settings",
            title="setting of kvatlas in all runs",
            headings=("setting", "value"),
            rows=(("`extProc.gather`, ms", ExtProcConfig().gather * 1000),),
        ),
        Table(
            name="passing",
            title="chunks due a second, of chunkload",
            headings=("chunks due a second", "server", "sent a second", "CPU, us", "with requests, us", "deciding, us", "added, ms"),
            rows=tuple(passed),
        ),
        Table(
            name="limits",
            title="chunks due a second, of our gateway",
            headings=("chunks due a second", "server", "sent a second", "CPU, us", "added, ms", "lost"),
            rows=tuple(high),
        ),
        Table(
            name="threads",
            title=f"{BUSY_RATE:,.0f} chunks a second, all threads on one core",
            headings=("threads", "sent a second", "CPU, us", "added, ms", "lost"),
            rows=tuple(threads),
        ),
        Table(
            name="overload",
            title=f"chunks, and {N_SHORT:.0f} decisions a second beside them, all threads on one core",
            headings=("chunks due a second", "long prompts a second", "sent a second", "chunk, ms", "decision, ms", "long prompt, ms", "lost"),
            rows=tuple(beside),
        ),
        Table(
            name="streams",
            title=f"{options.streams:,} open streams, one chunk a second each",
            headings=("server", "resident over idle, MB", "after them, MB"),
            rows=tuple(memory),
        ),
    ]  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[2560, 10_240, 20_480, 40_960], help="chunks due a second of chunkload (2560 ...)"
    )  # fmt: skip
    parser.add_argument(
        "--high-rates", type=float, nargs="+", default=[20_480, 50_000, 100_000, 200_000], help="chunks due a second of our gateway (20480 ...)"
    )  # fmt: skip
    parser.add_argument("--streams", type=int, default=8000, help="open streams of the last table (8000)")
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="length of one measurement of chunkload (8)"
    )


def run(options: argparse.Namespace) -> list[Table]:
    """Measure every case."""
    where = reference.folder()
    if where is None or (os.cpu_count() or 1) < 2:
        raise SystemExit(
            f"needs two cores, and {reference.VARIABLE}, the folder of the reference picker with its chunkload"
        )
    return asyncio.run(_measure(options, where))


BENCHMARK = Benchmark(name="chunks", about=__doc__, add_options=add_options, run=run)
