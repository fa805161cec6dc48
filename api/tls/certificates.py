"""The certificate of the listeners: from files that may change while they listen, or self-signed at the start."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from ...configs.file_watch import FileWatch
from ...configs.listeners import ServerConfig, TlsConfig
from ..errors import TlsError
from .context import make_context
from .identity import Identity

if TYPE_CHECKING:
    from cryptography import x509  # at run time it is imported with the first certificate: 7 MB

log = logging.getLogger(__name__)


def make_metrics_certificates(server: ServerConfig) -> Certificates | None:
    """Return the identity that only `metrics` has, None if it has none.

    Raises:
        TlsError: as of `Certificates`.
    """
    if not server.metrics_tls.cert_file:
        return None
    return Certificates(server.metrics_tls.beside(server.tls), section="server.metricsTls")


def make_certificates(config: TlsConfig, *, by_default: bool) -> Certificates | None:
    """Return the configured identity, None for plain text.

    Args:
        config: `server.tls`.
        by_default: whether to make a certificate if the configuration does not say.

    Raises:
        TlsError: as of `Certificates`.
    """
    return Certificates(config) if speaks_tls(config, by_default=by_default) else None


def speaks_tls(config: TlsConfig, *, by_default: bool) -> bool:
    """Return whether the listeners have an identity; see `make_certificates`."""
    makes_one = by_default if config.self_signed == "auto" else config.self_signed
    return bool(config.cert_file) or makes_one


class Certificates:
    """The identity of one process's listeners.

    Args:
        config: without a certificate file one is made.
        section: key of the configuration, named in errors.

    Attributes:
        n_reloads: changed files loaded.
        n_failures: changed files that could not be used.

    Raises:
        TlsError: a file is missing or broken, key and certificate do not belong together, or OpenSSL refuses them.
    """

    def __init__(self, config: TlsConfig, *, section: str = "server.tls") -> None:
        self.asks_clients = bool(config.client_ca_file)
        """Whether clients must present a certificate."""
        self.n_reloads = self.n_failures = 0
        names = (config.key_file, config.cert_file, config.client_ca_file)
        self._watch = FileWatch(*(Path(name) for name in names if name))
        self.section = section
        """As given."""
        self.config = config
        """As given."""
        self._made = None if config.cert_file else _self_signed(config)
        self._watch.mark()
        self._identity = self._load()

    def current(self) -> Identity:
        """Return the identity of the files as they are now; the last usable one while they cannot be used.

        Without `reload` it is that of the start.

        To be called for each new connection, from any thread. Cost: a `stat` call for each file, unless one has changed.
        """
        if self.config.reload and self._watch.changed():
            self._reload()
        return self._identity

    def _reload(self) -> None:
        try:
            self._identity = self._load()
        except TlsError as error:
            self.n_failures += 1
            log.warning("the certificate stays as it was, its changed files cannot be used: %s", error)
            return
        self.n_reloads += 1
        log.info("the certificate was loaded again: its files have changed")

    def _load(self) -> Identity:
        config, section, client_ca = self.config, self.section, None
        if config.client_ca_file:
            client_ca = _read(f"{section}.clientCaFile", config.client_ca_file)
            _parsed(f"{section}.clientCaFile", config.client_ca_file, client_ca)
        key, chain = self._made or (
            _read(f"{section}.keyFile", config.key_file),
            _read(f"{section}.certFile", config.cert_file),
        )
        leaf = _parsed(f"{section}.certFile", config.cert_file, chain)
        if _public_key(f"{section}.keyFile", config.key_file, key) != leaf.public_key():
            raise TlsError(
                f"{section}.keyFile: the key in {config.key_file} is not that of the certificate in "
                f"{config.cert_file}; give the two that were made together"
            )
        identity = Identity(key, chain, client_ca, leaf.not_valid_after_utc.timestamp())
        self._check(identity)
        return identity

    def _check(self, identity: Identity) -> None:
        """Refuse what OpenSSL refuses of a certificate that can be read, such as a key that is too short."""
        try:
            make_context(identity, self.config, "h2")
        except ssl.SSLError as error:
            raise TlsError(
                f"{self.section}.certFile: OpenSSL refuses {self.config.cert_file}: {error.reason}; give a certificate "
                "and a key that its security level allows, such as RSA with 2048 bits"
            ) from None


def _read(setting: str, name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise TlsError(f"{setting}: cannot read {name}: {error.strerror}") from None


def _self_signed(config: TlsConfig) -> tuple[bytes, bytes]:
    from .self_signed import self_signed  # noqa: PLC0415 - see above

    suites = config.cipher_suites
    return self_signed(is_rsa=bool(suites) and not any("_ECDSA_" in name for name in suites))


def _parsed(setting: str, name: str, pem: bytes) -> x509.Certificate:
    """Return the first certificate of a file in which every certificate must be complete."""
    from cryptography import x509  # noqa: PLC0415 - see above

    try:
        return x509.load_pem_x509_certificates(pem)[0]
    except ValueError as error:
        raise TlsError(
            f"{setting}: {name} holds no PEM certificates (-----BEGIN CERTIFICATE-----): {error}"
        ) from None


def _public_key(setting: str, name: str, pem: bytes) -> object:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    try:
        return serialization.load_pem_private_key(pem, password=None).public_key()
    except (
        ValueError,
        TypeError,
        UnsupportedAlgorithm,
    ):  # the error's own text is about a key, and must not be logged
        raise TlsError(
            f"{setting}: {name} holds no PEM private key, or one with a password; give a key without"
        ) from None
