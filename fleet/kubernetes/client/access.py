"""Address and credentials of the API server, from inside a pod or from a kubeconfig."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from ....configs.address import HostPort
from .errors import AccessError

IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet mounts a pod's token, CA and namespace."""

_UNSUPPORTED = {
    "exec": "a program that makes tokens",
    "auth_provider": "a provider that makes tokens",
    "username": "a password",
}
"""Unsupported ways to log in; a token or certificate can be had instead of each."""

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Access:
    """Address and credentials of an API server.

    Attributes:
        url: base URL without trailing slash.
        namespace: namespace of the pod or kubeconfig context; None if there is none.
        ca: CA certificates as PEM, or a file of them that may be rotated; None for those of the system.
        token: bearer token, or a file of it that is rotated; None for no token.
        certificate: client certificate and key, as files or as PEM; None for no certificate.
        verify: whether to check the server's certificate.
        server_name: name that the certificate must have; None for the host of the URL.
    """

    url: str
    namespace: str | None = None
    ca: Path | str | None = None
    token: Path | str | None = field(default=None, repr=False)
    certificate: tuple[Path, Path] | tuple[str, str] | None = field(default=None, repr=False)
    verify: bool = True
    server_name: str | None = None


def find_access(kubeconfig: str, environment: Mapping[str, str], *, mounted: Path = IN_CLUSTER) -> Access:
    """Find the API server.

    Tries in this order: `kubeconfig`, the file that `KUBECONFIG` names, the pod's service account, `~/.kube/config`.

    Args:
        kubeconfig: path; empty to skip it.
        environment: variables of the process.
        mounted: folder of the pod's service account.

    Raises:
        AccessError: none exists, or the first one that exists cannot be used.
    """
    named = kubeconfig or environment.get("KUBECONFIG", "")
    if named:
        return read_kubeconfig(Path(named).expanduser())
    if "KUBERNETES_SERVICE_HOST" in environment:
        return _in_cluster(environment, mounted)
    own = Path(environment.get("HOME", "")) / ".kube" / "config"
    if own.is_file():
        return read_kubeconfig(own)
    raise AccessError(
        "no API server: not in a pod (KUBERNETES_SERVICE_HOST is not set), no endpoints.kubernetes.kubeconfig, no "
        f"KUBECONFIG, and no file {own}"
    )


def _in_cluster(environment: Mapping[str, str], mounted: Path) -> Access:
    token, ca, namespace = mounted / "token", mounted / "ca.crt", mounted / "namespace"
    if not token.is_file():
        raise AccessError(f"{token} is missing: the pod needs automountServiceAccountToken")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    host = environment["KUBERNETES_SERVICE_HOST"]
    if not port.isdecimal():
        raise AccessError(f"KUBERNETES_SERVICE_PORT is {port!r}, want a number")
    return Access(
        url=f"https://{HostPort(host.strip('[]'), int(port))}",
        namespace=namespace.read_text().strip() if namespace.is_file() else None,
        ca=ca if ca.is_file() else None,
        token=token,
    )


class _Section(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """Base of the sections of a kubeconfig. Unknown keys are ignored."""


class _Cluster(_Section, frozen=True):
    server: str
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""


class _User(_Section, frozen=True):
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    username: str = ""
    auth_provider: object = None
    exec: object = None


class _Context(_Section, frozen=True):
    cluster: str
    user: str = ""
    namespace: str = ""


class _NamedCluster(_Section, frozen=True):
    name: str
    cluster: _Cluster


class _NamedUser(_Section, frozen=True):
    name: str
    user: _User | None = None


class _NamedContext(_Section, frozen=True):
    name: str
    context: _Context


class _Kubeconfig(_Section, frozen=True):
    current_context: str
    clusters: list[_NamedCluster]
    contexts: list[_NamedContext]
    users: list[_NamedUser] | None = None


def read_kubeconfig(path: Path) -> Access:
    """Read the current context of a kubeconfig; paths in it are relative to the file.

    Raises:
        AccessError: the file cannot be read, or its user logs in by an unsupported way.
    """
    try:
        config = msgspec.yaml.decode(path.read_bytes(), type=_Kubeconfig)
        context = _named(config.contexts, config.current_context, "context").context
        cluster = _named(config.clusters, context.cluster, "cluster").cluster
        user = _named(config.users or [], context.user, "user").user if context.user else None
        return _access(path.parent, cluster, user or _User(), context.namespace)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise AccessError(f"{path}: cannot be read: {error}") from error
    except ValueError as error:
        raise AccessError(f"{path}: {error}") from error


N = TypeVar("N", _NamedCluster, _NamedUser, _NamedContext)


def _named(entries: Sequence[N], name: str, noun: str) -> N:
    for entry in entries:
        if entry.name == name:
            return entry
    raise ValueError(
        f"there is no {noun} {name!r}; there are {', '.join(repr(e.name) for e in entries) or 'none'}"
    )


def _access(folder: Path, cluster: _Cluster, user: _User, namespace: str) -> Access:
    for key, what in _UNSUPPORTED.items():
        if getattr(user, key):
            raise ValueError(
                f"the user logs in with {what} ({key.replace('_', '-')}), which kvatlas does not; "
                "use a token, a token file or a client certificate"
            )
    token = user.token or (folder / user.token_file if user.token_file else None)
    return Access(
        url=cluster.server.rstrip("/"),
        namespace=namespace or None,
        ca=_file_or_data(folder, cluster.certificate_authority, cluster.certificate_authority_data),
        token=token,
        certificate=_certificate(folder, user),
        verify=not cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name or None,
    )


def _certificate(folder: Path, user: _User) -> tuple[Path, Path] | tuple[str, str] | None:
    certificate = _file_or_data(folder, user.client_certificate, user.client_certificate_data)
    key = _file_or_data(folder, user.client_key, user.client_key_data)
    match certificate, key:
        case None, None:
            return None
        case Path(), Path():
            return certificate, key
        case str(), str():
            return certificate, key
        case _:
            raise ValueError("client-certificate and client-key must both be files, or both be data")


def _file_or_data(folder: Path, file: str, data: str) -> Path | str | None:
    """Return inline data if there is any, otherwise the file, as kubectl does."""
    if not data:
        return folder / file if file else None
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(f"data in base64 cannot be read: {error}") from error
