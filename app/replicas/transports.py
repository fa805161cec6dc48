"""The configured transport."""

from __future__ import annotations

import os
from collections.abc import Callable

from ...configs.address import HostPort
from ...configs.cluster import KubernetesConfig
from ...configs.replicas import ReplicasConfig
from ...configs.schema import KVAtlasConfig
from ...fleet.kubernetes.client.access import find_access
from ...fleet.kubernetes.discovery import namespace_of
from ...fleet.replicas.identity import Identity
from .discovery import listed, resolved
from .mesh import Discovery, Mesh, MeshOptions
from .mesh_keys import load_mesh_keys
from .slices import followed
from .transport import OnMessage, Transport


def transport_opener(
    config: KVAtlasConfig, identity: Identity, *, worker: int
) -> Callable[[OnMessage], Transport]:
    """Return what opens the configured transport; that raises ReplicaError, or AccessError without an API server.

    Args:
        config: names a transport.
        identity: of this replica.
        worker: number of this worker process, 0 if it is the only one; all replicas have as many.
    """
    replicas, n_workers = config.replicas, config.server.workers

    def open_mesh(on_message: OnMessage) -> Transport:
        mesh = replicas.mesh
        options = MeshOptions(
            listen=_higher(mesh.listen, worker),
            discover=_discovery(replicas, config.endpoints.kubernetes, n_workers),
            keys=load_mesh_keys(mesh.secret_file) if mesh.secret_file else None,
            answers=not mesh.discover.addresses,
        )
        return Mesh(options, replica=identity.id, on_message=on_message)

    def open_valkey(on_message: OnMessage) -> Transport:
        from .valkey import Valkey  # noqa: PLC0415 - its library has 8 MB

        return Valkey(replicas.valkey, pool=identity.pool, replica=identity.id, on_message=on_message)

    return open_valkey if replicas.transport == "valkey" else open_mesh


def _discovery(replicas: ReplicasConfig, kubernetes: KubernetesConfig, n_workers: int) -> Discovery:
    mesh = replicas.mesh
    discover = mesh.discover
    if discover.addresses:
        return listed(_higher(each, worker) for each in discover.addresses for worker in range(n_workers))
    if discover.service:
        access = find_access(kubernetes.kubeconfig, os.environ)
        first = int(mesh.listen.rpartition(":")[2])
        namespace = namespace_of(kubernetes, os.environ, access.namespace)
        return followed(access, namespace, discover.service, range(first, first + n_workers))
    where = HostPort.parse(discover.dns)
    return resolved(where.host, range(where.port, where.port + n_workers))


def _higher(address: str, by: int) -> str:
    """Return a ZMQ address with the port of the worker of that number."""
    base, _, port = address.rpartition(":")
    return f"{base}:{int(port) + by}" if by and port != "0" else address
