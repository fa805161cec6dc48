"""The configured transport."""

from __future__ import annotations

from collections.abc import Callable

from ...configs.address import HostPort
from ...configs.replicas import MeshConfig, ReplicasConfig
from ...fleet.replicas.identity import Identity
from .discovery import listed, resolved
from .mesh import Discovery, Mesh, MeshOptions
from .mesh_keys import load_mesh_keys
from .transport import OnMessage, Transport


def transport_opener(
    config: ReplicasConfig, identity: Identity, *, worker: int, n_workers: int
) -> Callable[[OnMessage], Transport]:
    """Return what opens the configured transport.

    Args:
        config: names a transport.
        identity: of this replica.
        worker: number of this worker process, 0 if it is the only one.
        n_workers: worker processes of each replica.
    """

    def open_mesh(on_message: OnMessage) -> Transport:
        mesh = config.mesh
        options = MeshOptions(
            listen=_higher(mesh.listen, worker),
            discover=_discovery(mesh, n_workers),
            keys=load_mesh_keys(mesh.secret_file) if mesh.secret_file else None,
            answers=not mesh.discover.addresses,
        )
        return Mesh(options, replica=identity.id, on_message=on_message)

    def open_valkey(on_message: OnMessage) -> Transport:
        from .valkey import Valkey  # noqa: PLC0415 - its library has 8 MB

        return Valkey(config.valkey, pool=identity.pool, replica=identity.id, on_message=on_message)

    return open_valkey if config.transport == "valkey" else open_mesh


def _discovery(mesh: MeshConfig, n_workers: int) -> Discovery:
    discover = mesh.discover
    if discover.addresses:
        return listed(_higher(each, worker) for each in discover.addresses for worker in range(n_workers))
    where = HostPort.parse(discover.dns)
    return resolved(where.host, range(where.port, where.port + n_workers))


def _higher(address: str, by: int) -> str:
    """Return a ZMQ address with the port of the worker of that number."""
    base, _, port = address.rpartition(":")
    return f"{base}:{int(port) + by}" if by and port != "0" else address
