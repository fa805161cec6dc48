"""Section `replicas`: other processes that decide for the same endpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from .paths import PathText
from .section import Section
from .units import Duration

MIN_SILENT_AFTER_S = 0.5
"""Two and a half heartbeats; less would drop the bookings of a replica that one collection of garbage holds up."""


class DiscoverConfig(Section, frozen=True):
    """Where the other replicas listen: one of the three."""

    service: str = ""
    """Kubernetes Service in the namespace of the endpoints; its EndpointSlices name the replicas, also those that are not ready."""
    dns: str = ""
    """`HOST:PORT`; every address that the name has is a replica, as with a headless Service."""
    addresses: tuple[str, ...] = field(default=(), name="list")
    """ZMQ addresses of all replicas, such as `tcp://10.0.0.1:5570`; the own one may be among them."""


class MeshConfig(Section, frozen=True):
    """ZeroMQ between the replicas."""

    listen: Annotated[str, Meta(min_length=1)] = "tcp://0.0.0.0:5570"
    """ZMQ address to listen on, the same port on every replica."""
    discover: DiscoverConfig = DiscoverConfig()
    """Where the others are."""
    secret_file: PathText = ""
    """File with the secret that all replicas share, of 32 bytes or more; connections are encrypted and authenticated by it."""
    insecure: bool = False
    """Whether to do without a secret on addresses that others can reach."""


class SentinelConfig(Section, frozen=True):
    """Sentinels, which name the primary server."""

    master: str = ""
    """Name of the set of servers, as in `sentinel monitor`."""
    addresses: tuple[str, ...] = ()
    """`HOST:PORT` of each Sentinel; any of them may be away."""
    username: str = ""
    """ACL user of the Sentinels."""
    password_file: PathText = ""
    """File with its password, read for each connection; empty: no password."""


class ValkeyTlsConfig(Section, frozen=True):
    """TLS to the servers, Sentinels included."""

    enabled: bool = False
    """Whether connections use TLS."""
    ca_file: PathText = ""
    """PEM file with the authorities of the servers' certificates; empty: those of the system."""
    cert_file: PathText = ""
    """PEM file with the certificate of this client and its chain; empty: none."""
    key_file: PathText = ""
    """PEM file with its private key."""
    check_hostname: bool = True
    """Whether a certificate must name the host that is connected to."""


class ValkeyConfig(Section, frozen=True):
    """A Valkey or Redis server, version 7 or newer, of which only publish and subscribe are used."""

    address: str = ""
    """`HOST:PORT` of one server."""
    sentinel: SentinelConfig = SentinelConfig()
    """Sentinels, instead of `address`."""
    cluster: tuple[str, ...] = ()
    """`HOST:PORT` of some servers of a cluster, instead of `address`; they name the others."""
    tls: ValkeyTlsConfig = ValkeyTlsConfig()
    """TLS."""
    username: str = ""
    """ACL user; empty: the user `default`."""
    password_file: PathText = ""
    """File with its password, read for each connection, so that it may change; empty: no password."""
    password_env: str = ""
    """Environment variable with its password, instead of `passwordFile`."""
    database: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Database to select; channels are the same in all databases."""
    prefix: str = "kvatlas:"
    """Beginning of the names of channels, for ACL rules and for fleets that share a server."""


class ReplicasConfig(Section, frozen=True):
    """Other replicas of kvatlas, with which this one decides as one."""

    transport: Literal["none", "mesh", "valkey"] = "none"
    """Network between the replicas: none shares nothing; mesh connects them by ZeroMQ; valkey uses an existing server."""
    name: Annotated[str, Meta(max_length=128, pattern="^[^/@]*$")] = ""
    """Stable name of this replica, unique among them; empty: the name of the host, which in Kubernetes is that of the pod."""
    silent_after: Duration = Duration(1.0)
    """Time without a message after which what a replica has in flight no longer counts."""
    mesh: MeshConfig = MeshConfig()
    """Transport mesh."""
    valkey: ValkeyConfig = ValkeyConfig()
    """Transport valkey."""
