"""Endpoint discovery: watches a pool and its pods, and reports the endpoints whenever they change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from ...configs.cluster import KubernetesConfig
from ...configs.endpoints import DEFAULT_SCRAPE
from ...configs.schema import EventsConfig
from ...configs.scraping import MetricsScrapeConfig
from ..roster import Wanted
from .client.api_server import ApiServer
from .client.backoff import Timing
from .client.errors import Failure
from .client.follower import Collection, Follower
from .client.list_watch import ListWatch
from .client.wire import KubernetesObject
from .kinds import POOL_VERSIONS, InferencePool, OldInferencePool, Pod, Pool
from .objectives import InferenceObjective, priorities
from .pods import PodEndpoints
from .pool_objects import PoolObjects, PoolScope
from .rewrites import InferenceModelRewrite, ModelRewrites

log = logging.getLogger(__name__)

T = TypeVar("T", bound=KubernetesObject)

PoolKind = InferencePool | OldInferencePool
AnyFollower = (
    Follower[Pod] | Follower[PoolKind] | Follower[InferenceObjective] | Follower[InferenceModelRewrite]
)

DEFAULT_NAMESPACE = "default"

EndpointsListener = Callable[[Mapping[str, Wanted | None]], None]
"""Called with the endpoints that changed, by name; None for those that are gone."""


class Discovery:
    """Follows a pool and its pods, or the pods of a label selector.

    The last known endpoints stay while the API server does not respond, and until the pods of a new selector are listed.
    Pods that stop serving go at once.

    Args:
        config: names the pool, or the label selector.
        events: where engines publish unless a pod's annotations differ.
        server: the API server.
        namespace: namespace of the pool and its pods.
        on_endpoints: called with the endpoints that changed.
        timing: retry and watch durations.
        clock: monotonic seconds.
        rng: uniform in [0, 1).
        scrape: where engines serve their metrics.
    """

    def __init__(
        self,
        config: KubernetesConfig,
        events: EventsConfig,
        *,
        server: ApiServer,
        namespace: str,
        on_endpoints: EndpointsListener,
        timing: Timing,
        clock: Callable[[], float],
        rng: Callable[[], float],
        scrape: MetricsScrapeConfig = DEFAULT_SCRAPE,
    ) -> None:
        self._config, self._on_endpoints = config, on_endpoints
        self._scope = PoolScope(config, server, namespace, timing, clock, rng)
        self._pod_endpoints = PodEndpoints(events, scrape)
        self._has_more = asyncio.Event()
        self._pool: Pool | None = None
        self._listed_pool: Pool | None = None
        """The pool whose pods are listed; it differs from `_pool` while those of a new selector are not."""
        self._removal: asyncio.TimerHandle | None = None
        self._selected, self._pool_read = asyncio.Event(), asyncio.Event()
        self._listed = False
        self.priorities: dict[str, int] = {}
        """Objective -> priority, from the pool's InferenceObjectives; updated in place."""
        self.rewrites = ModelRewrites(rng)
        """Model rewrites from the pool's InferenceModelRewrites; updated in place."""
        self._about_pool: tuple[
            PoolObjects[InferenceObjective] | PoolObjects[InferenceModelRewrite], ...
        ] = ()
        self.pods = self._follower(Collection(self._path("pods")), Pod, self._pods_changed)
        """Keeps a copy of the pods."""
        self.pools: Follower[PoolKind] | None = None
        """Keeps a copy of the pool; None with a label selector."""
        if config.inference_pool:
            self._follow_pool()
        else:
            self._use(Pool(None, config.target_ports), config.endpoint_selector)

    @property
    def has_pool(self) -> bool:
        """Whether requests can be expected: the pool exists, or none is needed."""
        return self._pool is not None

    @property
    def absent_pool(self) -> str:
        """The pool and where it was looked for, if the API server says that there is none; otherwise empty."""
        if self.pools is None or self.has_pool or not self.pools.copy.synced:
            return ""
        config = self._config
        return f"InferencePool {config.inference_pool} in namespace {self._scope.namespace} ({config.pool_group})"

    @property
    def synced(self) -> bool:
        """Whether all that decides was read at least once; a new selector does not change this."""
        return self.awaited is None

    @property
    def awaited(self) -> str | None:
        """The first kind that has to be read, and could be, before this is synced; None if it is."""
        if not self.has_pool:
            return "inferencepools"
        if not self._listed:
            return "pods"
        return next((each.plural for each in self._about_pool if not each.is_decided), None)

    def problems(self) -> Iterator[tuple[str, Failure]]:
        """Yield each kind that is not followed, and why."""
        for kind, follower in (("pods", self.pods), ("inferencepools", self.pools)):
            if follower is not None and follower.copy.problem is not None:
                yield kind, follower.copy.problem
        for objects in self._about_pool:
            if objects.problem is not None:
                yield objects.plural, objects.problem

    def configure(self, events: EventsConfig, scrape: MetricsScrapeConfig = DEFAULT_SCRAPE) -> None:
        """Replace the settings of events and of scraping."""
        self._pod_endpoints.configure(events, scrape)
        self._pods_changed()

    async def run(self) -> None:
        """Follow, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if self.pools is not None:
                    tasks.create_task(self.pools.run())
                    await self._pool_read.wait()
                # a server that has just started may refuse or not find anything, until it has served the pool
                for objects in self._about_pool:
                    tasks.create_task(objects.run())
                tasks.create_task(self._take_slices())
                await self._selected.wait()
                tasks.create_task(self.pods.run())
        finally:
            self._keep_pool()

    def followers(self) -> Iterator[tuple[str, AnyFollower]]:
        """Yield every follower with the name of its kind."""
        yield "pods", self.pods
        if self.pools is not None:
            yield "inferencepools", self.pools
        for objects in self._about_pool:
            if objects.follower is not None:
                yield objects.plural, objects.follower

    def _follow_pool(self) -> None:
        config = self._config
        version, kind = POOL_VERSIONS[config.pool_group]
        path = self._path("inferencepools", f"/apis/{config.pool_group}/{version}")
        by_name = f"metadata.name={config.inference_pool}"
        self.pools = self._follower(Collection(path, field_selector=by_name), kind, self._pool_changed)
        self._about_pool = (
            PoolObjects(
                self._scope, "inferenceobjectives", InferenceObjective, on_change=self._use_objectives
            ),
            PoolObjects(
                self._scope, "inferencemodelrewrites", InferenceModelRewrite, on_change=self.rewrites.use
            ),
        )

    def _path(self, plural: str, api: str = "/api/v1") -> str:
        return f"{api}/namespaces/{self._scope.namespace}/{plural}"

    def _follower(self, collection: Collection, kind: type[T], on_change: Callable[[], None]) -> Follower[T]:
        scope = self._scope
        copy = ListWatch(kind, timing=scope.timing, rng=scope.rng)
        return Follower(scope.server, collection, copy, on_change=on_change, clock=scope.clock)

    def _pool_changed(self) -> None:
        assert self.pools is not None  # noqa: S101 - the caller is its follower
        found = self.pools.copy.objects.get(self._config.inference_pool)
        pool = found.pool if found is not None else None
        if found is not None:
            for objects in self._about_pool:
                objects.use_labels(found.metadata.labels)
        if self.pools.copy.synced:
            self._pool_read.set()
        if pool is None:
            if self._pool is not None and self._removal is None:
                loop = asyncio.get_running_loop()
                self._removal = loop.call_later(self._scope.timing.gone_s, self._remove_pool)
            return
        self._keep_pool()
        if pool != self._pool:
            selector = pool.selector or {}
            log.info(
                "InferencePool %s: pods with %s, ports %s",
                self._config.inference_pool, selector, ", ".join(map(str, pool.target_ports)),
            )  # fmt: skip
            self._use(pool, ",".join(f"{name}={value}" for name, value in selector.items()))
            self._pods_changed()

    def _keep_pool(self) -> None:
        if self._removal is not None:
            self._removal.cancel()
            self._removal = None

    def _remove_pool(self) -> None:
        log.warning("InferencePool %s is gone: its endpoints are removed", self._config.inference_pool)
        self._pool = self._listed_pool = self._removal = None
        self._pods_changed()

    def _use_objectives(self, objectives: Sequence[InferenceObjective]) -> None:
        self.priorities.clear()
        self.priorities.update(priorities(objectives))

    def _use(self, pool: Pool, selector: str) -> None:
        self._pool = pool
        self.pods.follow(Collection(self._path("pods"), label_selector=selector))
        self._selected.set()

    def _pods_changed(self) -> None:
        copy, waits = self.pods.copy, self._pod_endpoints.has_more
        if copy.synced:
            self._listed_pool = self._pool
        self._pod_endpoints.note(copy.objects, self._listed_pool, copy.changed)
        if not waits:
            self._take_slice()

    def _take_slice(self) -> None:
        """Report the endpoints of a few changed pods; `_take_slices` goes on if there are more."""
        changes = self._pod_endpoints.take()
        if self._pod_endpoints.has_more:
            self._has_more.set()
        else:
            self._listed = self._listed or self.pods.copy.synced
        if changes:
            self._on_endpoints(changes)

    async def _take_slices(self) -> None:
        """Report what a single slice leaves; decisions run between the slices."""
        self._has_more.set()  # run again after a failure, this may have left a slice
        while True:
            await self._has_more.wait()
            self._has_more.clear()
            await asyncio.sleep(0)
            self._take_slice()


def namespace_of(config: KubernetesConfig, environment: Mapping[str, str], own: str | None) -> str:
    """Return the namespace of the pool and its pods.

    Args:
        config: may name it.
        environment: variables of the process; charts set NAMESPACE.
        own: namespace of the service account or kubeconfig; None if unknown.
    """
    return config.namespace or environment.get("NAMESPACE", "") or own or DEFAULT_NAMESPACE
