"""The kinds that discovery reads, as typed data: the fields that count, and no others.

Source: core/v1 Pod; gateway-api-inference-extension InferencePool v1 and v1alpha2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from .client.wire import AnyMeta, ObjectMeta, Wire


class PodAnnotations(Wire, frozen=True):
    """What the owner of a pod says about its ports."""

    active_ports: str | None = msgspec.field(name="llm-d.ai/active-ports", default=None)
    """Target ports that serve at the moment, with commas; absent: all."""
    old_active_ports: str | None = msgspec.field(
        name="inference.networking.k8s.io/active-ports", default=None
    )
    """The same by its older name, read where the new one is absent."""
    events_port: str | None = msgspec.field(name="kvatlas.io/events-port", default=None)
    """Port of the PUB socket; see `pods.py`."""
    replay_port: str | None = msgspec.field(name="kvatlas.io/replay-port", default=None)
    """Port of the replay socket; see `pods.py`."""
    data_parallel_size: str | None = msgspec.field(name="kvatlas.io/data-parallel-size", default=None)
    """Data-parallel ranks behind each target port; absent: one."""


class PodMeta(ObjectMeta, frozen=True):
    """A pod's metadata."""

    labels: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """Labels."""
    annotations: PodAnnotations = PodAnnotations()
    """Annotations that count here."""
    deletion_timestamp: str | None = None
    """Set when it is told to end."""


class Condition(Wire, frozen=True):
    """One thing that is true of a pod, or not."""

    type: str
    """Which."""
    status: str
    """`True`, `False` or `Unknown`."""


class PodStatus(Wire, frozen=True):
    """How a pod does."""

    pod_ip: str = msgspec.field(name="podIP", default="")
    """Its address; empty before it has one."""
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
        """Whether requests may be sent there: ready, and not told to end."""
        ready = any(each.type == "Ready" and each.status == "True" for each in self.status.conditions)
        return ready and bool(self.status.pod_ip) and self.metadata.deletion_timestamp is None


@dataclass(frozen=True, slots=True)
class Pool:
    """Which pods serve, and where on each.

    Attributes:
        selector: labels that a pod must have; None when the API server was asked for the right ones alone.
        target_ports: ports that serve, in order: the place is the rank.
    """

    selector: Mapping[str, str] | None
    target_ports: tuple[int, ...]

    def selects(self, pod: Pod) -> bool:
        """Whether the pod belongs to it."""
        return self.selector is None or self.selector.items() <= pod.metadata.labels.items()


class PoolMeta(ObjectMeta, frozen=True):
    """A pool's metadata."""

    deletion_timestamp: str | None = None
    """Set when it is told to end."""


class PoolObject(Protocol):
    """An InferencePool of some version."""

    @property
    def metadata(self) -> AnyMeta:
        """Its metadata."""
        ...

    @property
    def pool(self) -> Pool | None:
        """What it says; None when it is told to end."""
        ...


class TargetPort(Wire, frozen=True):
    """One of a pool's ports."""

    number: int
    """The port."""


class PoolSelector(Wire, frozen=True):
    """Labels of a pool's pods."""

    match_labels: dict[str, str]
    """All of them are needed."""


class PoolSpec(Wire, frozen=True):
    """What a pool wants."""

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
        """What it says; None when it is told to end."""
        if self.metadata.deletion_timestamp is not None:
            return None
        return Pool(self.spec.selector.match_labels, tuple(port.number for port in self.spec.target_ports))


class OldPoolSpec(Wire, frozen=True):
    """What a pool of the older version wants."""

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
        """What it says; None when it is told to end."""
        if self.metadata.deletion_timestamp is not None:
            return None
        return Pool(self.spec.selector, (self.spec.target_port_number,))


POOL_VERSIONS: Mapping[str, tuple[str, type[InferencePool | OldInferencePool]]] = {
    "inference.networking.k8s.io": ("v1", InferencePool),
    "inference.networking.x-k8s.io": ("v1alpha2", OldInferencePool),
}
"""API group -> version and type of its pools."""
