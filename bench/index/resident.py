"""Memory of whole processes per residency, from outside: a running kvatlas beside Dynamo's indexer.

A process publishes the caches of a fleet on real sockets. Paced, the servers have applied one message of every publisher before the
next ones come; flat out, everything is sent at once. Dynamo's column needs
`.venv/bin/python -m pip install --no-deps ai-dynamo-runtime` (217 MB).
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

from ..common.benchmark import Benchmark
from ..common.machine import version
from ..common.processes import cpu_s, raise_file_limit, rss_bytes
from ..common.tables import Cell, Table
from .dynamo import THREADS
from .fleet import Shape, make_fleet
from .loads import FleetLoad
from .publisher import Phase, Publisher, publishing
from .query_servers import Listening, dynamo_server, kvatlas_server, until_found

_DYNAMO = "ai-dynamo-runtime"
_POLL_S = 0.02
_IDLE_SHARE = 0.1
"""A server that takes less of a core than this has applied what it received."""

_LIMIT_S = 900.0
"""Longest wait for a server to apply everything."""

_SETTLE_S = 3.0
"""Time after the last block was found: for what a server does when it has nothing else to do."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--endpoints", type=int, default=200, help="publishers (200)")
    parser.add_argument("--residencies", type=int, default=10_000_000, help="about how many (10000000)")
    parser.add_argument("--without-dynamo", action="store_true", help="kvatlas alone")


def run(options: argparse.Namespace) -> list[Table]:
    """Measure a paced feed and one that is flat out, with new processes for each."""
    raise_file_limit()
    options.without_dynamo = options.without_dynamo or version(_DYNAMO) is None
    each = options.residencies // options.endpoints
    shape = Shape(options.endpoints, each * 9271 // 50_271, each * 41_000 // 50_271)
    n_residencies = make_fleet(shape).n_residencies
    rows: list[tuple[Cell, ...]] = []
    with publishing(FleetLoad(shape)) as publisher:
        for feed in ("paced", "flat out"):
            grown = asyncio.run(
                _grown(
                    publisher,
                    FleetLoad(shape),
                    without_dynamo=options.without_dynamo,
                    is_paced=feed == "paced",
                )
            )
            ours, theirs = grown["kvatlas"], grown.get("Dynamo's indexer")
            per = [None if each is None else each[1] / n_residencies for each in (ours, theirs)]
            megabytes = [None if each is None else (each[0] + each[1]) / 1e6 for each in (ours, theirs)]
            rows.append((f"{n_residencies:,} residencies, {feed}", *per, *megabytes))
    headings = ("kvatlas, B", "Dynamo's indexer, B", "kvatlas, MB in all", "Dynamo's indexer, MB in all")
    title = "Growth of a whole process per residency, from outside"
    return [Table(name="process", title=title, headings=(title, *headings), rows=tuple(rows))]


async def _grown(
    publisher: Publisher, load: FleetLoad, *, without_dynamo: bool, is_paced: bool
) -> dict[str, tuple[int, int]]:
    """Return the resident bytes of each server before the feed, and by how much they grew."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {"kvatlas": await stack.enter_async_context(kvatlas_server(folder, publisher.addresses))}
        if not without_dynamo:
            servers["Dynamo's indexer"] = await stack.enter_async_context(
                dynamo_server(folder, publisher.addresses, threads=THREADS)
            )
        publisher.send("warm", n_subscribers=len(servers))
        await _until_held(servers.values(), load, "warm")
        before = {name: rss_bytes(server.pid) for name, server in servers.items()}
        if is_paced:
            for _ in publisher.send_rounds("measured"):
                await asyncio.gather(*(_until_idle(server.pid) for server in servers.values()))
        else:
            publisher.send("measured")
        await _until_held(servers.values(), load, "measured")
        return {name: (before[name], rss_bytes(each.pid) - before[name]) for name, each in servers.items()}


async def _until_held(servers: Iterable[Listening], load: FleetLoad, phase: Phase) -> None:
    for server in servers:
        await until_found(server.port, load.last_block(phase), load.n_publishers, limit_s=_LIMIT_S)
    await asyncio.sleep(_SETTLE_S)


async def _until_idle(pid: int) -> None:
    used, before = 1.0, cpu_s(pid)
    while used > _IDLE_SHARE * _POLL_S:
        await asyncio.sleep(_POLL_S)
        used, before = cpu_s(pid) - before, cpu_s(pid)


BENCHMARK = Benchmark(
    name="resident", about=__doc__, add_options=add_options, run=run, distributions=("kvatlas", _DYNAMO)
)
