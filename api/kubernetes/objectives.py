"""Priorities of the pool's InferenceObjectives, where the cluster has that kind.

Source: llm-d-router, which prefers its own API group over the older one, kind by kind, and takes no note of the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from ...configs.cluster import KubernetesConfig
from .api_server import ApiServer
from .backoff import Pace
from .errors import RequestFailedError
from .follower import Collection, Follower
from .kinds import PoolMeta
from .list_watch import ListWatch
from .wire import DECODE_ERRORS, Wire

GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")
"""API groups of the kind, the first that is served counts."""

VERSION = "v1alpha2"
PLURAL = "inferenceobjectives"


class PoolReference(Wire, frozen=True):
    """The pool that an objective is about."""

    group: str = "inference.networking.k8s.io"
    """Its API group."""
    name: str = ""
    """Its name."""


class ObjectiveSpec(Wire, frozen=True):
    """What an objective says."""

    pool_ref: PoolReference
    """Its pool."""
    priority: int | None = None
    """Priority of requests that name the objective; absent: 0."""


class InferenceObjective(Wire, frozen=True):
    """An objective, named by requests in `x-llm-d-inference-objective`."""

    metadata: PoolMeta
    """Name."""
    spec: ObjectiveSpec
    """Pool and priority."""


class ResourceName(Wire, frozen=True):
    """One kind of an API group."""

    name: str
    """In the plural."""


class ResourceList(Wire, frozen=True):
    """The kinds of an API group's version."""

    resources: tuple[ResourceName, ...] = ()
    """All of them."""


class Objectives:
    """Follows the objectives of one pool.

    Args:
        config: names the pool.
        server: the API server.
        namespace: of the pool.
        pace: how often the API server is asked.
        clock: monotonic seconds.
        rng: uniform in [0, 1).
    """

    def __init__(
        self,
        config: KubernetesConfig,
        *,
        server: ApiServer,
        namespace: str,
        pace: Pace,
        clock: Callable[[], float],
        rng: Callable[[], float],
    ) -> None:
        self._config, self._server, self._namespace = config, server, namespace
        self._pace, self._clock = pace, clock
        self._copy = ListWatch(InferenceObjective, pace=pace, rng=rng)
        self.priorities: dict[str, int] = {}
        """Objective -> priority; changes with the cluster."""
        self.follower: Follower[InferenceObjective] | None = None
        """Keeps the objectives; None while the cluster does not have the kind."""

    async def run(self) -> None:
        """Follow, until cancelled; a kind that is installed later is found."""
        group = await self._group()
        path = f"/apis/{group}/{VERSION}/namespaces/{self._namespace}/{PLURAL}"
        self.follower = Follower(
            self._server, Collection(path), self._copy, on_change=self._changed, clock=self._clock
        )
        await self.follower.run()

    async def _group(self) -> str:
        """The API group that has the kind, once one has."""
        while True:
            for group in GROUPS:
                served = await self._serves(group)
                if served:
                    return group
                if served is None:  # the next group counts only where this one is known not to have it
                    break
            await asyncio.sleep(self._pace.max_delay_s)

    async def _serves(self, group: str) -> bool | None:
        """Whether the cluster has the kind in this group; None when it does not tell."""
        try:
            body = await self._server.get(f"/apis/{group}/{VERSION}", {})
            kinds = msgspec.json.decode(body, type=ResourceList)
        except RequestFailedError as error:
            return False if error.failure.status == 404 else None
        except DECODE_ERRORS:
            return None
        return any(kind.name == PLURAL for kind in kinds.resources)

    def _changed(self) -> None:
        pool = (self._config.pool_group, self._config.inference_pool)
        self.priorities.clear()
        for name, found in self._copy.objects.items():
            reference = found.spec.pool_ref
            if (reference.group, reference.name) == pool and found.metadata.deletion_timestamp is None:
                self.priorities[name] = found.spec.priority or 0
