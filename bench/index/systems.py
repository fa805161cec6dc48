"""Whole systems: from the sockets of publishers to matches, with the ledgers that map engine hashes to keys."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

from kvatlas.events._native import Inbox
from kvatlas.events.model import Batch
from kvatlas.events.options import SubscriberOptions
from kvatlas.events.runs import Run
from kvatlas.events.sink import Draft
from kvatlas.events.stream import Trust
from kvatlas.events.subscriber import Subscriber
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.tiers import TierSpec, TierTable

from .columns import Answer, Column, Matcher
from .fleet import BLOCK_SIZE, SEED, Blocks
from .publisher import Load, Phase

N_SLICES = 20
"""Slices of a phase; each has enough messages that other work on the machine does not show."""


class System(Matcher, Protocol):
    """A system that is measured as a whole."""

    async def follow(self, publisher: int, address: str) -> None:
        """Subscribe to one publisher."""
        ...

    async def finished(self, phase: Phase) -> float:
        """Wait for the last event of a phase; returns the CPU seconds of this process up to it."""
        ...

    def slices(self) -> list[float]:
        """Return the CPU seconds of each slice of the last phase, equal numbers of messages; empty if it does not tell."""
        ...

    async def residencies(self) -> dict[int, int]:
        """Return the blocks held, by publisher."""
        ...

    async def forget(self, publisher: int) -> None:
        """Remove a publisher and everything that it holds."""
        ...

    async def close(self) -> None:
        """Free sockets and threads."""
        ...


def cpu_s() -> float:
    """Return the CPU seconds of this process, all threads, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Kvatlas:
    """Our subscriber and index, composed as in the server. Implements `System`."""

    def __init__(self, column: Column, load: Load) -> None:
        self._load = load
        core = index_core(column)
        self._atlas = Atlas(
            tiers=TierTable([TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",), chunk_blocks=1)]),
            seed=SEED,
            core=core,
        )
        self._subscriber = Subscriber(SubscriberOptions(decode=core.decode_batch))
        self._wanted = 0
        self._slice = 1
        self._marks: list[tuple[int, float]] = []
        """Messages left, and CPU seconds of the event loop's thread, at the ends of slices."""
        self._done = asyncio.Event()

    async def follow(self, publisher: int, address: str) -> None:
        """See `System.follow`."""
        self._atlas.add(str(publisher))
        self._subscriber.subscribe(address, None, _Sink(self._atlas, str(publisher), self._count))

    async def finished(self, phase: Phase) -> float:
        """See `System.finished`."""
        self._wanted += self._load.n_messages(phase)
        self._slice = max(1, self._wanted // N_SLICES)
        self._marks = []
        self._done.clear()
        if self._wanted:
            await self._done.wait()
        return cpu_s()

    def slices(self) -> list[float]:
        """See `System.slices`. CPU time of the event loop's thread; receiving into ZMQ's queues is ahead of it."""
        return [
            (ended - began) / (before - after) * self._slice
            for (before, began), (after, ended) in pairwise(self._marks)
        ]

    async def timed_match(self, prompt: Blocks) -> tuple[float, Answer]:
        """See `Matcher.timed_match`. The prompt's keys are known, as after tokenization."""
        prefix = Prefix.from_keys({BLOCK_SIZE: prompt.keys}, n_tokens=prompt.n_tokens)
        begin = time.perf_counter()
        matches = self._atlas.match(prefix)
        seconds = time.perf_counter() - begin
        return seconds, {
            int(endpoint): (match.held.tier_blocks[0], sum(match.held.union_blocks))
            for endpoint, match in matches.items()
            if match.held.runs
        }

    async def residencies(self) -> dict[int, int]:
        """See `System.residencies`."""
        publishers = range(self._load.n_publishers)
        return {n: sum(row.residencies for row in self._atlas.occupancy(str(n))) for n in publishers}

    async def forget(self, publisher: int) -> None:
        """See `System.forget`."""
        self._atlas.remove(str(publisher))

    async def close(self) -> None:
        """See `System.close`."""
        await self._subscriber.close()

    def _count(self, n_messages: int) -> None:
        before, self._wanted = self._wanted, self._wanted - n_messages
        if before // self._slice != self._wanted // self._slice:
            self._marks.append((self._wanted, time.thread_time()))
        if not self._wanted:
            self._done.set()


class _Sink:
    """Applies the events of one publisher. Implements `EventSink`."""

    def __init__(self, atlas: Atlas, endpoint: str, applied: Callable[[int], None]) -> None:
        self._atlas, self._endpoint, self._applied = atlas, endpoint, applied

    def apply(self, batch: Batch, *, live: bool) -> None:  # noqa: ARG002 - EventSink has it
        self._atlas.apply(self._endpoint, 0, batch)
        self._applied(1)

    def apply_run(self, inbox: Inbox, seq: int) -> Run | None:
        run = self._atlas.ledger(self._endpoint, 0).run(inbox, seq)
        if run is not None:
            self._applied(len(run.timestamps) // 8)
        return run

    def reset(self, reason: str) -> None:
        raise SystemExit(f"publisher {self._endpoint} was taken to have restarted: {reason}")

    def rejected(self, reason: str) -> None:
        raise SystemExit(f"a message of publisher {self._endpoint} could not be read: {reason}")

    def draft(self) -> Draft:
        raise SystemExit(f"publisher {self._endpoint} has no snapshots")

    def snapshot_ended(self, outcome: str, seconds: float) -> None:
        """Ignore it: there are none."""

    def trust_changed(self, old: Trust, new: Trust) -> None:
        """Ignore it: trust has no part in the work that is measured."""
