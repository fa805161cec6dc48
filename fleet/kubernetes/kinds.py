"""Kubernetes kinds that discovery reads, as typed data with only the fields it needs.

Source: core/v1 Pod; gateway-api-inference-extension InferencePool v1 and v1alpha2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from .client.wire import AnyMeta, ObjectMeta, Wire


class PodAnnotations(Wire, frozen=True):
    """Annotations about the ports of a pod."""

    active_ports: str | None = msgspec.field(name="llm-d.ai/active-ports", default=None)
    """Target ports that serve now, separated by commas; absent: all."""
    old_active_ports: str | None = msgspec.field(
        name="inference.networking.k8s.io/active-ports", default=None
    )
    """Older name of the same annotation, read if the new one is absent."""
    events_port: str | None = msgspec.field(name="kvatlas.io/events-port", default=None)
    """Port of the PUB socket; see `pods.py`."""
    replay_port: str | None = msgspec.field(name="kvatlas.io/replay-port", default=None)
    """Port of the replay socket; see `pods.py`."""
    snapshot_port: str | None = msgspec.field(name="kvatlas.io/snapshot-port", default=None)
    """Port of the snapshot socket; see `pods.py`."""
    data_parallel_size: str | None = msgspec.field(name="kvatlas.io/data-parallel-size", default=None)
    """Data-parallel ranks behind each target port; absent: one."""


class PodMeta(ObjectMeta, frozen=True):
    """A pod's metadata."""

    labels: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """Labels."""
    annotations: PodAnnotations = PodAnnotations()
    """Annotations read here."""
    deletion_timestamp: str | None = None
    """Set while it is being deleted."""


class Condition(Wire, frozen=True):
    """One condition of a pod."""

    type: str
    """Type, such as `Ready`."""
    status: str
    """`True`, `False` or `Unknown`."""


class PodStatus(Wire, frozen=True):
    """Status of a pod."""

    pod_ip: str = msgspec.field(name="podIP", default="")
    """Its IP address; empty before it has one."""
    host_ip: str = msgspec.field(name="hostIP", default="")
    """IP address of its node."""
    conditions: tuple[Condition, ...] = ()
    """Conditions."""


class Pod(Wire, frozen=True):
    """A pod."""

    metadata: PodMeta
    """Name, labels, annotations."""
    status: PodStatus = PodStatus()
    """Address and conditions."""

    @property
    def serves(self) -> bool:
        """Whether requests may be sent there: the pod is ready and not being deleted."""
        ready = any(each.type == "Ready" and each.status == "True" for each in self.status.conditions)
        return ready and bool(self.status.pod_ip) and self.metadata.deletion_timestamp is None


@dataclass(frozen=True, slots=True)
class Pool:
    """The pods that serve, and their ports.

    Attributes:
        selector: labels that a pod must have; None if the API server selects the pods.
        target_ports: ports that serve; the position is the INDEX of the endpoint.
    """

    selector: Mapping[str, str] | None
    target_ports: tuple[int, ...]

    def selects(self, pod: Pod) -> bool:
        """Return whether the pod belongs to it."""
        return self.selector is None or self.selector.items() <= pod.metadata.labels.items()


class PoolMeta(ObjectMeta, frozen=True):
    """A pool's metadata."""

    labels: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """Labels."""
    deletion_timestamp: str | None = None
    """Set while it is being deleted."""


class PoolObject(Protocol):
    """An InferencePool of any version."""

    @property
    def metadata(self) -> AnyMeta:
        """Its metadata."""
        ...

    @property
    def pool(self) -> Pool | None:
        """Its selector and ports; None while it is being deleted."""
        ...


class TargetPort(Wire, frozen=True):
    """One target port of a pool."""

    number: int
    """The port."""


class PoolSelector(Wire, frozen=True):
    """Label selector of a pool."""

    match_labels: dict[str, str]
    """Labels that a pod must all have."""


class PoolSpec(Wire, frozen=True):
    """Spec of a pool."""

    selector: PoolSelector
    """Its pods."""
    target_ports: tuple[TargetPort, ...]
    """Their ports."""


class InferencePool(Wire, frozen=True):
    """`inference.networking.k8s.io/v1`."""

    metadata: PoolMeta
    """Name."""
    spec: PoolSpec
    """Pods and ports."""

    @property
    def pool(self) -> Pool | None:
        """Its selector and ports; None while it is being deleted."""
        if self.metadata.deletion_timestamp is not None:
            return None
        return Pool(self.spec.selector.match_labels, tuple(port.number for port in self.spec.target_ports))


class OldPoolSpec(Wire, frozen=True):
    """Spec of a pool of the older version."""

    selector: dict[str, str]
    """Labels of its pods."""
    target_port_number: int
    """Their port."""


class OldInferencePool(Wire, frozen=True):
    """`inference.networking.x-k8s.io/v1alpha2`."""

    metadata: PoolMeta
    """Name."""
    spec: OldPoolSpec
    """Pods and port."""

    @property
    def pool(self) -> Pool | None:
        """Its selector and ports; None while it is being deleted."""
        if self.metadata.deletion_timestamp is not None:
            return None
        return Pool(self.spec.selector, (self.spec.target_port_number,))


POOL_VERSIONS: Mapping[str, tuple[str, type[InferencePool | OldInferencePool]]] = {
    "inference.networking.k8s.io": ("v1", InferencePool),
    "inference.networking.x-k8s.io": ("v1alpha2", OldInferencePool),
}
"""API group -> version and type of its pools."""
