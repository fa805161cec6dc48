"""Snapshots: time to write and to load one, its size, and for how long writing holds up the event loop.

Use: python bench/snapshot.py [RESIDENCIES ...] [--core native]          (default: 1000000 10000000)

Servers have the cache sizes of `fleet.py`, filled by events as vLLM sends them: stores with tokens on the GPU, then the
same blocks without tokens on the CPU, both bounded. One process fills and writes, a fresh one loads and compares. Then
`kvatlas serve` is started with the snapshot and without, up to its log line that it is ready. The servers are configured
without event addresses, so that nothing is fetched meanwhile.

Times are wall clock and, behind a slash, CPU, which does not count other work on the machine. `rank` is the longest that
the loop was busy with one rank (CPU), `pause` the longest that it did not come round while a snapshot was written,
`ready` counts from the start of the command.
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

GPU_BLOCKS, CPU_BLOCKS = 9_271, 41_000
"""Cache sizes of one server, as in `fleet.py`."""

BLOCK_SIZE = 16
PROMPT_BLOCKS = 400
TICK_S = 0.001
Result = TypeVar("Result")


@dataclass(frozen=True)
class Written:
    """What writing took; `rank_ms` is CPU time, the rest wall time."""

    residencies: dict[str, int]
    n_bytes: int
    seconds: float
    rank_ms: float
    pause_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("residencies", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument("--core", choices=get_args(CoreName), default="native")
    arguments = parser.parse_args()
    os.environ["KVATLAS_INDEX"] = arguments.core
    print(
        f"{'residencies':>12}{'servers':>9}{'MB':>7}{'B each':>8}{'write s':>9}{'rank ms':>9}{'pause ms':>10}"
        f"{'load s':>14}{'ready s':>14}{'without':>14}",
        flush=True,
    )
    for n_residencies in arguments.residencies:
        print(row(n_residencies), flush=True)


def row(n_residencies: int) -> str:
    """One line of the table.

    Raises:
        SystemExit: what was loaded is not what was written.
    """
    n_servers = max(1, round(n_residencies / (GPU_BLOCKS + CPU_BLOCKS)))
    with tempfile.TemporaryDirectory() as folder:
        config = write_config(Path(folder), n_servers)
        written = in_fresh_process(fill_and_write, config)
        loading, loaded = in_fresh_process(load, config)
        if loaded != written.residencies:
            raise SystemExit(f"loaded {sum(loaded.values())} of {sum(written.residencies.values())} blocks")
        ready = start_to_ready(config)
        snapshot_of(config).unlink()
        without = start_to_ready(config)
    n_held = sum(loaded.values())
    return (
        f"{n_held:12}{n_servers:9}{written.n_bytes / 1e6:7.0f}{written.n_bytes / n_held:8.1f}{written.seconds:9.2f}"
        f"{written.rank_ms:9.1f}{written.pause_ms:10.1f}{loading:>14}{ready:>14}{without:>14}"
    )


def write_config(folder: Path, n_servers: int) -> Path:
    """A configuration of that many servers, none of which is contacted."""
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
    return config.with_name("kvatlas.snapshot")


def in_fresh_process(task: Callable[[Path], Result], config: Path) -> Result:
    """`task(config)`, done by a process that has done nothing else."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(task, config).result()


def fill_and_write(config: Path) -> Written:
    return asyncio.run(write_filled(config))


async def write_filled(path: Path) -> Written:
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
    """As many prompts as the CPU cache holds, through the endpoint's books."""
    rng = random.Random(seed)
    for _ in range(0, CPU_BLOCKS, PROMPT_BLOCKS):
        hashes = tuple(map(EngineHash, array("Q", rng.randbytes(8 * PROMPT_BLOCKS))))
        tokens = array("I", rng.randbytes(4 * PROMPT_BLOCKS * BLOCK_SIZE))
        on_gpu = BlockStored(hashes, None, tokens, BLOCK_SIZE)
        on_cpu = BlockStored(hashes, None, array("I"), 0, MediumName("CPU"))
        app.fleet.atlas.apply(name, 0, (on_gpu, on_cpu))


def timed_dump(rank: Rank) -> float:
    """CPU milliseconds for which the loop is busy with one rank."""
    begin = time.thread_time()
    rank.dump(now=time.monotonic())
    return (time.thread_time() - begin) * 1e3


async def longest_pause(is_done: asyncio.Event) -> float:
    """Longest time for which the loop did not come round, in seconds."""
    longest = 0.0
    while not is_done.is_set():
        begin = time.perf_counter()
        await asyncio.sleep(TICK_S)
        longest = max(longest, time.perf_counter() - begin - TICK_S)
    return longest


def load(config: Path) -> tuple[str, dict[str, int]]:
    """Time from an idle process to one that goes on from the snapshot, and the blocks it has then."""
    return asyncio.run(load_app(config))


async def load_app(path: Path) -> tuple[str, dict[str, int]]:
    app = App(load_config(path))
    begin, cpu = time.perf_counter(), time.process_time()
    await app.start()
    shown = times(time.perf_counter() - begin, time.process_time() - cpu)
    residencies = residencies_of(app)
    await app.stop(grace_s=0)
    return shown, residencies


def times(wall_s: float, cpu_s: float) -> str:
    return f"{wall_s:.2f}/{cpu_s:.2f}"


def residencies_of(app: App) -> dict[str, int]:
    """Blocks by endpoint."""
    tiers = (TierId(0), TierId(1))
    return {
        endpoint.name: sum(
            ledger.residencies(tier) for ledger in app.fleet.atlas.ledgers(endpoint.name) for tier in tiers
        )
        for endpoint in app.fleet
    }


def start_to_ready(config: Path) -> str:
    """Time from the start of the command to its log line `ready`."""
    begin, cpu = time.perf_counter(), children_cpu()
    command = [sys.executable, "-m", "kvatlas.app.cli.main", "serve", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own
        for line in process.stderr or ():
            if line.rstrip().endswith(": ready"):
                break
        wall_s = time.perf_counter() - begin
        process.kill()
    return times(wall_s, children_cpu() - cpu)


def children_cpu() -> float:
    """CPU seconds of child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
