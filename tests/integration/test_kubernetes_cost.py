"""Work of discovery per pod event, counted in executed instructions, with few and with many pods."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from types import FrameType
from typing import Any, Self

import pytest
from prometheus_client import CollectorRegistry

from kvatlas.configs.cluster import KubernetesConfig
from kvatlas.configs.schema import EventsConfig, SnapshotConfig
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.kubernetes.client.api_server import ApiServer
from kvatlas.fleet.kubernetes.client.backoff import Timing
from kvatlas.fleet.kubernetes.discovered import DiscoveredEndpoints
from kvatlas.fleet.kubernetes.discovery import Discovery
from kvatlas.fleet.kubernetes.pods import SLICE
from kvatlas.fleet.metrics import SnapshotMetrics
from kvatlas.fleet.roster import Wanted
from kvatlas.fleet.snapshots import Snapshots
from support.api_server import ApiServerDouble
from support.cluster import PODS, POOLS, pod, pool
from support.fleets import make_fleet
from support.tree import ROOT
from support.waiting import until

FEW, MANY = 20, 400
COUNTED = tuple(
    str(ROOT / part) for part in ("fleet/kubernetes", "fleet/roster.py", "fleet/fleet.py", "indexer")
)


class Instructions:
    """Count of the instructions of discovery, the fleet and the index (scrapes run at any time) that this thread executes inside `with`."""

    def __init__(self) -> None:
        self.n = 0
        self._before: Callable[..., Any] | None = None

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(COUNTED):
            return None
        frame.f_trace_opcodes = True
        return self._count

    def _count(self, _frame: FrameType, event: str, _arg: object) -> Callable[..., Any]:
        self.n += event == "opcode"
        return self._count


@contextlib.asynccontextmanager
async def following(double: ApiServerDouble, fleet: Fleet) -> AsyncGenerator[list[int]]:
    """Follow the double into the fleet; yields the sizes of the reported changes."""
    snapshots = Snapshots(
        SnapshotConfig(),
        fleet=fleet,
        models=["m"],
        wanted=lambda _: None,
        metrics=SnapshotMetrics(CollectorRegistry()),
    )
    discovered, sizes = DiscoveredEndpoints(fleet, snapshots, on_change=lambda: None), list[int]()

    def take(changes: Mapping[str, Wanted | None]) -> None:
        sizes.append(len(changes))
        discovered.change(changes)

    server = ApiServer(double.access, clock=time.monotonic)
    await server.start()
    discovery = Discovery(
        KubernetesConfig(inference_pool="mine"),
        EventsConfig(),
        server=server,
        namespace="ns",
        on_endpoints=take,
        timing=Timing(),
        clock=time.monotonic,
        rng=lambda: 0.5,
    )
    tasks = [asyncio.create_task(each) for each in (discovery.run(), discovered.run())]
    try:
        yield sizes
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await server.stop()


@pytest.fixture
async def double() -> AsyncGenerator[ApiServerDouble]:
    server = ApiServerDouble()
    server.put(POOLS, "mine", pool())
    await server.start()
    yield server
    await server.stop()


def put(double: ApiServerDouble, first: int, n_pods: int) -> None:
    for number in range(first, first + n_pods):
        body = pod(1)
        body["status"]["podIP"] = f"127.7.{number // 250}.{1 + number % 250}"
        double.put(PODS, f"p{number}", body)


def change(double: ApiServerDouble, name: str, *, ready: bool = True, **annotations: str) -> None:
    body = double.objects(PODS)[name]
    body = body | {
        "metadata": body["metadata"] | {"annotations": body["metadata"]["annotations"] | annotations}
    }
    body["status"] = body["status"] | {"conditions": [{"type": "Ready", "status": str(ready)}]}
    double.put(PODS, name, body)


async def until_size(fleet: Fleet, n_pods: int) -> None:
    await until(lambda: len(fleet) == n_pods, what=f"{n_pods} endpoints")


async def test_work_of_a_pod_event_is_the_same_with_many_pods(double: ApiServerDouble) -> None:
    work: dict[str, list[int]] = {"unread and not ready": [], "ready": []}
    put(double, 0, FEW)
    async with make_fleet() as fleet, following(double, fleet):
        for n_pods in (FEW, MANY):
            put(double, FEW, n_pods - FEW)
            await until_size(fleet, n_pods)
            await until(lambda: double.n_watches == 2, what="the watches")
            with Instructions() as ended:
                change(double, "p3", other=str(n_pods))
                change(double, "p4", ready=False)
                await until_size(fleet, n_pods - 1)
            with Instructions() as ready:
                change(double, "p4")
                await until_size(fleet, n_pods)
            work["unread and not ready"].append(ended.n)
            work["ready"].append(ready.n)
    few, many = zip(*work.values(), strict=True)
    assert min(few) > 0
    assert [b < 1.5 * a for a, b in zip(few, many, strict=True)] == [True, True], work


async def test_many_pods_come_in_slices(double: ApiServerDouble) -> None:
    put(double, 0, MANY)
    async with make_fleet() as fleet, following(double, fleet) as sizes:
        await until(lambda: len(fleet) == MANY, what="the pods")
        assert max(sizes) <= SLICE
        double.put(POOLS, "mine", pool(10))
        await until(
            lambda: {e.address.rpartition(":")[2] for e in fleet if e.address} == {"10"}, what="the new port"
        )
        assert max(sizes) <= SLICE
        double.delete(POOLS, "mine")
        await until(lambda: len(fleet) == 0, what="the end")
        assert max(sizes) <= SLICE
