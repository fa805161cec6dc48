"""CPU time per block event, from the bytes of a ZMQ message to the index."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from multiprocessing.connection import Connection

import uvloop
from rich.progress import Progress

from ...common.processes import TIMEOUT_S, child, receive
from ..columns import SYSTEMS, Answer, Column, compare
from ..loads import IngestLoad
from ..measured import make_system
from ..publisher import PHASES, Publisher, publishing
from ..results import Figure, Row, Samples, Section, Target
from ..sizes import Size
from ..systems import cpu_s

_NS = 1e-9


def measure_ingest(columns: Sequence[Column], size: Size, progress: Progress) -> Section:
    """Measure the CPU time of the whole consuming process, which is a fresh one each time; columns take turns.

    Raises:
        SystemExit: a consumer does not end up with what was published.
    """
    rows: list[Row] = []
    for load in progress.track(size.ingest, description="ingest"):
        taken = Samples()
        slices: dict[Column, list[list[float]]] = {}
        with publishing(load) as publisher:
            for _ in range(size.ingest_rounds):
                for column in [c for c in SYSTEMS if c in columns]:
                    seconds, shares = _run(publisher, column, load)
                    taken.add(column, seconds / load.n_block_events)
                    slices.setdefault(column, []).append(shares)
        label = f"{load.mix}, {load.n_publishers} publishers"
        rows.append(Row(label, "ns", taken.medians(per=_NS), Target(4, Column.SERVICE)))
        if load.is_long:
            rows.append(Row(f"{label}, slowest slice / median", "ratio", _slowest(slices), Target(2)))
    return Section("ingest", "Ingest, CPU time per block event", rows)


def _slowest(slices: dict[Column, list[list[float]]]) -> dict[Column, Figure]:
    """Return the slowest slice of each column as a multiple of its median one.

    Each slice counts as in its fastest round: growth and sweeps come at the same place every time, other work does not.
    """
    found = {column: list(map(min, zip(*rounds, strict=True))) for column, rounds in slices.items()}
    return {column: Figure(max(each) / statistics.median(each)) for column, each in found.items() if each}


def _run(publisher: Publisher, column: Column, load: IngestLoad) -> tuple[float, list[float]]:
    """Return the CPU seconds of the measured phase, and those of its slices."""
    seconds, slices = 0.0, list[float]()
    with child(consume, column, load, publisher.addresses) as consumer:
        for phase in PHASES:
            receive(consumer)
            publisher.send(phase)
            seconds, slices = receive(consumer)
        residencies, overlap = receive(consumer)
    _check(column, load, residencies, overlap)
    return seconds, slices


def _check(column: Column, load: IngestLoad, residencies: dict[int, int], overlap: Answer) -> None:
    """Compare with what was published."""
    publishers = range(load.n_publishers)
    wrong = [n for n in publishers if residencies.get(n, 0) != load.residencies]
    if wrong:
        raise SystemExit(
            f"{load}: {column} has other blocks than published of {len(wrong)} publishers;"
            f" of publisher {wrong[0]} {residencies.get(wrong[0], 0)}, want {load.residencies}"
        )
    wanted = dict.fromkeys(publishers, (len(load.probe), len(load.probe)))
    compare({"what was published": wanted, column: overlap}, f"{load}")


def consume(pipe: Connection, column: Column, load: IngestLoad, addresses: list[str]) -> None:
    """Run the consuming process: send each phase's CPU seconds and slices when it ends, then (residencies, overlap)."""
    uvloop.run(_consume(pipe, column, load, addresses))


async def _consume(pipe: Connection, column: Column, load: IngestLoad, addresses: list[str]) -> None:
    system = make_system(column, load)
    async with asyncio.timeout(TIMEOUT_S):
        for publisher, address in enumerate(addresses):
            await system.follow(publisher, address)
        for phase in PHASES:
            before = cpu_s()
            pipe.send(None)
            pipe.send((await system.finished(phase) - before, system.slices()))
        pipe.send((await system.residencies(), (await system.timed_match(load.probe))[1]))
        await system.close()
