"""Sections for Kubernetes."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from msgspec import Meta

from .paths import PathText
from .section import Section
from .units import Duration


class KubernetesConfig(Section, frozen=True):
    """Pods of a Kubernetes cluster, selected by `inferencePool` or `endpointSelector`."""

    inference_pool: str = ""
    """InferencePool whose pods are the servers."""
    pool_group: Literal["inference.networking.k8s.io", "inference.networking.x-k8s.io"] = (
        "inference.networking.k8s.io"
    )
    """API group of the pool; the first has version v1, the second v1alpha2."""
    endpoint_selector: str = ""
    """Label selector of the pods, instead of a pool."""
    target_ports: Annotated[tuple[Annotated[int, Meta(ge=1, le=65535)], ...], Meta(max_length=8)] = ()
    """Serving ports of each pod, with `endpointSelector`; a pool has its own."""
    namespace: str = ""
    """Namespace of the pool and its pods; empty: the variable NAMESPACE, the namespace of kvatlas itself, or `default`."""
    kubeconfig: PathText = ""
    """File with the access to the API server; empty: the variable KUBECONFIG, the pod's service account, or `~/.kube/config`."""

    @property
    def is_on(self) -> bool:
        """Return whether pods are the servers."""
        return bool(self.inference_pool or self.endpoint_selector)


class LeaderElectionConfig(Section, frozen=True):
    """Election of one ready process among several by a Lease; the others stay warm."""

    enabled: bool = False
    """Whether this process takes part; otherwise it is always ready."""
    lease_name: str = ""
    """Name of the Lease, in the namespace of the endpoints; empty: `kvatlas-<inferencePool>`."""
    lease_duration: Duration = Duration(15.0)
    """Time without renewal after which another process may lead; rounded up to whole seconds."""
    renew_deadline: Duration = Duration(10.0)
    """Time without a successful renewal after which the leader steps down, unless the API server does not answer."""
    retry_period: Duration = Duration(2.0)
    """Time between two attempts to acquire or renew the Lease."""

    @property
    def lease_s(self) -> int:
        """Return `lease_duration` in whole seconds, as a Lease has it; rounded up, so that it stays above `renew_deadline`."""
        return math.ceil(self.lease_duration)
