"""Dynamo as it is measured: the classes of `ai-dynamo-runtime` that run in this process without a cluster."""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from array import array
from collections import Counter
from collections.abc import Awaitable
from typing import Protocol, cast

import msgspec

from .columns import Answer
from .fleet import BLOCK_SIZE, N_TIERS, Blocks
from .publisher import Load, Phase
from .systems import cpu_s

THREADS = min(4, os.cpu_count() or 1)
"""Threads of its indexer; the default is 4."""

_MODEL = "bench"
_SAMPLE_S = 0.02
_QUIET_SAMPLES = 5
_QUIET_SHARE = 0.05


class _OverlapScores(Protocol):
    @property
    def scores(self) -> dict[tuple[int, int], int]: ...


class _RadixTree(Protocol):
    def apply_event(self, worker_id: int, event: bytes) -> None: ...
    def find_matches(self, sequence: list[int]) -> _OverlapScores: ...
    def remove_worker(self, worker_id: int) -> None: ...


class _SelectionService(Protocol):
    def upsert_worker(self, worker: dict[str, object]) -> Awaitable[object]: ...
    def delete_worker(self, worker_id: int) -> Awaitable[object]: ...
    def overlap_scores(self, request: dict[str, object]) -> Awaitable[object]: ...
    def indexer_snapshot(self) -> Awaitable[object]: ...
    def shutdown(self) -> None: ...


class _Core(Protocol):
    """The module `dynamo._core`, as far as it is used here."""

    def RadixTree(self) -> _RadixTree: ...  # noqa: N802 - a class of Dynamo
    def SelectionService(self, *, indexer_threads: int) -> _SelectionService: ...  # noqa: N802 - as above
    def compute_block_hash_for_seq(self, tokens: list[int], kv_block_size: int) -> list[int]: ...


def _core() -> _Core:
    os.environ["DYN_LOG"] = "error"  # its log lines would cost CPU and fill the screen
    return cast("_Core", importlib.import_module("dynamo._core"))


def local_hashes(tokens: list[int]) -> list[int]:
    """Return the hashes of a prompt's blocks, each by itself, as Dynamo makes them."""
    return _core().compute_block_hash_for_seq(tokens, BLOCK_SIZE)


class RadixTrees:
    """Dynamo's `RadixTree`, one per tier; its events are JSON. Implements `MeasuredIndex`."""

    def __init__(self) -> None:
        core = _core()
        self._trees = [core.RadixTree() for _ in range(N_TIERS)]

    def store(self, holder: int, blocks: Blocks) -> None:
        """See `MeasuredIndex.store`."""
        rows = [{"block_hash": key, "tokens_hash": key} for key in blocks.keys]
        self._apply(holder, {"stored": {"parent_hash": blocks.parent, "blocks": rows}})

    def remove(self, holder: int, blocks: Blocks) -> None:
        """See `MeasuredIndex.remove`."""
        self._apply(holder, {"removed": {"block_hashes": list(blocks.keys)}})

    def forget(self, endpoint: int) -> None:
        """See `MeasuredIndex.forget`."""
        for tree in self._trees:
            tree.remove_worker(endpoint)

    def sweep(self) -> bool:
        """See `MeasuredIndex.sweep`."""
        return False

    async def timed_match(self, prompt: Blocks) -> tuple[float, Answer]:
        """See `Matcher.timed_match`. The CPU tree has what the GPU tree has, so it tells both tiers' union."""
        sequence = list(prompt.keys)
        begin = time.perf_counter()
        gpu, cpu = (tree.find_matches(sequence).scores for tree in self._trees)
        seconds = time.perf_counter() - begin
        return seconds, {worker[0]: (gpu.get(worker, 0), n_blocks) for worker, n_blocks in cpu.items()}

    def _apply(self, holder: int, data: dict[str, object]) -> None:
        event = msgspec.json.encode({"event_id": 1, "data": data, "dp_rank": 0})
        self._trees[holder % N_TIERS].apply_event(holder // N_TIERS, event)


class _WorkerScore(msgspec.Struct, frozen=True):
    worker_id: int
    device_blocks: int
    host_pinned_blocks: int


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


class Service:
    """Dynamo's `SelectionService`, which knows tiers and subscribes to the publishers itself. Implements `System`."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._service = _core().SelectionService(indexer_threads=THREADS)

    async def follow(self, publisher: int, address: str) -> None:
        """See `System.follow`."""
        worker: dict[str, object] = {
            "worker_id": publisher,
            "model_name": _MODEL,
            "endpoint": f"http://127.0.0.1:{publisher + 1}",  # never called
            "block_size": BLOCK_SIZE,
            "kv_events_endpoint": address,
        }
        await self._service.upsert_worker(worker)

    async def finished(self, phase: Phase) -> float:
        """See `System.finished`.

        It does not tell when it is through, and asking costs CPU: it is asked only when it has gone quiet.
        """
        while True:
            spent = await self._quiet()
            _, answer = await self.timed_match(self._load.last_block(phase))
            if len(answer) == self._load.n_publishers:
                return spent

    async def timed_match(self, prompt: Blocks) -> tuple[float, Answer]:
        """See `Matcher.timed_match`. Asked by hashes, which spares it hashing the tokens."""
        request: dict[str, object] = {
            "model_name": _MODEL,
            "block_hashes": _signed(array("Q", local_hashes(list(prompt.tokens)))),
            "sequence_hashes": _signed(prompt.keys),
            "isl_tokens": prompt.n_tokens,
        }
        begin = time.perf_counter()
        answer = await self._service.overlap_scores(request)
        seconds = time.perf_counter() - begin
        rows = msgspec.convert(answer, _Scores).workers
        return seconds, {
            row.worker_id: (row.device_blocks, row.host_pinned_blocks)
            for row in rows
            if row.host_pinned_blocks
        }

    def slices(self) -> list[float]:
        """See `System.slices`."""
        return []

    async def residencies(self) -> dict[int, int]:
        """See `System.residencies`. Its snapshot tells GPU blocks alone."""
        snapshot = msgspec.convert(await self._service.indexer_snapshot(), dict[str, _Snapshot])
        held: Counter[int] = Counter()
        for index in snapshot.values():
            for each in index.events:
                held[each.worker_id] += len(each.event.data.stored.blocks)
        return dict(held)

    async def forget(self, publisher: int) -> None:
        """See `System.forget`."""
        await self._service.delete_worker(publisher)

    async def close(self) -> None:
        """See `System.close`."""
        self._service.shutdown()

    async def _quiet(self) -> float:
        """Wait until this process is idle; returns its CPU seconds when that began."""
        began, quiet = cpu_s(), 0
        while quiet < _QUIET_SAMPLES:
            before = cpu_s()
            await asyncio.sleep(_SAMPLE_S)
            if cpu_s() - before > _QUIET_SHARE * _SAMPLE_S:
                began, quiet = cpu_s(), 0
            else:
                quiet += 1
        return began


def _signed(hashes: array[int]) -> list[int]:
    """Return hashes as signed integers, which its interface takes."""
    return array("q", hashes.tobytes()).tolist()
