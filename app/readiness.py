"""Readiness of the process for requests."""

from __future__ import annotations

import asyncio
import logging
import time

from prometheus_client import CollectorRegistry, Gauge

from ..api.extproc.health import HealthService
from ..fleet.fleet import Fleet
from ..fleet.kubernetes.cluster import Cluster
from .tasks import TaskFailures

log = logging.getLogger(__name__)

SILENT_S = 2.0
"""Longest wait without a line in the log about its reason."""

POLL_S = 0.05
"""Poll interval at the start."""


class Readiness:
    """Ready once the fleet's event history is known, while the cluster is ready too, and until the process drains.

    Args:
        fleet: its event history is awaited.
        cluster: may be not ready for reasons of its own.
        health: reports readiness to gateways.
        tasks: failed ones, without which this process is not ready.
        registry: shows readiness as a metric.
    """

    def __init__(
        self,
        fleet: Fleet,
        cluster: Cluster,
        health: HealthService,
        registry: CollectorRegistry,
        tasks: TaskFailures,
    ) -> None:
        self._fleet, self._cluster = fleet, cluster
        self._health, self._tasks = health, tasks
        tasks.on_change = self.update
        self._shown = Gauge("kvatlas_ready", "1 when requests should be sent here.", registry=registry)
        self._settled = self._draining = False

    async def settle(self) -> None:
        """Wait until the event history of every endpoint is fetched or given up."""
        began, logged = time.monotonic(), False
        while awaited := self._fleet.awaited(now=time.monotonic()):
            if not logged and time.monotonic() - began > SILENT_S:
                logged = True
                log.info(
                    "not ready yet: fetching the event history of %d endpoint(s), such as %s",
                    len(awaited), awaited[0],
                )  # fmt: skip
            await asyncio.sleep(POLL_S)
        self._settled = True
        self.update()

    def drain(self) -> None:
        """Report not ready from now on."""
        self._draining = True
        self.update()

    def why_not(self) -> list[str]:
        """Return the reasons why no requests should be sent here; empty if they should."""
        if self._health.ready:
            return []
        if self._draining:
            return ["this process is stopping"]
        reasons = list(self._cluster.why_not_ready())
        if self._cluster.is_synced and not self._settled:
            reasons.append("the endpoints' event history is still being fetched")
        reasons.extend(f"a bug ended the task {task}, which starts again" for task in self._tasks.down())
        return reasons or ["this process has just started"]

    def update(self) -> None:
        """Update health checks and the metric if readiness has changed."""
        ready = (
            self._settled and self._cluster.is_ready and not self._draining and not any(self._tasks.down())
        )
        if ready != self._health.ready:
            self._health.ready = ready
            self._shown.set(ready)
            log.info("ready" if ready else "not ready")
