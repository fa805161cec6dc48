"""The endpoints of a cluster: a pool and its pods followed, and told as one list whenever either changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from ...configs.cluster import KubernetesConfig
from ...configs.schema import EventsConfig
from .client.api_server import ApiServer
from .client.backoff import Pace
from .client.follower import Collection, Follower
from .client.list_watch import ListWatch
from .client.wire import KubernetesObject
from .kinds import POOL_VERSIONS, InferencePool, OldInferencePool, Pod, Pool
from .objectives import InferenceObjective, priorities
from .pods import PodEndpoint, PodEndpoints
from .pool_objects import PoolObjects, PoolScope
from .rewrites import InferenceModelRewrite, ModelRewrites

log = logging.getLogger(__name__)

T = TypeVar("T", bound=KubernetesObject)

PoolKind = InferencePool | OldInferencePool
AnyFollower = (
    Follower[Pod] | Follower[PoolKind] | Follower[InferenceObjective] | Follower[InferenceModelRewrite]
)

DEFAULT_NAMESPACE = "default"

Told = Callable[[Mapping[str, PodEndpoint]], None]
"""Given every endpoint there is, by name, whenever one of them changes."""


class Discovery:
    """Follows a pool and its pods, or the pods of a label selector.

    What was known stays in force while the API server does not answer. Pods that stop to serve, and those that a new
    selector leaves out, go at once.

    Args:
        config: which pool, or which pods.
        events: where engines publish unless a pod says otherwise.
        server: the API server.
        namespace: of the pool and its pods.
        tell: told of the endpoints.
        pace: how often the API server is asked.
        clock: monotonic seconds.
        rng: uniform in [0, 1).
    """

    def __init__(
        self,
        config: KubernetesConfig,
        events: EventsConfig,
        *,
        server: ApiServer,
        namespace: str,
        tell: Told,
        pace: Pace,
        clock: Callable[[], float],
        rng: Callable[[], float],
    ) -> None:
        self._config, self._server, self._namespace, self._tell = config, server, namespace, tell
        self._pace, self._clock, self._rng = pace, clock, rng
        self._endpoints = PodEndpoints(events)
        self._told: Mapping[str, PodEndpoint] = {}
        self._warned: Mapping[str, str] = {}
        self._pool: Pool | None = None
        self._selected = asyncio.Event()
        self._listed = False
        self.priorities: dict[str, int] = {}
        """Objective -> priority, as the pool's objects say; changes with them."""
        self.rewrites = ModelRewrites(rng)
        """Models that the pool's objects put in the place of others; changes with them."""
        self._about_pool: tuple[
            PoolObjects[InferenceObjective] | PoolObjects[InferenceModelRewrite], ...
        ] = ()
        self.pods = self._follower(Collection(self._path("pods")), Pod, self._pods_changed)
        """Keeps the pods."""
        self.pools: Follower[PoolKind] | None = None
        """Keeps the pool; None without one."""
        if config.inference_pool:
            version, kind = POOL_VERSIONS[config.pool_group]
            chosen = f"metadata.name={config.inference_pool}"
            path = self._path("inferencepools", f"/apis/{config.pool_group}/{version}")
            self.pools = self._follower(Collection(path, field_selector=chosen), kind, self._pool_changed)
            scope = PoolScope(config, server, namespace, pace, clock, rng)
            self._about_pool = (
                PoolObjects(scope, "inferenceobjectives", InferenceObjective, tell=self._use_objectives),
                PoolObjects(scope, "inferencemodelrewrites", InferenceModelRewrite, tell=self.rewrites.use),
            )
        else:
            self._use(Pool(None, config.target_ports), config.endpoint_selector)

    @property
    def has_pool(self) -> bool:
        """Whether requests can be expected: the pool is there, or none is needed."""
        return self._pool is not None

    @property
    def synced(self) -> bool:
        """Whether there is a pool, and pods were ever listed: those of a new selector come without a break."""
        return self.has_pool and self._listed

    def configure(self, events: EventsConfig) -> None:
        """Look for events elsewhere from now on."""
        self._endpoints.configure(events)
        self._pods_changed()

    async def run(self) -> None:
        """Follow, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self.pools is not None:
                tasks.create_task(self.pools.run())
            for objects in self._about_pool:
                tasks.create_task(objects.run())
            await self._selected.wait()
            tasks.create_task(self.pods.run())

    def followers(self) -> Iterator[tuple[str, AnyFollower]]:
        """Every copy kept, with the name of its kind."""
        yield "pods", self.pods
        if self.pools is not None:
            yield "inferencepools", self.pools
        for objects in self._about_pool:
            if objects.follower is not None:
                yield objects.plural, objects.follower

    def _path(self, plural: str, api: str = "/api/v1") -> str:
        return f"{api}/namespaces/{self._namespace}/{plural}"

    def _follower(self, collection: Collection, kind: type[T], on_change: Callable[[], None]) -> Follower[T]:
        copy = ListWatch(kind, pace=self._pace, rng=self._rng)
        return Follower(self._server, collection, copy, on_change=on_change, clock=self._clock)

    def _pool_changed(self) -> None:
        assert self.pools is not None  # noqa: S101 - it called
        found = self.pools.copy.objects.get(self._config.inference_pool)
        pool = found.pool if found is not None else None
        if pool == self._pool:
            return
        if pool is None:
            log.warning("InferencePool %s is gone: its endpoints are no more", self._config.inference_pool)
            self._pool = None
        else:
            selector = pool.selector or {}
            log.info(
                "InferencePool %s: pods with %s, ports %s",
                self._config.inference_pool, selector, ", ".join(map(str, pool.target_ports)),
            )  # fmt: skip
            self._use(pool, ",".join(f"{name}={value}" for name, value in selector.items()))
        self._pods_changed()

    def _use_objectives(self, objectives: Sequence[InferenceObjective]) -> None:
        self.priorities.clear()
        self.priorities.update(priorities(objectives))

    def _use(self, pool: Pool, selector: str) -> None:
        self._pool = pool
        self.pods.follow(Collection(self._path("pods"), label_selector=selector))
        self._selected.set()

    def _pods_changed(self) -> None:
        self._listed = self._listed or self.pods.copy.synced
        endpoints = self._endpoints.of(self.pods.copy.objects.values(), self._pool)
        problems = self._endpoints.problems
        for name in problems.keys() - self._warned.keys():
            log.warning("pod %s: %s", name, problems[name])
        self._warned = problems
        if endpoints != self._told:
            self._told = endpoints
            self._tell(endpoints)


def namespace_of(config: KubernetesConfig, environment: Mapping[str, str], own: str | None) -> str:
    """The namespace to look in.

    Args:
        config: may name one.
        environment: variables of the process; charts set NAMESPACE.
        own: the one that the access to the API server is at home in.
    """
    return config.namespace or environment.get("NAMESPACE", "") or own or DEFAULT_NAMESPACE
