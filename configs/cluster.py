"""The sections about a Kubernetes cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .paths import PathText
from .section import Section
from .units import Duration


class KubernetesConfig(Section, frozen=True):
    """Pods of a Kubernetes cluster; `inferencePool` or `endpointSelector` says which."""

    inference_pool: str = ""
    """InferencePool whose pods are the servers."""
    pool_group: Literal["inference.networking.k8s.io", "inference.networking.x-k8s.io"] = (
        "inference.networking.k8s.io"
    )
    """API group of the pool: the first has version v1, the second v1alpha2."""
    endpoint_selector: str = ""
    """Label selector of the pods, in place of a pool."""
    target_ports: Annotated[tuple[Annotated[int, Meta(ge=1, le=65535)], ...], Meta(max_length=8)] = ()
    """Ports that serve on each pod, with `endpointSelector`; a pool has its own."""
    namespace: str = ""
    """Namespace of the pool and its pods; empty: the variable NAMESPACE, the one kvatlas runs in, or `default`."""
    kubeconfig: PathText = ""
    """How to reach the API server; empty: the variable KUBECONFIG, the pod's service account, or `~/.kube/config`."""

    @property
    def is_on(self) -> bool:
        """Whether pods are the servers."""
        return bool(self.inference_pool or self.endpoint_selector)


class LeaderElectionConfig(Section, frozen=True):
    """Several processes of which one is ready at a time, decided by a Lease; the others stay warm."""

    enabled: bool = False
    """Whether this process takes part; without it every one is ready."""
    lease_name: str = ""
    """Name of the Lease, in the namespace of the endpoints; empty: `kvatlas-<inferencePool>`."""
    lease_duration: Duration = Duration(15.0)
    """Time after which others may lead when the leader is not heard of; whole seconds count."""
    renew_deadline: Duration = Duration(10.0)
    """Time after which the leader stops to lead when it cannot renew the Lease."""
    retry_period: Duration = Duration(2.0)
    """Time between two looks at the Lease."""
