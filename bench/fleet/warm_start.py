"""Warm starts: a process that starts with the snapshot of another one, over real sockets.

The servers are those of `python -m bench snapshot`. One `kvatlas serve` starts from its own file, then others start one after
the other without a file, and take its snapshot over the mesh. `ready` counts from the start of the command to its log line,
the CPU column without other work on the machine; `taken` is the time from the first look for siblings to the checked
snapshot. `giver` is the CPU time that the first process spends meanwhile. The servers have no event addresses, so that nothing is
fetched. The run fails unless each process restores every block.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import get_args

import msgspec

from kvatlas.indexer.factory import CoreName

from ..common.benchmark import Benchmark
from ..common.processes import cpu_s
from ..common.tables import Cell, Table
from .snapshot import (
    CPU_BLOCKS,
    GPU_BLOCKS,
    children_cpu,
    fill_and_write,
    in_fresh_process,
    snapshot_of,
    write_config,
)

N_STARTS = 5


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--residencies", type=int, nargs="+", default=[1_000_000], help="(1000000)")
    parser.add_argument("--core", choices=get_args(CoreName), default="native", help="of the index (native)")


def run(options: argparse.Namespace) -> list[Table]:
    """Measure warm starts at every size."""
    os.environ["KVATLAS_INDEX"] = options.core
    headings = (
        "residencies",
        "servers",
        "MB",
        "taken, s wall",
        "ready, s wall",
        "ready, s",
        "giver, s",
        "alone, s wall",
        "alone, s",
    )
    rows = tuple(row(n_residencies) for n_residencies in options.residencies)
    return [Table(name="warm-start", title="Warm starts", headings=headings, rows=rows)]


def row(n_residencies: int) -> tuple[Cell, ...]:
    """Return one row of the table: medians of the starts.

    Raises:
        SystemExit: a process did not restore every block.
    """
    n_servers = max(1, round(n_residencies / (GPU_BLOCKS + CPU_BLOCKS)))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        plain = write_config(root, n_servers)
        written = in_fresh_process(fill_and_write, plain)
        n_held = sum(written.residencies.values())
        addresses = [f"tcp://127.0.0.1:{port}" for port in free_ports()]
        alone = [start(replica(plain, 1, addresses, is_warm=False)) for _ in range(2)]
        with running(replica(plain, 0, addresses, is_warm=True)) as giver:
            before = cpu_s(giver.pid)
            starts = [start(replica(plain, 1, addresses, is_warm=False)) for _ in range(N_STARTS)]
            giver_s = (cpu_s(giver.pid) - before) / N_STARTS
        for each in starts:
            if each.n_blocks != n_held:
                raise SystemExit(f"restored {each.n_blocks} of {n_held} blocks:\n{each.log}")
    return (
        n_held,
        n_servers,
        written.n_bytes / 1e6,
        median(each.taken_s for each in starts),
        median(each.wall_s for each in starts),
        median(each.cpu_s for each in starts),
        giver_s,
        median(each.wall_s for each in alone),
        median(each.cpu_s for each in alone),
    )


class Start(msgspec.Struct):
    """One start of a process."""

    wall_s: float
    cpu_s: float
    log: str

    @property
    def n_blocks(self) -> int:
        """Return the blocks that it restored."""
        found = re.search(r"restored with (\d+) blocks", self.log)
        return int(found[1]) if found else 0

    @property
    def taken_s(self) -> float:
        """Return the seconds until it had a sibling's snapshot."""
        found = re.search(r"gave its snapshot: \d+ bytes in ([\d.]+) s", self.log)
        return float(found[1]) if found else float("nan")


def replica(plain: Path, number: int, addresses: list[str], *, is_warm: bool) -> Path:
    """Write the configuration of a replica, with a copy of the snapshot if `is_warm`."""
    folder = plain.parent / f"replica-{number}"
    folder.mkdir(exist_ok=True)
    document = msgspec.yaml.decode(plain.read_bytes())
    document["replicas"] = {
        "transport": "mesh",
        "name": f"replica-{number}",
        "mesh": {"listen": addresses[number], "discover": {"list": addresses}},
    }
    if is_warm:
        shutil.copy(snapshot_of(plain), snapshot_of(folder / "any"))
    else:
        del document["snapshot"]
    config = folder / "kvatlas.yaml"
    config.write_bytes(msgspec.yaml.encode(document))
    return config


def start(config: Path) -> Start:
    """Start a process, and end it once it is ready."""
    begin, before = time.perf_counter(), children_cpu()
    with running(config) as process:
        wall_s = time.perf_counter() - begin
        log = process.log
    return Start(wall_s, children_cpu() - before, log)


class Running(msgspec.Struct):
    """A process that is ready."""

    pid: int
    log: str


@contextmanager
def running(config: Path) -> Generator[Running]:
    """Run `kvatlas serve`, from its log line that it is ready."""
    command = [sys.executable, "-m", "kvatlas.app.cli.main", "serve", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own
        lines: list[str] = []
        for line in process.stderr or ():
            lines.append(line)
            if line.rstrip().endswith(": ready"):
                break
        try:
            yield Running(process.pid, "".join(lines))
        finally:
            process.kill()


def free_ports() -> list[int]:
    """Return two ports that nobody listens on."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in (one, other)]


BENCHMARK = Benchmark(name="warm-start", about=__doc__, add_options=add_options, run=run)
