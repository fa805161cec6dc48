"""Snapshots: size, time to write and to load, and the longest pause of the event loop.

Servers have the cache sizes of the index benchmark's fleet, filled by events as vLLM sends them: stores with tokens on the GPU,
then the same blocks without tokens on the CPU, both bounded. One process fills and writes, a fresh one loads and compares. Then
`kvatlas serve` is started with the snapshot and without, up to its log line that it is ready. The servers are configured
without event addresses, so that nothing is fetched meanwhile.

Times are CPU time, which does not count other work on the machine, unless the column says `wall`. `one rank` is the longest
that the loop was busy with one rank, `pause` the longest that it did not come round while a snapshot was written, `ready`
counts from the start of the command.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, get_args

import msgspec
from prometheus_client import CollectorRegistry

from kvatlas.app.app import App
from kvatlas.configs.loader import load_config
from kvatlas.events.model import BlockStored, EngineHash, MediumName
from kvatlas.fleet.metrics import SnapshotMetrics
from kvatlas.fleet.rank import Rank
from kvatlas.fleet.roster import wanted_endpoints
from kvatlas.fleet.snapshots import Snapshots
from kvatlas.indexer.factory import CoreName
from kvatlas.indexer.tiers import TierId

from ..common.benchmark import Benchmark
from ..common.tables import Cell, Table

GPU_BLOCKS, CPU_BLOCKS = 9_271, 41_000
"""Cache sizes of one server, as in `bench/index/fleet.py`."""

BLOCK_SIZE = 16
PROMPT_BLOCKS = 400
TICK_S = 0.001
Result = TypeVar("Result")


@dataclass(frozen=True)
class Written:
    """Cost of writing; `rank_ms` is CPU time, the rest wall time."""

    residencies: dict[str, int]
    n_bytes: int
    seconds: float
    rank_ms: float
    pause_ms: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    sizes = [1_000_000, 10_000_000]
    parser.add_argument("--residencies", type=int, nargs="+", default=sizes, help="(1000000 10000000)")
    parser.add_argument("--core", choices=get_args(CoreName), default="native", help="of the index (native)")


def run(options: argparse.Namespace) -> list[Table]:
    """Measure snapshots of every size."""
    os.environ["KVATLAS_INDEX"] = options.core
    headings = (
        "residencies",
        "servers",
        "MB",
        "bytes each",
        "write, s wall",
        "one rank, ms",
        "pause, ms wall",
    )
    times = ("load, s", "ready, s", "without snapshot, s")
    rows = tuple(row(n_residencies) for n_residencies in options.residencies)
    return [Table(name="sizes", title="Snapshots", headings=(*headings, *times), rows=rows)]


def row(n_residencies: int) -> tuple[Cell, ...]:
    """Return one row of the table.

    Raises:
        SystemExit: what was loaded is not what was written.
    """
    n_servers = max(1, round(n_residencies / (GPU_BLOCKS + CPU_BLOCKS)))
    with tempfile.TemporaryDirectory() as folder:
        config = write_config(Path(folder), n_servers)
        written = in_fresh_process(fill_and_write, config)
        load_s, loaded = in_fresh_process(load, config)
        if loaded != written.residencies:
            raise SystemExit(f"loaded {sum(loaded.values())} of {sum(written.residencies.values())} blocks")
        ready_s = start_to_ready(config)
        snapshot_of(config).unlink()
        without_s = start_to_ready(config)
    n_held = sum(loaded.values())
    sizes = (n_held, n_servers, written.n_bytes / 1e6, written.n_bytes / n_held)
    return (*sizes, written.seconds, written.rank_ms, written.pause_ms, load_s, ready_s, without_s)


def write_config(folder: Path, n_servers: int) -> Path:
    """Write a configuration of that many servers, none of which is contacted."""
    config = folder / "kvatlas.yaml"
    static = [
        {
            "name": f"s{number}",
            "address": f"10.0.{number // 250}.{number % 250 + 1}:8000",
            "events": "",
            "metrics": "",
        }
        for number in range(n_servers)
    ]
    document = {
        "apiVersion": "kvatlas/v1",
        "kind": "KVAtlasConfig",
        "server": dict.fromkeys(("extProc", "health", "rest", "metrics"), ""),
        "endpoints": {"static": static},
        "tiers": [
            {"name": "gpu", "media": ["GPU"], "lruCapacityPerServer": GPU_BLOCKS},
            {"name": "cpu", "media": ["CPU"], "lruCapacityPerServer": CPU_BLOCKS},
        ],
        "snapshot": {"file": "kvatlas.snapshot", "interval": "1h", "maxAge": "2h"},
    }
    config.write_bytes(msgspec.yaml.encode(document))
    return config


def snapshot_of(config: Path) -> Path:
    """Return the file of the snapshot."""
    return config.with_name("kvatlas.snapshot")


def in_fresh_process(task: Callable[[Path], Result], config: Path) -> Result:
    """Call `task(config)` in a process that has done nothing else."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(task, config).result()


def fill_and_write(config: Path) -> Written:
    """Fill the index of a process, and write its snapshot."""
    return asyncio.run(write_filled(config))


async def write_filled(path: Path) -> Written:
    """See `fill_and_write`."""
    config = load_config(path)
    app = App(config)
    await app.start()
    for number, endpoint in enumerate(app.fleet):
        fill(app, endpoint.name, seed=number)
    rank_ms = max(timed_dump(rank) for endpoint in app.fleet for rank in endpoint.ranks)
    snapshots = Snapshots(
        config.snapshot,
        fleet=app.fleet,
        models=config.model.names,
        wanted=wanted_endpoints(config).get,
        metrics=SnapshotMetrics(CollectorRegistry()),
    )
    is_done = asyncio.Event()
    pause = asyncio.create_task(longest_pause(is_done))
    begin = time.perf_counter()
    await snapshots.write()
    seconds = time.perf_counter() - begin
    is_done.set()
    pause_ms = await pause * 1e3
    residencies = residencies_of(app)
    await app.stop(grace_s=0)
    return Written(residencies, snapshot_of(path).stat().st_size, seconds, rank_ms, pause_ms)


def fill(app: App, name: str, *, seed: int) -> None:
    """Store as many prompts as the CPU cache holds, through the endpoint's ledgers."""
    rng = random.Random(seed)
    for _ in range(0, CPU_BLOCKS, PROMPT_BLOCKS):
        hashes = tuple(map(EngineHash, array("Q", rng.randbytes(8 * PROMPT_BLOCKS))))
        tokens = array("I", rng.randbytes(4 * PROMPT_BLOCKS * BLOCK_SIZE))
        on_gpu = BlockStored(hashes, None, tokens, BLOCK_SIZE)
        on_cpu = BlockStored(hashes, None, array("I"), 0, MediumName("CPU"))
        app.fleet.atlas.apply(name, 0, (on_gpu, on_cpu))


def timed_dump(rank: Rank) -> float:
    """Return the CPU milliseconds for which the loop is busy with one rank."""
    begin = time.thread_time()
    rank.dump(now=time.monotonic())
    return (time.thread_time() - begin) * 1e3


async def longest_pause(is_done: asyncio.Event) -> float:
    """Return the longest time for which the loop did not come round, in seconds."""
    longest = 0.0
    while not is_done.is_set():
        begin = time.perf_counter()
        await asyncio.sleep(TICK_S)
        longest = max(longest, time.perf_counter() - begin - TICK_S)
    return longest


def load(config: Path) -> tuple[float, dict[str, int]]:
    """Return the CPU seconds from an idle process to one that goes on from the snapshot, and the blocks it then has."""
    return asyncio.run(load_app(config))


async def load_app(path: Path) -> tuple[float, dict[str, int]]:
    """See `load`."""
    app = App(load_config(path))
    begin = time.process_time()
    await app.start()
    seconds = time.process_time() - begin
    residencies = residencies_of(app)
    await app.stop(grace_s=0)
    return seconds, residencies


def residencies_of(app: App) -> dict[str, int]:
    """Return the blocks by endpoint."""
    tiers = (TierId(0), TierId(1))
    return {
        endpoint.name: sum(
            ledger.residencies(tier) for ledger in app.fleet.atlas.ledgers(endpoint.name) for tier in tiers
        )
        for endpoint in app.fleet
    }


def start_to_ready(config: Path) -> float:
    """Return the CPU seconds from the start of the command to its log line `ready`."""
    before = children_cpu()
    command = [sys.executable, "-m", "kvatlas.app.cli.main", "serve", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own
        for line in process.stderr or ():
            if line.rstrip().endswith(": ready"):
                break
        process.kill()
    return children_cpu() - before


def children_cpu() -> float:
    """Return the CPU seconds of child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


BENCHMARK = Benchmark(name="snapshot", about=__doc__, add_options=add_options, run=run)
