"""Flags of `kvatlas serve` in place of what the configuration says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from ...configs.address import HostPort
from ...configs.checks import check_config
from ...configs.listeners import ExtProcConfig, ServerConfig, TlsConfig
from ...configs.schema import KVAtlasConfig
from .cluster_flags import ClusterFlags
from .reference_flags import ReferenceFlags


@dataclass(frozen=True, slots=True)
class Overrides:
    """Flags, None where one was not given.

    Attributes:
        addresses: listener -> HOST:PORT; empty switches it off.
        ports: listener -> port, which replaces that of its address.
        compat: as `extProc.compat`.
        secure_serving: whether ext-proc speaks TLS.
        metrics_endpoint_auth: whether the cluster decides about calls of `/metrics`.
        cert_path: folder with `tls.crt` and `tls.key`.
        cluster: flags that name the endpoints.
        reference: flags that only the reference has.
    """

    addresses: dict[str, str | None]
    ports: dict[str, int | None]
    compat: Literal["none", "llm-d"] | None
    secure_serving: Literal["true", "false"] | None
    metrics_endpoint_auth: Literal["true", "false"] | None
    cert_path: Path | None
    cluster: ClusterFlags
    reference: ReferenceFlags

    def apply(self, config: KVAtlasConfig) -> KVAtlasConfig:
        """Return the configuration with the flags in place of its own values.

        Raises:
            ValueError: a flag cannot be used; the text names it.
        """
        server = self._with_auth(self._with_tls(self._with_addresses(self._with_ports(config.server))))
        changed = self.cluster.of(config)
        changed = replace(changed, server=server, ext_proc=self._with_compat(changed.ext_proc))
        changed = self.reference.apply(changed)
        for problem in check_config(changed):
            raise ValueError(f"with these flags, {problem}")
        return changed

    def _with_ports(self, server: ServerConfig) -> ServerConfig:
        """Replace ports; a listener that is off listens on every interface then."""
        given: dict[str, str] = {}
        for name, port in self.ports.items():
            if port is not None:
                address: str = getattr(server, name) or "0.0.0.0:0"
                given[name] = str(HostPort(HostPort.parse(address, lowest_port=0).host, port))
        return replace(server, **given)

    def _with_addresses(self, server: ServerConfig) -> ServerConfig:
        given = {
            name: _listener(name, address) for name, address in self.addresses.items() if address is not None
        }
        return replace(server, **given)

    def _with_tls(self, server: ServerConfig) -> ServerConfig:
        """Set the TLS of ext-proc by the reference's flags: none, files of a folder, or a self-signed certificate."""
        tls: TlsConfig = server.tls
        if self.secure_serving == "false":
            tls = TlsConfig(self_signed=False)
        elif self.cert_path is not None:
            files = {
                "cert_file": str(self.cert_path / "tls.crt"),
                "key_file": str(self.cert_path / "tls.key"),
            }
            tls = replace(tls, **files, self_signed="auto", http=False)
        elif self.secure_serving == "true" and not tls.cert_file:
            tls = replace(tls, self_signed=True, http=False)
        return replace(server, tls=tls)

    def _with_auth(self, server: ServerConfig) -> ServerConfig:
        if self.metrics_endpoint_auth is None:
            return server
        return replace(server, auth=replace(server.auth, metrics_review=self.metrics_endpoint_auth == "true"))

    def _with_compat(self, ext_proc: ExtProcConfig) -> ExtProcConfig:
        return replace(ext_proc, compat=self.compat) if self.compat is not None else ext_proc


def _listener(name: str, address: str) -> str:
    try:
        return str(HostPort.parse(address, lowest_port=0)) if address else ""
    except ValueError as error:
        raise ValueError(f"--{name.replace('_', '-')}: {error}") from error
