"""Memory per residency: in the index alone, and with the ledgers that map engine hashes to keys."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from multiprocessing.connection import Connection

import uvloop
from rich.progress import Progress

from ...common.processes import child, receive
from ..columns import SYSTEMS, Column
from ..fleet import Shape, make_fleet
from ..loads import FleetLoad
from ..measured import make_system
from ..publisher import PHASES, publishing
from ..results import Figure, Row, Section, Target
from ..sizes import Size
from .scale import Findings, resident_bytes


def measure_memory(
    columns: Sequence[Column], scale: dict[Column, Findings], size: Size, progress: Progress
) -> Section:
    """Measure the growth of resident memory in a fresh process, per residency."""
    indexes = {column: Figure(found.size_bytes / found.residencies) for column, found in scale.items()}
    n_indexed = scale[Column.NATIVE].residencies
    n_booked = make_fleet(size.books).n_residencies
    systems: dict[Column, Figure] = {}
    with publishing(FleetLoad(size.books)) as publisher:
        for column in progress.track(
            [c for c in SYSTEMS if c in columns], description="memory of whole systems"
        ):
            with child(hold, column, size.books, publisher.addresses) as consumer:
                for phase in PHASES:
                    receive(consumer)
                    publisher.send(phase)
                systems[column] = Figure(receive(consumer) / n_booked)
    return Section(
        "memory",
        "Memory of a residency",
        (
            Row(f"index alone, {n_indexed:,} residencies", "B", indexes, Target(30)),
            Row(f"whole system, {n_booked:,} residencies", "B", systems),
        ),
    )


def hold(pipe: Connection, column: Column, shape: Shape, addresses: list[str]) -> None:
    """Run the process: send the bytes by which it has grown."""
    uvloop.run(_hold(pipe, column, FleetLoad(shape), addresses))


async def _hold(pipe: Connection, column: Column, load: FleetLoad, addresses: list[str]) -> None:
    make_fleet(load.shape)
    system = make_system(column, load)
    for publisher, address in enumerate(addresses):
        await system.follow(publisher, address)
    gc.collect()
    before = resident_bytes()
    for phase in PHASES:
        pipe.send(None)
        await system.finished(phase)
    gc.collect()
    pipe.send(resident_bytes() - before)
    await system.close()
