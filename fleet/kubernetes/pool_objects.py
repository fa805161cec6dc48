"""Objects that are about one pool, of kinds that a cluster may have or not, in one of two API groups.

Source: llm-d-router, which prefers its own API group over the older one, kind by kind, and takes no note of the other.
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
"""API groups of these kinds, the first that is served counts."""

VERSION = "v1alpha2"

GROUP_WITHOUT_POOLS = GROUPS[0]
"""Some CRDs of that group fill it in where an object names no group of its pool. It has no pools, so that none of its own
can be meant."""


class PoolReference(Wire, frozen=True):
    """The pool that an object is about."""

    group: str = "inference.networking.k8s.io"
    """Its API group."""
    name: str = ""
    """Its name."""


class AboutPool(Protocol):
    """What such an object says."""

    @property
    def pool_ref(self) -> PoolReference:
        """Its pool."""
        ...


class PoolObject(Protocol):
    """An object about a pool."""

    @property
    def metadata(self) -> PoolMeta:
        """Its metadata."""
        ...

    @property
    def spec(self) -> AboutPool:
        """What it says."""
        ...


T = TypeVar("T", bound=PoolObject)


class ResourceName(Wire, frozen=True):
    """One kind of an API group."""

    name: str
    """In the plural."""


class ResourceList(Wire, frozen=True):
    """The kinds of an API group's version."""

    resources: tuple[ResourceName, ...] = ()
    """All of them."""


@dataclass(frozen=True, slots=True)
class PoolScope:
    """Which objects are meant, and how the API server is asked for them.

    Attributes:
        config: names the pool.
        server: the API server.
        namespace: of the pool.
        timing: how often the API server is asked.
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
    """Follows the objects of one kind that are about one pool.

    Args:
        scope: the pool.
        plural: name of the kind.
        kind: its type.
        tell: told of all of them whenever one may have changed.
    """

    def __init__(
        self, scope: PoolScope, plural: str, kind: type[T], *, on_change: Callable[[Sequence[T]], None]
    ) -> None:
        self._scope, self.plural, self._on_change = scope, plural, on_change
        self._copy = ListWatch(kind, timing=scope.timing, rng=scope.rng)
        self.follower: Follower[T] | None = None
        """Keeps the objects; None while the cluster does not have the kind."""

    async def run(self) -> None:
        """Follow, until cancelled; a kind that is installed later is found."""
        group, scope = await self._group(), self._scope
        collection = Collection(f"/apis/{group}/{VERSION}/namespaces/{scope.namespace}/{self.plural}")
        self.follower = Follower(
            scope.server, collection, self._copy, on_change=self._changed, clock=scope.clock
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
            await asyncio.sleep(self._scope.timing.max_delay_s)

    async def _serves(self, group: str) -> bool | None:
        """Whether the cluster has the kind in this group; None when it does not tell."""
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
