"""Memory per residency at ten million, and the longest single operation of each kind."""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import uvloop
from rich.progress import Progress

from kvatlas.indexer.index import BlockIndex, HolderId

from ...common.processes import child, receive
from ..columns import INDEXES, Answer, Column, compare
from ..fleet import AGENT, EVENT_BLOCKS, HIT, N_TIERS, Fleet, make_blocks, make_fleet
from ..indexes import MeasuredIndex, OurIndex
from ..measured import make_index
from ..results import Figure, Row, Section, Target
from ..sizes import Size

Result = TypeVar("Result")

_MS = 1e-3
_ASKED = (HIT, f"hit, {AGENT} blocks")
_TIMES = 16
"""Operations of each kind after the fill, on endpoints far from each other."""


@dataclass
class Findings:
    """Findings about one index.

    Attributes:
        residencies: with the fleet stored.
        size_bytes: memory they take.
        longest_s: CPU seconds of the longest operation, by kind.
        answers: to some prompts, with the fleet stored.
        left: keys of each holder after all operations, empty if the index does not report them.
    """

    residencies: int = 0
    size_bytes: int = 0
    longest_s: dict[str, float] = field(default_factory=dict[str, float])
    answers: list[Answer] = field(default_factory=list[Answer])
    left: list[int] = field(default_factory=list[int])

    def note(self, kind: str, seconds: float) -> None:
        """Keep the longest of its kind."""
        self.longest_s[kind] = max(self.longest_s.get(kind, 0.0), seconds)

    def time(self, kind: str, action: Callable[[], Result]) -> Result:
        """Call `action`, and note its CPU time."""
        begin = time.process_time()
        result = action()
        self.note(kind, time.process_time() - begin)
        return result


def measure_scale(columns: Sequence[Column], size: Size, progress: Progress) -> dict[Column, Findings]:
    """Measure each index, in a fresh process each time.

    Of every kind of operation the longest is taken, and of those the one of the calmest run: an operation that is long by
    itself is so in all, one that the system held up is not.

    Raises:
        SystemExit: they do not agree.
    """
    found: dict[Column, Findings] = {}
    runs = [column for column in INDEXES if column in columns] * size.huge_runs
    for column in progress.track(runs, description="huge scale"):
        with child(hold, column, size) as pipe:
            one: Findings = receive(pipe)
        if column in found:
            one.longest_s = {kind: min(s, found[column].longest_s[kind]) for kind, s in one.longest_s.items()}
        found[column] = one
    for number in range(len(found[Column.NATIVE].answers)):
        compare(
            {column: each.answers[number] for column, each in found.items()}, f"huge scale, prompt {number}"
        )
    if found[Column.NATIVE].left != found[Column.REFERENCE].left:
        raise SystemExit("huge scale: the native and the reference index do not hold the same after all")
    return found


def scale_section(found: dict[Column, Findings]) -> Section:
    """Return the longest operations."""
    rows = [
        Row(
            kind,
            "ms",
            {c: Figure(each.longest_s[kind] / _MS) for c, each in found.items() if kind in each.longest_s},
            Target(5),
        )
        for kind in found[Column.NATIVE].longest_s
    ]
    return Section("scale", "Longest operation in a huge index", rows)


def hold(pipe: Connection, column: Column, size: Size) -> None:
    """Run the process: send its `Findings`."""
    pipe.send(uvloop.run(_hold(column, size)))


async def _hold(column: Column, size: Size) -> Findings:
    fleet = make_fleet(size.huge)
    index = make_index(column, size.huge.n_endpoints)
    found = Findings(residencies=fleet.n_residencies)
    gc.collect()
    gc.freeze()
    before = resident_bytes()
    for holder, blocks in fleet.stores():
        found.time(f"store {EVENT_BLOCKS} blocks, the index growing", partial(index.store, holder, blocks))
    found.size_bytes = resident_bytes() - before
    for prompt in (prompt for label in _ASKED for prompt in fleet.prompts[label]):
        begin = time.process_time()
        found.answers.append((await index.timed_match(prompt))[1])
        found.note(f"match up to {AGENT} blocks", time.process_time() - begin)
    _large_events(found, index, fleet)
    if isinstance(index, OurIndex):
        _bounds(found, index.index, index.holders[1 :: N_TIERS * _step(fleet)])
        _shared_tier(found, index.index, size.shared_blocks)
        found.left = [index.index.size(holder) for holder in index.holders]
    for endpoint in range(_step(fleet) // 2, len(fleet.endpoints), _step(fleet)):
        found.time("remove an endpoint", partial(index.forget, endpoint))
    while found.time("sweep 4096 blocks", index.sweep):
        continue
    return found


def _large_events(found: Findings, index: MeasuredIndex, fleet: Fleet) -> None:
    """Store and remove a whole agent prompt in a full index."""
    rng = random.Random(8)
    for endpoint in range(0, len(fleet.endpoints), _step(fleet)):
        holder = N_TIERS * endpoint + 1
        prompt = make_blocks(rng, AGENT)
        found.time(f"store {AGENT} blocks", partial(index.store, holder, prompt))
        found.time(f"remove {AGENT} blocks", partial(index.remove, holder, prompt))
        for blocks in fleet.endpoints[endpoint].cpu[-1].events():
            found.time(f"remove up to {EVENT_BLOCKS} blocks", partial(index.remove, holder, blocks))


def _bounds(found: Findings, index: BlockIndex, holders: Sequence[HolderId]) -> None:
    """Lower capacities, store into full tiers, and call the other operations on one holder."""
    rng = random.Random(9)
    for holder in holders:
        found.time("begin to read a tier, oldest first", partial(_begin_to_read, index, holder))
        _lower_capacity(found, index, holder, index.size(holder) // 2)
        prompt = make_blocks(rng, AGENT).keys
        found.time(f"store {AGENT} blocks into a full tier", partial(index.store, holder, prompt))
        found.time(f"store {AGENT} blocks again", partial(index.store, holder, prompt))
        found.time(f"touch {AGENT} blocks", partial(index.touch, holder, prompt))
        found.time("clear a tier", partial(index.clear, holder))


def _shared_tier(found: Findings, index: BlockIndex, n_blocks: int) -> None:
    """Fill one tier as large as storage that all endpoints share, and empty it."""
    rng = random.Random(10)
    holder = index.open()
    for _ in range(n_blocks // EVENT_BLOCKS):
        keys = make_blocks(rng, EVENT_BLOCKS).keys
        found.time(f"store {EVENT_BLOCKS} blocks, a huge tier growing", partial(index.store, holder, keys))
    _lower_capacity(found, index, holder, n_blocks // 2)
    found.time("clear a tier", partial(index.clear, holder))
    index.close(holder)


def _lower_capacity(found: Findings, index: BlockIndex, holder: HolderId, n_blocks: int) -> None:
    while found.time("lower the capacity of a tier", partial(index.set_capacity, holder, n_blocks)):
        continue


def _begin_to_read(index: BlockIndex, holder: HolderId) -> None:
    next(index.items(holder))


def _step(fleet: Fleet) -> int:
    return max(1, len(fleet.endpoints) // _TIMES)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
