"""Rolling updates of a Deployment, as its pods show them, while requests flow through the chart's Envoy.

No request fails, none is sent to a pod that was told to end, and nothing of such a pod is left.
KVATLAS_ROLLOUTS=20x50x500 runs 20 rollouts of 50 pods with 500 requests per second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvatlas.sim.envoy import EnvoyProcess, find_envoy
from support.gateway_cluster import PODS, Cluster, Traffic, address, cluster, envoy_config, kvatlas_config
from support.serve import Served, serving
from support.waiting import until

pytestmark = pytest.mark.slow

N_ROLLOUTS, N_PODS, PER_SECOND = map(int, os.environ.get("KVATLAS_ROLLOUTS", "3x12x100").split("x"))
AT_A_TIME = max(1, N_PODS // 4)
"""Pods replaced together: `maxSurge` and `maxUnavailable` are a quarter by default."""

TOLD_TO_END = "2026-01-01T00:00:00Z"


@dataclass
class Deployment:
    """Pods of one Deployment, and what its controller, its kubelets and a readiness gate write."""

    made: Cluster
    served: Served
    traffic: Traffic
    names: list[str] = field(default_factory=list[str])
    ended: dict[str, float] = field(default_factory=dict[str, float])
    """Server -> time since which kvatlas knows that it ends."""
    n_made: int = 1

    async def roll_out(self, revision: int) -> None:
        """Replace all pods, a few at a time."""
        old = list(self.names)
        for start in range(0, N_PODS, AT_A_TIME):
            n_new = min(AT_A_TIME, N_PODS - start)
            await asyncio.gather(*(self.add(revision, start + number) for number in range(n_new)))
            await asyncio.gather(*(self.end(name) for name in old[start : start + n_new]))

    async def add(self, revision: int, number: int) -> None:
        """Create a pod: pending, started, its containers ready, and ready once its gate is open."""
        self.n_made += 1
        name, place = f"qwen-{revision:05x}-{number}", self.n_made
        self.show(name, place, has_address=False)
        self.show(name, place)
        await self.made.run(name, place, ready=False)
        self.show(name, place, containers_ready=True)
        self.show(name, place, containers_ready=True, gate_open=True)
        self.names.append(name)
        await self.until_endpoints(f"{name}-rank-0", present=True)

    async def end(self, name: str) -> None:
        """Tell a pod to end; it answers what it has, is not ready, and is deleted when nothing is left."""
        place, server = self.made.numbers[name], self.made.servers[name]
        self.names.remove(name)
        self.show(name, place, containers_ready=True, gate_open=True, ends=True)
        await self.until_endpoints(f"{name}-rank-0", present=False)
        self.ended[server.config.name] = asyncio.get_running_loop().time()
        await self.traffic.until_answered()
        await self.made.servers.pop(name).stop()
        self.show(name, place, ends=True)
        self.made.api.delete(PODS, name)

    async def until_endpoints(self, name: str, *, present: bool) -> None:
        """Wait until kvatlas has an endpoint, or has it no more."""

        async def they_do() -> bool:
            return (name in await self.endpoints()) == present

        await until(they_do, what=f"{name} {'known' if present else 'gone'}")

    async def endpoints(self) -> set[str]:
        """Return the names of kvatlas' endpoints."""
        return {row["name"] for row in (await self.served.get("/v1/endpoints"))["endpoints"]}

    def show(
        self,
        name: str,
        place: int,
        *,
        has_address: bool = True,
        containers_ready: bool = False,
        gate_open: bool = False,
        ends: bool = False,
    ) -> None:
        """Change what the API server shows of a pod with a readiness gate."""
        meta: dict[str, Any] = {"labels": {"app": "a"}}
        if ends:
            meta |= {"deletionTimestamp": TOLD_TO_END, "deletionGracePeriodSeconds": 130}
        conditions = {
            "PodScheduled": True,
            "Initialized": has_address,
            "example.com/registered": gate_open,
            "ContainersReady": containers_ready,
            "Ready": containers_ready and gate_open,
        }
        self.made.api.put(PODS, name, {
            "metadata": meta,
            "spec": {"readinessGates": [{"conditionType": "example.com/registered"}]},
            "status": {
                "phase": "Running" if has_address else "Pending",
                **({"podIP": address(place)} if has_address else {}),
                "conditions": [{"type": kind, "status": str(is_so)} for kind, is_so in conditions.items()],
            },
        })  # fmt: skip


def labelled(metrics: str, name: str) -> dict[str, float]:
    """Return endpoint -> sum of a metric's series."""
    found: dict[str, float] = {}
    for endpoint, value in re.findall(
        rf'^{name}{{.*?endpoint="([^"]+)".*?}} (\S+)$', metrics, flags=re.MULTILINE
    ):
        found[endpoint] = found.get(endpoint, 0.0) + float(value)
    return found


def late(traffic: Traffic, ended: dict[str, float]) -> Iterable[str]:
    """Return the servers that answered a request sent after kvatlas knew their end."""
    return {a.server for a in traffic.answers if a.sent_at > ended.get(a.server, a.sent_at)}


async def test_no_request_fails_when_a_deployment_rolls_out(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        made = await stack.enter_async_context(cluster(tmp_path))
        made.pool()
        await made.run("first", 1)
        served = await stack.enter_async_context(serving(kvatlas_config(made, tmp_path), tmp_path))
        envoy = await stack.enter_async_context(EnvoyProcess(envoy_config(served), binary=find_envoy()))
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        traffic = Traffic(envoy.gateway_url, session, PER_SECOND)
        deployment = Deployment(made, served, traffic, names=["first"])
        await asyncio.gather(*(deployment.add(0, number) for number in range(N_PODS)))
        flow = asyncio.create_task(traffic.flow())
        try:
            await deployment.end("first")
            for revision in range(1, N_ROLLOUTS + 1):
                await deployment.roll_out(revision)
        finally:
            flow.cancel()
            await asyncio.wait([flow])
        names = {f"{name}-rank-0" for name in deployment.names}
        assert await deployment.endpoints() == names

        async def is_idle() -> bool:
            return not any(labelled(await served.metrics(), "kvatlas_in_flight_requests").values())

        await until(is_idle, what="the end of all bookings")
        metrics = await served.metrics()
    flow.result()
    assert Counter(answer.status for answer in traffic.answers) == {200: len(traffic.answers)}
    assert late(traffic, deployment.ended) == set()
    assert len(deployment.ended) == N_ROLLOUTS * N_PODS + 1
    assert labelled(metrics, "kvatlas_residencies").keys() <= names
    held = sum(labelled(metrics, "kvatlas_residencies").values())
    assert held > 0
    assert f"kvatlas_index_residencies {held}" in metrics
