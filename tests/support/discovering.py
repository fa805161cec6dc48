"""Discovery beside the fake API server, with every state that it reported."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvatlas.configs.cluster import KubernetesConfig
from kvatlas.configs.schema import EventsConfig
from kvatlas.fleet.kubernetes.client.api_server import ApiServer
from kvatlas.fleet.kubernetes.client.backoff import Timing
from kvatlas.fleet.kubernetes.discovery import Discovery
from kvatlas.fleet.roster import Wanted
from support.api_server import ApiServerDouble

FAST = Timing(first_delay_s=0.005, max_delay_s=0.02, healthy_s=0.1, short_watch_s=0.001, gone_s=0.2)
OF_POOL = KubernetesConfig(inference_pool="mine")


@dataclass
class Found:
    """What discovery reported."""

    discovery: Discovery
    server: ApiServer
    reports: list[list[str]] = field(default_factory=list[list[str]])
    """Addresses after each change, sorted."""

    def addresses(self) -> list[str]:
        return self.reports[-1] if self.reports else []


@contextlib.asynccontextmanager
async def discovering(
    double: ApiServerDouble, config: KubernetesConfig = OF_POOL, *, timing: Timing = FAST
) -> AsyncGenerator[Found]:
    """Follow what the configuration names, until the end of the block."""
    server = ApiServer(double.access, clock=time.monotonic)
    await server.start()
    reports: list[list[str]] = []

    def take(endpoints: Mapping[str, Wanted]) -> None:
        reports.append(sorted(str(each.addresses.serving) for each in endpoints.values()))

    discovery = Discovery(
        config,
        EventsConfig(),
        server=server,
        namespace="ns",
        on_endpoints=take,
        timing=timing,
        clock=time.monotonic,
        rng=lambda: 0.5,
    )
    task = asyncio.create_task(discovery.run())
    try:
        yield Found(discovery, server, reports)
    finally:
        task.cancel()
        await asyncio.wait([task])
        await server.stop()
    assert task.cancelled()


def pod(number: int, app: str = "a") -> dict[str, Any]:
    return {
        "metadata": {"labels": {"app": app}},
        "status": {"podIP": f"10.0.0.{number}", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pool(app: str = "a", *ports: int) -> dict[str, Any]:
    targets = [{"number": port} for port in ports or (8000,)]
    return {"spec": {"selector": {"matchLabels": {"app": app}}, "targetPorts": targets}}


def objective(priority: int) -> dict[str, Any]:
    return {"spec": {"poolRef": {"name": "mine"}, "priority": priority}}


def rewrite(target: str) -> dict[str, Any]:
    """Return a rewrite of model `m`."""
    rule = {
        "matches": [{"model": {"type": "Exact", "value": "m"}}],
        "targets": [{"modelRewrite": target}],
    }
    return {"spec": {"poolRef": {"name": "mine"}, "rules": [rule]}}
