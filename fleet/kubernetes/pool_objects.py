"""Objects that refer to one pool, of optional kinds that exist in one of two API groups.

Source: llm-d-router, which for each kind uses its own API group if that is served, otherwise the older one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import msgspec

from ...configs.cluster import KubernetesConfig
from .client.api_server import ApiServer
from .client.backoff import Backoff, Timing
from .client.errors import Failure, RequestFailedError
from .client.follower import Collection, Follower
from .client.list_watch import ListWatch
from .client.wire import DECODE_ERRORS, Wire
from .kinds import PoolMeta
from .pool_references import PoolIdentity

log = logging.getLogger(__name__)

GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")
"""API groups of these kinds; the first one that is served is used."""

VERSION = "v1alpha2"


class PoolObjectSpec(Protocol):
    """Spec of an object that refers to a pool."""

    def belongs_to(self, pool: PoolIdentity) -> bool:
        """Return whether the object is one of that pool."""
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
        self.is_decided = False
        """Whether the objects were read, or could not be because the cluster lacks the kind or the right."""
        self._problem: Failure | None = None
        self._warned = False
        self._pool = PoolIdentity(scope.config.pool_group, scope.config.inference_pool)

    @property
    def problem(self) -> Failure | None:
        """Why the objects may be out of date or unknown; None while a watch runs."""
        return self._problem if self.follower is None else self._copy.problem

    def use_labels(self, labels: Mapping[str, str]) -> None:
        """Take the labels of the pool, by which objects may select it."""
        if labels != self._pool.labels:
            self._pool = replace(self._pool, labels=labels)
            self._changed()

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
        timing, backoff = self._scope.timing, Backoff(self._scope.timing, self._scope.rng)
        while True:
            try:
                for group in GROUPS:
                    if await self._is_served(group):
                        return group
            except (
                RequestFailedError
            ) as error:  # the next group counts only if this one does not have the kind
                problem, wait_s = error.failure, backoff.failed(error.failure)
            else:
                problem, wait_s = self._not_installed(), timing.max_delay_s
            self._failed(problem)
            if await self._scope.server.pause(wait_s):
                backoff.wake()

    async def _is_served(self, group: str) -> bool:
        """Return whether the cluster has the kind in this group.

        Raises:
            RequestFailedError: that is unknown.
        """
        path = f"/apis/{group}/{VERSION}"
        try:
            kinds = msgspec.json.decode(await self._scope.server.get(path, {}), type=ResourceList)
        except RequestFailedError as error:
            if error.failure.status == 404 and not error.failure.of_proxy:
                return False
            raise
        except DECODE_ERRORS as error:
            raise RequestFailedError(Failure("malformed", f"GET {path}: {error}")) from error
        return any(kind.name == self.plural for kind in kinds.resources)

    def _not_installed(self) -> Failure:
        where = " and ".join(f"{group}/{VERSION}" for group in GROUPS)
        return Failure("http_status", f"neither of {where} has them; install the CRD to use them", status=404)

    def _failed(self, problem: Failure) -> None:
        log.log(
            logging.DEBUG if self._warned else logging.WARNING,
            "%s are not known%s: %s", self.plural, "" if problem.lack else " yet", problem.message,
        )  # fmt: skip
        self._problem, self._warned = problem, True
        self.is_decided = self.is_decided or problem.lack is not None

    def _changed(self) -> None:
        problem = self._copy.problem
        self.is_decided = (
            self.is_decided or self._copy.synced or (problem is not None and problem.lack is not None)
        )
        self._on_change([
            found
            for found in self._copy.objects.values()
            if found.spec.belongs_to(self._pool) and found.metadata.deletion_timestamp is None
        ])  # fmt: skip
