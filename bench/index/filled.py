"""The indexes and systems of this process, filled with one fleet, and the check that all agree on it."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from rich.progress import Progress

from .columns import INDEXES, SYSTEMS, Column, Matcher, compare
from .fleet import Fleet, Shape, make_fleet
from .indexes import MeasuredIndex
from .loads import FleetLoad
from .measured import make_index, make_system
from .publisher import PHASES, publishing
from .results import Samples
from .systems import System


@dataclass(frozen=True)
class Filled:
    """All indexes and systems, with the same contents.

    Attributes:
        fleet: their contents.
        indexes: the indexes alone.
        systems: the whole systems.
        stores: CPU seconds per block, of every store event that filled the indexes.
    """

    fleet: Fleet
    indexes: dict[Column, MeasuredIndex] = field(default_factory=dict[Column, MeasuredIndex])
    systems: dict[Column, System] = field(default_factory=dict[Column, System])
    stores: Samples = field(default_factory=Samples)

    async def check(self, when: str, progress: Progress) -> None:
        """Match every prompt in all of them.

        Raises:
            SystemExit: the answers differ.
        """
        matchers: dict[str, Matcher] = {
            **{f"{column} index": index for column, index in self.indexes.items()},
            **{f"{column} system": system for column, system in self.systems.items()},
        }
        for label in progress.track(self.fleet.prompts, description=f"comparing answers {when}"):
            for prompt in self.fleet.prompts[label]:
                answers = {name: (await matcher.timed_match(prompt))[1] for name, matcher in matchers.items()}
                compare(answers, f"{label}, {when}")


@contextlib.asynccontextmanager
async def filled(shape: Shape, columns: Sequence[Column], progress: Progress) -> AsyncGenerator[Filled]:
    """Fill and compare the indexes and systems that `columns` name.

    Raises:
        SystemExit: the answers differ.
    """
    everything = Filled(make_fleet(shape))
    for column in progress.track([c for c in INDEXES if c in columns], description="filling indexes"):
        everything.indexes[column] = make_index(column, shape.n_endpoints)
        _fill_index(everything, column)
    load = FleetLoad(shape)
    with publishing(load) as publisher:
        try:
            for column in [c for c in SYSTEMS if c in columns]:
                system = everything.systems[column] = make_system(column, load)
                for number, address in enumerate(publisher.addresses):
                    await system.follow(number, address)
            for phase in progress.track(PHASES, description="filling systems"):
                publisher.send(phase, n_subscribers=len(everything.systems))
                for system in everything.systems.values():
                    await system.finished(phase)
            gc.collect()
            gc.freeze()  # a collection would walk the objects of all columns, and be charged to one
            await everything.check("before timing", progress)
            yield everything
        finally:
            for system in everything.systems.values():
                await system.close()


def _fill_index(everything: Filled, column: Column) -> None:
    index = everything.indexes[column]
    for holder, blocks in everything.fleet.stores():
        begin = time.process_time()
        index.store(holder, blocks)
        everything.stores.add(column, (time.process_time() - begin) / len(blocks))
