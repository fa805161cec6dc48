"""Objects that refer to one pool, of optional kinds that exist in one of two API groups.

Source: llm-d-router, which for each kind uses its own API group if that is served, otherwise the older one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from ...configs.cluster import KubernetesConfig
from .client.api_server import ApiServer
from .client.backoff import Timing
from .client.errors import RequestFailedError
from .client.follower import Collection, Follower
from .client.list_watch import ListWatch
from .client.wire import DECODE_ERRORS, Wire
from .kinds import PoolMeta

GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")
"""API groups of these kinds; the first one that is served is used."""

VERSION = "v1alpha2"

GROUP_WITHOUT_POOLS = GROUPS[0]
"""Group that some CRDs fill in if an object names no group for its pool. It has no pools of its own."""


class PoolReference(Wire, frozen=True):
    """Reference to a pool."""

    group: str = "inference.networking.k8s.io"
    """Its API group."""
    name: str = ""
    """Its name."""


class PoolObjectSpec(Protocol):
    """Spec of an object that refers to a pool."""

    @property
    def pool_ref(self) -> PoolReference:
        """Its pool."""
        ...


class PoolObject(Protocol):
    """An object that refers to a pool."""

    @property
    def metadata(self) -> PoolMeta:
        """Its metadata."""
        ...

    @property
    def spec(self) -> PoolObjectSpec:
        """Its spec."""
        ...


T = TypeVar("T", bound=PoolObject)


class ResourceName(Wire, frozen=True):
    """Name of a kind in an API group."""

    name: str
    """Plural name."""


class ResourceList(Wire, frozen=True):
    """Kinds that a version of an API group has."""

    resources: tuple[ResourceName, ...] = ()
    """Its kinds."""


@dataclass(frozen=True, slots=True)
class PoolScope:
    """The pool, and how to request its objects.

    Attributes:
        config: names the pool.
        server: the API server.
        namespace: namespace of the pool.
        timing: retry and watch durations.
        clock: monotonic seconds.
        rng: uniform in [0, 1).
    """

    config: KubernetesConfig
    server: ApiServer
    namespace: str
    timing: Timing
    clock: Callable[[], float]
    rng: Callable[[], float]


class PoolObjects(Generic[T]):
    """Follows the objects of one kind that refer to one pool.

    Args:
        scope: the pool.
        plural: plural name of the kind.
        kind: type of the objects.
        on_change: called with all of them when one may have changed.
    """

    def __init__(
        self, scope: PoolScope, plural: str, kind: type[T], *, on_change: Callable[[Sequence[T]], None]
    ) -> None:
        self._scope, self.plural, self._on_change = scope, plural, on_change
        self._copy = ListWatch(kind, timing=scope.timing, rng=scope.rng)
        self.follower: Follower[T] | None = None
        """Keeps a copy of the objects; None while the cluster does not have the kind."""

    async def run(self) -> None:
        """Follow, until cancelled; waits for the kind if it is not installed yet."""
        group, scope = await self._group(), self._scope
        collection = Collection(f"/apis/{group}/{VERSION}/namespaces/{scope.namespace}/{self.plural}")
        self.follower = Follower(
            scope.server, collection, self._copy, on_change=self._changed, clock=scope.clock
        )
        await self.follower.run()

    async def _group(self) -> str:
        """Wait for an API group that has the kind, and return it."""
        while True:
            for group in GROUPS:
                served = await self._serves(group)
                if served:
                    return group
                if served is None:  # try the next group only if this one is known not to have the kind
                    break
            await asyncio.sleep(self._scope.timing.max_delay_s)

    async def _serves(self, group: str) -> bool | None:
        """Return whether the cluster has the kind in this group, None if that is unknown."""
        try:
            body = await self._scope.server.get(f"/apis/{group}/{VERSION}", {})
            kinds = msgspec.json.decode(body, type=ResourceList)
        except RequestFailedError as error:
            return False if error.failure.status == 404 else None
        except DECODE_ERRORS:
            return None
        return any(kind.name == self.plural for kind in kinds.resources)

    def _changed(self) -> None:
        config = self._scope.config
        groups = (config.pool_group, GROUP_WITHOUT_POOLS)
        self._on_change([
            found
            for found in self._copy.objects.values()
            if found.spec.pool_ref.name == config.inference_pool
            and found.spec.pool_ref.group in groups
            and found.metadata.deletion_timestamp is None
        ])  # fmt: skip
