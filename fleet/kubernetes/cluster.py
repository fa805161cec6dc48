"""The process in its Kubernetes cluster: endpoint discovery and leader election."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import Metric

from ...configs.endpoints import DEFAULT_SCRAPE
from ...configs.schema import EventsConfig, KVAtlasConfig
from ...configs.scraping import MetricsScrapeConfig
from ...events.tasks import keep
from ..fleet import Fleet
from ..roster import Wanted
from ..snapshots import Snapshots
from .client.access import find_access
from .client.api_server import ApiServer
from .client.backoff import Timing
from .discovered import DiscoveredEndpoints
from .discovery import Discovery, namespace_of
from .leadership import Leadership
from .metrics import kubernetes_families, leader_families
from .problems import LEASES, Problem, discovery_problems
from .rewrites import ModelRewrites
from .tasks import end


class Cluster:
    """Discovery and leader election of one process; idle without `endpoints.kubernetes` and `leaderElection`.

    Args:
        config: configuration of the process.
        fleet: gets the discovered endpoints.
        snapshots: state to restore for discovered endpoints.
        on_change: called when `is_ready` may have changed.
        environment: variables of the process.

    Raises:
        AccessError: no API server can be reached by the configuration or environment.
    """

    def __init__(
        self,
        config: KVAtlasConfig,
        *,
        fleet: Fleet,
        snapshots: Snapshots,
        on_change: Callable[[], None],
        environment: Mapping[str, str],
    ) -> None:
        kubernetes = config.endpoints.kubernetes
        self._discovered = DiscoveredEndpoints(fleet, snapshots, on_change=on_change)
        self._tasks: list[asyncio.Task[None]] = []
        self._server: ApiServer | None = None
        self._discovery: Discovery | None = None
        self._leadership: Leadership | None = None
        if not kubernetes.is_on and not config.leader_election.enabled:
            return
        access = find_access(kubernetes.kubeconfig, environment)
        namespace = namespace_of(kubernetes, environment, access.namespace)
        self._server = ApiServer(access, clock=time.monotonic)
        if kubernetes.is_on:
            self._discovery = Discovery(
                kubernetes,
                config.events,
                server=self._server,
                namespace=namespace,
                on_endpoints=self._discovered.change,
                timing=Timing(),
                clock=time.monotonic,
                rng=random.random,
                scrape=config.metrics_scrape,
            )
        if config.leader_election.enabled:
            self._leadership = Leadership(
                config, self._server, namespace=namespace, environment=environment, on_change=on_change
            )

    @property
    def is_synced(self) -> bool:
        """Whether all pods are known, if discovery is on, and no endpoint waits for its snapshot."""
        return self._discovery is None or (self._discovery.synced and not self._discovered.is_loading)

    @property
    def endpoints(self) -> Mapping[str, Wanted]:
        """The discovered endpoints that the fleet has, by name; a live view."""
        return self._discovered.in_fleet

    @property
    def is_ready(self) -> bool:
        """Whether the cluster lets requests be sent here: pods are known, and this process leads if it must."""
        return self.is_synced and (self._leadership is None or self._leadership.is_ready)

    def problems(self) -> list[Problem]:
        """Return what keeps the cluster from being followed and a leader from being elected."""
        found = list(discovery_problems(self._discovery)) if self._discovery else []
        if self._leadership is not None and (problem := self._leadership.problem) is not None:
            found.append(problem)
        return found

    @property
    def absent_pool(self) -> str:
        """The pool that does not exist, and where; empty if it exists or is not known yet."""
        return self._discovery.absent_pool if self._discovery else ""

    @property
    def leader(self) -> str:
        """Who leads, in words; empty without election."""
        return self._leadership.state if self._leadership else ""

    def why_not_ready(self) -> Iterator[str]:
        """Yield the reasons why the cluster lets no requests be sent here; none if it does."""
        problems = self.problems()
        if not self.is_synced:
            waits = [each.evidence for each in problems if each.kind != LEASES]
            if self.absent_pool:
                waits.append(f"there is no {self.absent_pool}")
            awaited = self._discovery.awaited if self._discovery else None
            yield from waits or [f"waiting for {awaited or 'the snapshot'}"]
        if self._leadership is not None and not self._leadership.is_ready:
            yield self._leadership.state
            yield from (each.evidence for each in problems if each.kind == LEASES)

    @property
    def priorities(self) -> Mapping[str, int]:
        """Objective -> priority, from the pool's InferenceObjectives; a live view."""
        return self._discovery.priorities if self._discovery else {}

    @property
    def rewrites(self) -> ModelRewrites | None:
        """Model rewrites from the pool's InferenceModelRewrites; None without discovery."""
        return self._discovery.rewrites if self._discovery else None

    def configure(self, events: EventsConfig, scrape: MetricsScrapeConfig = DEFAULT_SCRAPE) -> None:
        """Replace the settings of events and of scraping of discovered endpoints."""
        if self._discovery is not None:
            self._discovery.configure(events, scrape)

    async def start(self) -> None:
        """Start discovery and the election."""
        if self._server is None:
            return
        await self._server.start()
        self._tasks.append(keep(self._discovered.run, "discovery release"))
        if self._discovery is not None:
            self._tasks.append(keep(self._discovery.run, "discovery"))
        if self._leadership is not None:
            self._leadership.start()

    async def hand_over(self, *, notice_s: float) -> None:
        """Give the lead to another process; see `Leadership.hand_over`."""
        if self._leadership is not None:
            await self._leadership.hand_over(notice_s=notice_s)

    async def resign(self) -> None:
        """Stop discovery and give up the lead. Discovered endpoints stay in the fleet."""
        await end(self._tasks)
        if self._leadership is not None:
            await self._leadership.resign()
        if self._server is not None:
            await self._server.stop()

    def families(self) -> Iterator[Metric]:
        """Yield the metrics of discovery and election."""
        yield from kubernetes_families(self._discovery)
        yield from self._leadership.families() if self._leadership else leader_families(None)
