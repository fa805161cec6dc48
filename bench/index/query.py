"""`/query` from outside: a running kvatlas beside Dynamo's indexer.

Both follow the same publishers, whose engines hold blocks on GPU and CPU, and are asked for the same prompts in turns, over a
connection that is kept. Before a figure counts, their answers are compared. Dynamo needs
`.venv/bin/python -m pip install --no-deps ai-dynamo-runtime` (217 MB).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from ..common.benchmark import Benchmark
from ..common.machine import version
from ..common.processes import raise_file_limit
from ..common.tables import Cell, Table
from .dynamo import THREADS
from .fleet import HIT, LONG, SHORT, Blocks, Shape, make_blocks, make_fleet
from .loads import FleetLoad
from .publisher import publishing
from .query_servers import (
    Caller,
    Form,
    dynamo_server,
    found_by,
    json_body,
    kvatlas_server,
    msgpack_body,
    until_found,
)

_DYNAMO = "ai-dynamo-runtime"
_OURS, _PACKED, _THEIRS = "kvatlas", "kvatlas, MessagePack", "Dynamo's indexer"
_N_MISSES = 20
_GPU_BLOCKS, _CPU_BLOCKS = 74_000, 328_000
"""Of the whole fleet, so that larger fleets have smaller endpoints."""

_Times = dict[str, dict[str, list[float]]]
"""Kind of prompt -> column -> seconds of each call."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--endpoints", type=int, nargs="+", default=[8, 64], help="sizes of the fleet (8 64)")
    parser.add_argument("--rounds", type=int, default=200, help="calls of each kind (200)")


def run(options: argparse.Namespace) -> list[Table]:
    """Measure each size of the fleet in turn."""
    raise_file_limit()
    if version(_DYNAMO) is None:
        raise SystemExit(f"this needs {_DYNAMO}: pip install --no-deps {_DYNAMO} (217 MB)")
    rows: list[tuple[Cell, ...]] = []
    for n_endpoints in options.endpoints:
        times = asyncio.run(_measure(n_endpoints, options.rounds))
        rows += [(f"{n_endpoints} endpoints, {kind}", *_figures(columns)) for kind, columns in times.items()]
    headings = ("", _OURS, _PACKED, _THEIRS, "kvatlas / Dynamo", "MessagePack / Dynamo")
    return [
        Table(
            name="door",
            title="/query from outside, ms: median (p99)",
            headings=("`/query` from outside, ms: median (p99)", *headings[1:]),
            rows=tuple(rows),
        )
    ]


def _figures(columns: dict[str, list[float]]) -> list[Cell]:
    medians = {name: statistics.median(seconds) for name, seconds in columns.items()}
    shown: list[Cell] = [
        (medians[name] * 1e3, sorted(seconds)[int(len(seconds) * 0.99)] * 1e3)
        for name, seconds in columns.items()
    ]
    return [*shown, *(f"{medians[name] / medians[_THEIRS]:.2f}x" for name in (_OURS, _PACKED))]


async def _measure(n_endpoints: int, rounds: int) -> _Times:
    load = FleetLoad(Shape(n_endpoints, _GPU_BLOCKS // n_endpoints, _CPU_BLOCKS // n_endpoints))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        publisher = stack.enter_context(publishing(load))
        ours, _ = await stack.enter_async_context(kvatlas_server(folder, publisher.addresses))
        theirs, _ = await stack.enter_async_context(
            dynamo_server(folder, publisher.addresses, threads=THREADS)
        )
        publisher.send("warm", n_subscribers=2)
        publisher.send("measured")
        for port in (ours, theirs):
            await until_found(port, load.last_block("measured"), n_endpoints)
        calls: dict[str, tuple[Caller, Form]] = {
            _OURS: (Caller(ours), json_body),
            _PACKED: (Caller(ours), msgpack_body),
            _THEIRS: (Caller(theirs), json_body),
        }
        times = {kind: _asked(kind, prompts, calls, rounds) for kind, prompts in _prompts(load.shape).items()}
        for caller, _ in calls.values():
            caller.close()
        return times


def _prompts(shape: Shape) -> dict[str, list[Blocks]]:
    rng, held = random.Random("misses"), make_fleet(shape).prompts
    return {
        "hit of 30,000 ids": held[HIT],
        "miss of 30,000 ids": [make_blocks(rng, LONG) for _ in range(_N_MISSES)],
        "hit of 8,000 ids": held[f"hit, {SHORT} blocks"],
        "miss of 8,000 ids": [make_blocks(rng, SHORT) for _ in range(_N_MISSES)],
    }


def _asked(
    kind: str, prompts: Sequence[Blocks], calls: dict[str, tuple[Caller, Form]], rounds: int
) -> dict[str, list[float]]:
    """Ask each server in turn, another one first each time.

    Raises:
        SystemExit: the answers differ.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(rounds):
        prompt = prompts[number * 7 % len(prompts)]
        names = [*names[1:], names[0]]
        found: list[object] = []
        for name in names:
            caller, form = calls[name]
            seconds, answer = caller.call(*form(prompt))
            times[name].append(seconds)
            found.append(found_by(answer))
        if any(each != found[0] for each in found):
            raise SystemExit(f"the answers to a {kind} differ: {dict(zip(names, found, strict=True))}")
    return times


BENCHMARK = Benchmark(
    name="query", about=__doc__, add_options=add_options, run=run, distributions=("kvatlas", _DYNAMO)
)
