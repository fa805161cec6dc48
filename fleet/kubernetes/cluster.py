"""The process in its Kubernetes cluster: endpoint discovery and leader election."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import Metric

from ...configs.schema import EventsConfig, KVAtlasConfig
from ...events.sockets import spawn
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

    @property
    def priorities(self) -> Mapping[str, int]:
        """Objective -> priority, from the pool's InferenceObjectives; a live view."""
        return self._discovery.priorities if self._discovery else {}

    @property
    def rewrites(self) -> ModelRewrites | None:
        """Model rewrites from the pool's InferenceModelRewrites; None without discovery."""
        return self._discovery.rewrites if self._discovery else None

    def configure(self, events: EventsConfig) -> None:
        """Replace the event settings of discovered endpoints."""
        if self._discovery is not None:
            self._discovery.configure(events)

    async def start(self) -> None:
        """Start discovery and the election."""
        if self._server is None:
            return
        await self._server.start()
        self._tasks.append(spawn(self._discovered.run(), "discovery release"))
        if self._discovery is not None:
            self._tasks.append(spawn(self._discovery.run(), "discovery"))
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
        yield from kubernetes_families(self._discovery.followers() if self._discovery else ())
        yield from self._leadership.families() if self._leadership else leader_families(None)
