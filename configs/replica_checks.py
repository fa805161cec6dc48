"""Checks of the section `replicas` beyond its types."""

from __future__ import annotations

from collections.abc import Iterator

from .address import HostPort, ZmqAddress, check_bind_address
from .errors import KeyPath, Problem
from .problems import malformed, repeated
from .replicas import (
    MIN_SILENT_AFTER_S,
    DiscoverConfig,
    MeshConfig,
    ReplicasConfig,
    SentinelConfig,
    ValkeyConfig,
    ValkeyTlsConfig,
)
from .schema import KVAtlasConfig

_LOOPBACK = ("127.", "localhost", "[::1]")


def replica_problems(config: KVAtlasConfig) -> Iterator[Problem]:
    """Yield contradictions in `replicas`."""
    replicas = config.replicas
    if replicas.silent_after < MIN_SILENT_AFTER_S:
        message = f"found {replicas.silent_after}, expected at least {MIN_SILENT_AFTER_S * 1000:g}ms"
        yield Problem(f"{message}, since heartbeats are 200ms apart", ("replicas", "silentAfter"))
    if replicas.transport == "mesh" and config.server.workers > 1:
        message = f"found {config.server.workers} together with replicas.transport mesh, whose port takes one process, expected 1"
        yield Problem(f"{message}; run more replicas instead, or use valkey", ("server", "workers"))
    match replicas.transport:
        case "mesh":
            yield from _mesh_problems(replicas.mesh)
        case "valkey":
            yield from _valkey_problems(replicas.valkey)
        case "none":
            if replicas != ReplicasConfig():
                yield Problem(
                    "found 'none' together with other keys, expected mesh or valkey",
                    ("replicas", "transport"),
                )


def replica_notes(config: KVAtlasConfig) -> Iterator[str]:
    """Yield what is set in `replicas` for another transport than the one in use."""
    replicas = config.replicas
    others = {"mesh": replicas.mesh != MeshConfig(), "valkey": replicas.valkey != ValkeyConfig()}
    for name, is_set in others.items():
        if is_set and replicas.transport != name:
            yield f"replicas.{name}: no effect with transport {replicas.transport!r}"


def _mesh_problems(mesh: MeshConfig) -> Iterator[Problem]:
    path: KeyPath = ("replicas", "mesh")
    discover = mesh.discover
    yield from malformed((*path, "listen"), mesh.listen, check_bind_address)
    is_local = mesh.listen.startswith("ipc:") or mesh.listen.removeprefix("tcp://").startswith(_LOOPBACK)
    if not mesh.secret_file and not is_local and not mesh.insecure:
        message = f"missing, expected the file with the secret of all replicas, since others can reach {mesh.listen!r}"
        yield Problem(f"{message}; or insecure: true", (*path, "secretFile"))
    given = [key for key, value in _ways(discover) if value]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        yield Problem(f"found {found}, expected one of service, dns and list", (*path, "discover"))
    if discover.dns:
        yield from malformed((*path, "discover", "dns"), discover.dns, HostPort.parse)
    listed = [((*path, "discover", "list", place), text) for place, text in enumerate(discover.addresses)]
    for place, text in listed:
        yield from malformed(place, text, ZmqAddress.parse)
    yield from repeated(listed, "address")


def _ways(discover: DiscoverConfig) -> tuple[tuple[str, object], ...]:
    return ("service", discover.service), ("dns", discover.dns), ("list", discover.addresses)


def _valkey_problems(valkey: ValkeyConfig) -> Iterator[Problem]:
    path: KeyPath = ("replicas", "valkey")
    sentinel = valkey.sentinel
    ways = (
        ("address", valkey.address),
        ("sentinel", sentinel != SentinelConfig()),
        ("cluster", valkey.cluster),
    )
    given = [key for key, value in ways if value]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        yield Problem(f"found {found}, expected one of address, sentinel and cluster", path)
    if valkey.address:
        yield from malformed((*path, "address"), valkey.address, HostPort.parse)
    for place, text in enumerate(valkey.cluster):
        yield from malformed((*path, "cluster", place), text, HostPort.parse)
    for place, text in enumerate(sentinel.addresses):
        yield from malformed((*path, "sentinel", "addresses", place), text, HostPort.parse)
    if sentinel != SentinelConfig() and not (sentinel.master and sentinel.addresses):
        missing = "addresses" if sentinel.master else "master"
        yield Problem("missing, expected both master and addresses", (*path, "sentinel", missing))
    if valkey.cluster and valkey.database:
        yield Problem("found a database together with cluster, which has only 0", (*path, "database"))
    tls = valkey.tls
    if bool(tls.cert_file) != bool(tls.key_file):
        missing = "certFile" if tls.key_file else "keyFile"
        yield Problem("found none, expected the file that belongs to the other", (*path, "tls", missing))
    if valkey.password_env and valkey.password_file:
        message = f"found {valkey.password_env!r} together with passwordFile; keep one"
        yield Problem(message, (*path, "passwordEnv"))
    if tls != ValkeyTlsConfig() and not tls.enabled:
        yield Problem("found false together with other keys, expected true", (*path, "tls", "enabled"))
