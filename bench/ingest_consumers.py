"""The consumers that `ingest.py` compares, each run in a process of its own."""

from __future__ import annotations

import asyncio
import importlib
import os
import resource
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

import msgspec
import uvloop
from ingest_load import BLOCK_SIZE, PHASES, Load, Phase, phase_probe

from kvatlas.events.model import Batch
from kvatlas.events.stream import Trust
from kvatlas.events.subscriber import Subscriber
from kvatlas.events.subscription import SubscriberOptions
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.tiers import TierSpec, TierTable

DYNAMO = "dynamo"
"""Name of the consumer that is not ours; the others are index cores."""

TIMEOUT_S = 60.0
DYNAMO_THREADS = min(4, os.cpu_count() or 1)
"""Its default is 4."""

_SAMPLE_S = 0.02
_QUIET_SAMPLES = 5
_QUIET_SHARE = 0.05
_MODEL = "bench"


@dataclass(frozen=True)
class Belief:
    """What a consumer believes in the end.

    Attributes:
        residencies: blocks by publisher.
        overlap: blocks of the probe prompt by publisher.
    """

    residencies: dict[int, int]
    overlap: dict[int, int]


class Consumer(Protocol):
    """What is measured."""

    async def follow(self, publisher: int, address: str) -> None:
        """Subscribe to one publisher."""
        ...

    async def finished(self, phase: Phase) -> float:
        """Wait for the last event of a phase; returns the CPU seconds of this process up to it."""
        ...

    async def belief(self) -> Belief:
        """What is known of every publisher."""
        ...


def consume(pipe: Connection, name: str, load: Load, addresses: list[str]) -> None:
    """Body of the consuming process: sends each phase's CPU seconds as it ends, then the `Belief`."""
    uvloop.run(_consume(pipe, name, load, addresses))


async def _consume(pipe: Connection, name: str, load: Load, addresses: list[str]) -> None:
    consumer: Consumer = DynamoService(load) if name == DYNAMO else Kvatlas(name, load)
    async with asyncio.timeout(TIMEOUT_S):
        for publisher, address in enumerate(addresses):
            await consumer.follow(publisher, address)
        for phase in PHASES:
            before = cpu_s()
            pipe.send(None)
            pipe.send(await consumer.finished(phase) - before)
        pipe.send(await consumer.belief())


def cpu_s() -> float:
    """CPU seconds of this process, all threads, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Kvatlas:
    """Our subscriber and index, put together as the server does it."""

    def __init__(self, core: str, load: Load) -> None:
        self._load = load
        self._atlas = Atlas(tiers=TierTable([TierSpec("gpu", ("GPU",))]), seed=0, core=index_core(core))
        self._subscriber = Subscriber(SubscriberOptions(decode=index_core(core).decode_batch))
        self._wanted = 0
        self._done = asyncio.Event()

    async def follow(self, publisher: int, address: str) -> None:
        """See `Consumer.follow`."""
        self._atlas.add(str(publisher))
        self._subscriber.subscribe(address, None, _Sink(self._atlas, str(publisher), self._count))

    async def finished(self, phase: Phase) -> float:
        """See `Consumer.finished`."""
        self._wanted += self._load.n_publishers * self._load.n_messages_in(phase)
        self._done.clear()
        await self._done.wait()
        return cpu_s()

    async def belief(self) -> Belief:
        """See `Consumer.belief`."""
        publishers = range(self._load.n_publishers)
        matches = self._atlas.match(Prefix(self._load.probe))
        belief = Belief(
            {n: sum(row.residencies for row in self._atlas.occupancy(str(n))) for n in publishers},
            {int(endpoint): match.tier_blocks["gpu"] for endpoint, match in matches.items()},
        )
        await self._subscriber.close()
        return belief

    def _count(self) -> None:
        self._wanted -= 1
        if not self._wanted:
            self._done.set()


class _Sink:
    """Applies what one publisher says. Implements `EventSink`."""

    def __init__(self, atlas: Atlas, endpoint: str, applied: Callable[[], None]) -> None:
        self._atlas, self._endpoint, self._applied = atlas, endpoint, applied

    def apply(self, batch: Batch, *, live: bool) -> None:  # noqa: ARG002 - EventSink has it
        self._atlas.apply(self._endpoint, 0, batch)
        self._applied()

    def reset(self, reason: str) -> None:
        raise SystemExit(f"publisher {self._endpoint} was taken to have restarted: {reason}")

    def rejected(self, reason: str) -> None:
        raise SystemExit(f"a message of publisher {self._endpoint} could not be read: {reason}")

    def trust_changed(self, old: Trust, new: Trust) -> None:
        """Trust has no part in the work that is measured."""


class _WorkerScore(msgspec.Struct, frozen=True):
    worker_id: int
    device_blocks: int


class _Scores(msgspec.Struct, frozen=True):
    workers: list[_WorkerScore]


class _StoredBlocks(msgspec.Struct, frozen=True):
    blocks: list[dict[str, object]]


class _SnapshotData(msgspec.Struct, frozen=True):
    stored: _StoredBlocks


class _SnapshotPayload(msgspec.Struct, frozen=True):
    data: _SnapshotData


class _SnapshotEvent(msgspec.Struct, frozen=True):
    worker_id: int
    event: _SnapshotPayload


class _Snapshot(msgspec.Struct, frozen=True):
    events: list[_SnapshotEvent]


class _SelectionService(Protocol):
    """The part of Dynamo's class of this name that is used here."""

    def upsert_worker(self, worker: dict[str, object]) -> Awaitable[object]: ...
    def overlap_scores(self, request: dict[str, object]) -> Awaitable[object]: ...
    def indexer_snapshot(self) -> Awaitable[object]: ...


class DynamoService:
    """Dynamo's runtime-free selection service, which subscribes to the publishers itself."""

    def __init__(self, load: Load) -> None:
        os.environ["DYN_LOG"] = "error"  # its log lines would cost CPU and fill the screen
        self._load = load
        core = importlib.import_module("dynamo._core")
        self._service: _SelectionService = core.SelectionService(indexer_threads=DYNAMO_THREADS)

    async def follow(self, publisher: int, address: str) -> None:
        """See `Consumer.follow`."""
        worker: dict[str, object] = {
            "worker_id": publisher,
            "model_name": _MODEL,
            "endpoint": f"http://127.0.0.1:{publisher + 1}",  # never called
            "block_size": BLOCK_SIZE,
            "kv_events_endpoint": address,
        }
        await self._service.upsert_worker(worker)

    async def finished(self, phase: Phase) -> float:
        """See `Consumer.finished`.

        It does not tell when it is through, and asking costs CPU: it is asked only when it has gone quiet.
        """
        while True:
            spent = await self._quiet()
            if len(await self._scores(list(phase_probe(phase)))) == self._load.n_publishers:
                return spent

    async def belief(self) -> Belief:
        """See `Consumer.belief`."""
        snapshot = msgspec.convert(await self._service.indexer_snapshot(), dict[str, _Snapshot])
        held: Counter[int] = Counter()
        for index in snapshot.values():
            for each in index.events:
                held[each.worker_id] += len(each.event.data.stored.blocks)
        return Belief(dict(held), await self._scores(list(self._load.probe)))

    async def _scores(self, tokens: list[int]) -> dict[int, int]:
        answer = await self._service.overlap_scores({"model_name": _MODEL, "token_ids": tokens})
        rows = msgspec.convert(answer, _Scores).workers
        return {row.worker_id: row.device_blocks for row in rows if row.device_blocks}

    async def _quiet(self) -> float:
        """Wait until this process does next to nothing; returns its CPU seconds when that began."""
        began, quiet = cpu_s(), 0
        while quiet < _QUIET_SAMPLES:
            before = cpu_s()
            await asyncio.sleep(_SAMPLE_S)
            if cpu_s() - before > _QUIET_SHARE * _SAMPLE_S:
                began, quiet = cpu_s(), 0
            else:
                quiet += 1
        return began
