"""Whether requests should be sent to this process."""

from __future__ import annotations

import asyncio
import logging
import time

from prometheus_client import CollectorRegistry, Gauge

from ..api.extproc.health import HealthService
from ..fleet.fleet import Fleet
from ..fleet.kubernetes.cluster import Cluster

log = logging.getLogger(__name__)

HISTORY_PATIENCE_S = 5.0
"""Wait for an endpoint that does not answer, before the process calls itself ready without its history."""

LOOK_S = 0.05
"""Time between two looks, at start, whether what is waited for is there."""


class Readiness:
    """Good once the fleet's history is known, while the cluster says so too, and until the process drains.

    Args:
        fleet: whose history is waited for.
        cluster: may have its own reasons against it.
        health: told of every change.
        registry: where readiness is shown.
    """

    def __init__(
        self, fleet: Fleet, cluster: Cluster, health: HealthService, registry: CollectorRegistry
    ) -> None:
        self._fleet, self._cluster = fleet, cluster
        self._health = health
        self._shown = Gauge("kvatlas_ready", "1 when requests should be sent here.", registry=registry)
        self._settled = self._draining = False

    async def settle(self) -> None:
        """Wait until every endpoint's history was fetched, or waited for in vain."""
        while not self._fleet.settled(  # noqa: ASYNC110 - once, at start
            now=time.monotonic(), patience_s=HISTORY_PATIENCE_S
        ):
            await asyncio.sleep(LOOK_S)
        self._settled = True
        self.look()

    def drain(self) -> None:
        """Not ready from now on."""
        self._draining = True
        self.look()

    def look(self) -> None:
        """Tell health checks of it, if it has changed."""
        ready = self._settled and self._cluster.is_ready and not self._draining
        if ready != self._health.ready:
            self._health.ready = ready
            self._shown.set(ready)
            log.info("ready" if ready else "not ready")
