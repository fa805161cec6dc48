"""Memory of the block index per residency, and the longest single operation while it fills and empties.

Use: python bench/index_memory.py [RESIDENCIES ...]          (default: 1000000 10000000)

Each row is a fresh process that holds the fleet of `fleet.py` in one index. Memory is the growth of resident memory;
the longest operations are CPU time, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

from fleet import events_of, make_fleet

from kvatlas.indexer.factory import CoreName, index_core
from kvatlas.indexer.index import HolderId

BLOCKS_A_SERVER = 50_271


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("residencies", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument("--core", action="append", choices=get_args(CoreName), help="only this one")
    arguments = parser.parse_args()
    print(
        f"{'core':12}{'residencies':>12}{'B/residency':>13}{'longest store':>15}{'remove':>9}{'close':>9}{'sweep':>9}  (ms)",
        flush=True,
    )
    fresh = multiprocessing.get_context("spawn")
    for n_residencies in arguments.residencies:
        for core in arguments.core or get_args(CoreName):
            process = fresh.Process(target=print_row, args=(core, n_residencies))
            process.start()
            process.join()


def print_row(core: str, n_residencies: int) -> None:
    print(row(core, n_residencies), flush=True)


def row(core: str, n_residencies: int) -> str:
    """One line of the table."""
    fleet = make_fleet(max(1, round(n_residencies / BLOCKS_A_SERVER)))
    index = index_core(core).make_index()
    gc.collect()
    before = resident_bytes()
    stores: list[float] = []
    holders: list[HolderId] = []
    for prompts in (prompts for server in fleet.servers for prompts in (server.gpu, server.cpu)):
        holders.append(index.open())
        stores += [cpu_time(partial(index.store, holders[-1], keys)) for keys in events_of(prompts)]
    memory = (resident_bytes() - before) / fleet.n_residencies
    removals = [cpu_time(partial(index.remove, holders[1], keys)) for keys in events_of(fleet.servers[0].cpu)]
    closes = [cpu_time(partial(index.close, holder)) for holder in holders[2:]]
    sweeps: list[float] = []
    sweep = getattr(index, "sweep", None)
    while sweep is not None and sweep(0):
        sweeps.append(cpu_time(partial(sweep, 4096)))
    longest = [f"{max(times, default=0) * 1e3:.1f}" for times in (stores, removals, closes, sweeps)]
    return f"{core:12}{fleet.n_residencies:12}{memory:13.1f}{longest[0]:>15}" + "".join(
        f"{t:>9}" for t in longest[1:]
    )


def cpu_time(action: Callable[[], object]) -> float:
    begin = time.thread_time()
    action()
    return time.thread_time() - begin


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
