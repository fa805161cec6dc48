"""Decisions over ext-proc on one core, beside a gRPC server that does nothing and the reference picker.

`no-op` is a server of the gRPC library that reads and sends as many messages and looks at none. `grpc` and `http2` are kvatlas's
ext-proc server on its two transports, with one address for every request. `kvatlas` is `kvatlas serve` with endpoints that
publish events: every request is a chat that is rendered, tokenized, matched and scored; it is the same chat each time, so that
its text is encoded once. Each server runs on one core and h2load (Debian: nghttp2-client) on another, with one connection, as
Envoy has; the servers take turns, and the best round of each counts. A second part compares fleets of several sizes, beside the
reference picker if the environment variable KVATLAS_REFERENCE names the folder of its `picker.py`. A third part sends requests
with wrk through a real Envoy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from pathlib import Path

import aiohttp

from ..common.benchmark import Benchmark
from ..common.fleet_sizes import add_fleet_sizes
from ..common.processes import child, raise_file_limit, receive
from ..common.server import Server
from ..common.tables import Cell, Table
from . import extproc_envoy, extproc_fleet, reference
from .extproc_load import MODES, SERVER_CPU, Running, best_of, chat, conversation, pin
from .extproc_servers import SERVERS, serve

CONCURRENT_REQUESTS = 64


@contextlib.contextmanager
def beside() -> Generator[dict[str, Running]]:
    """Run the servers beside which kvatlas is measured."""
    with contextlib.ExitStack() as stack:
        running: dict[str, Running] = {}
        for name in SERVERS:
            pipe = stack.enter_context(child(serve, name, SERVER_CPU))
            stack.callback(pipe.send, None)
            port, pid = receive(pipe)
            running[name] = Running(port, pid)
        yield running


@contextlib.asynccontextmanager
async def kvatlas(bodies: Sequence[bytes]) -> AsyncGenerator[Running]:
    """Run `kvatlas serve` on one core, and engines that hold the chats."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        async with server.running(), aiohttp.ClientSession(server.rest) as session:
            pin(server.process.pid, SERVER_CPU)
            await server.hold(bodies, session)
            yield Running(int(server.address.rpartition(":")[2]), server.process.pid)


async def alone(options: argparse.Namespace, others: Mapping[str, Running], ours: Running) -> Table:
    """Measure every server alone: one row per mode and size of body."""
    servers = {**others, "kvatlas": ours}
    rows: list[tuple[Cell, ...]] = []
    for n_bytes in options.body_bytes:
        for mode in MODES:
            best = await best_of(
                servers,
                conversation(mode, chat(n_bytes)),
                rounds=options.rounds,
                seconds=options.seconds,
                n_streams=CONCURRENT_REQUESTS,
            )
            cells = (cell for each in best.values() for cell in (round(each.per_second), each.cpu_us))
            rows.append((f"`{mode}`", n_bytes, *cells))
    columns = (column for name in servers for column in (name, "us"))
    headings = ("mode", "bytes of body", *columns)
    return Table(name="alone", title="Requests per second of one core", headings=headings, rows=tuple(rows))


async def _measure(options: argparse.Namespace) -> list[Table]:
    bodies = [chat(n_bytes) for n_bytes in options.body_bytes]
    with beside() as others:
        async with kvatlas(bodies) as ours:
            tables = [await alone(options, others, ours)]
            if not options.without_envoy:
                tables.append(await extproc_envoy.through_envoy(options, ours))
        tables += await extproc_fleet.by_size(options, others["no-op"])
    return tables


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement (4)")
    parser.add_argument("--rounds", type=int, default=3, help="the best of which counts (3)")
    parser.add_argument(
        "--body-bytes",
        type=int,
        nargs="*",
        default=[1000, 64_000],
        help="of the servers alone and through Envoy (1000 64000)",
    )
    add_fleet_sizes(parser)
    parser.add_argument("--without-envoy", action="store_true", help="do not measure through Envoy")
    parser.add_argument(
        "--without-reference", action="store_true", help="fleets without the reference picker"
    )


def run(options: argparse.Namespace) -> list[Table]:
    """Measure all servers."""
    needed = {"h2load": "nghttp2-client", "taskset": "util-linux"}
    if not options.without_envoy:
        needed["wrk"] = "wrk"
    for tool, package in needed.items():
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is missing: apt-get install {package}")
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("the server and its client need a core each; this machine has one")
    if reference.folder() is None and not options.without_reference:
        print(f"the reference picker is absent, {reference.VARIABLE} names no folder: measuring without it")
        options.without_reference = True
    raise_file_limit()
    return asyncio.run(_measure(options))


BENCHMARK = Benchmark(name="extproc", about=__doc__, add_options=add_options, run=run)
