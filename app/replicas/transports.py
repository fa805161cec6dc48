"""The configured transport."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from ...configs.address import HostPort
from ...configs.cluster import KubernetesConfig
from ...configs.replicas import MeshConfig
from ...configs.schema import KVAtlasConfig
from ...fleet.kubernetes.client.access import find_access
from ...fleet.kubernetes.discovery import namespace_of
from ...fleet.replicas.identity import Identity
from .discovery import listed, resolved
from .joined import Joined
from .mesh import Discovery, Mesh, MeshOptions
from .mesh_keys import load_mesh_keys
from .pod import Place
from .slices import followed
from .transport import OnMessage, Transport


def transport_opener(
    config: KVAtlasConfig, identity: Identity, *, place: Place | None, mates: Collection[str]
) -> Callable[[OnMessage], Transport]:
    """Return what opens the transport; that raises ReplicaError, or AccessError without an API server.

    Args:
        config: names a transport, unless there is a place.
        identity: of this replica.
        place: among the workers of its pod; None if it is the only one.
        mates: names of the other workers.
    """
    replicas = config.replicas

    def open_mesh(on_message: OnMessage) -> Transport:
        mesh = replicas.mesh
        options = MeshOptions(
            listen=mesh.listen,
            discover=_discovery(mesh, config.endpoints.kubernetes),
            keys=load_mesh_keys(mesh.secret_file) if mesh.secret_file else None,
            answers=not mesh.discover.addresses,
        )
        return Mesh(options, replica=identity.id, on_message=on_message)

    def open_valkey(on_message: OnMessage) -> Transport:
        from .valkey import Valkey  # noqa: PLC0415 - its library has 8 MB

        return Valkey(replicas.valkey, pool=identity.pool, replica=identity.id, on_message=on_message)

    open_network = open_valkey if replicas.transport == "valkey" else open_mesh
    if place is None:
        return open_network

    def open_pod(on_message: OnMessage) -> Transport:
        options = MeshOptions(listen=place.address, discover=listed(place.others))
        pod = Mesh(options, replica=identity.id, on_message=on_message)
        if replicas.transport == "none":
            return pod
        return Joined(pod, open_network(on_message), mates=mates)

    return open_pod


def _discovery(mesh: MeshConfig, kubernetes: KubernetesConfig) -> Discovery:
    discover = mesh.discover
    if discover.addresses:
        return listed(discover.addresses)
    if discover.service:
        access = find_access(kubernetes.kubeconfig, os.environ)
        namespace = namespace_of(kubernetes, os.environ, access.namespace)
        return followed(access, namespace, discover.service, int(mesh.listen.rpartition(":")[2]))
    where = HostPort.parse(discover.dns)
    return resolved(where.host, where.port)
