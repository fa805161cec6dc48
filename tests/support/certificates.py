"""Certificate files for tests."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.x509.oid import NameOID

from kvatlas.api.tls.self_signed import self_signed
from kvatlas.configs.listeners import TlsConfig


@dataclass(frozen=True)
class CertificateFiles:
    """A self-signed certificate and its key in files, as a secret mounted into a pod has them."""

    folder: Path

    @property
    def config(self) -> TlsConfig:
        return TlsConfig(cert_file=str(self.folder / "tls.crt"), key_file=str(self.folder / "tls.key"))

    @property
    def certificate(self) -> bytes:
        return (self.folder / "tls.crt").read_bytes()

    @property
    def key(self) -> bytes:
        return (self.folder / "tls.key").read_bytes()

    def renew(self) -> None:
        """Write another pair into the same files."""
        key, certificate = self_signed()
        self.write(key=key, certificate=certificate)

    def write(self, *, key: bytes | None = None, certificate: bytes | None = None) -> None:
        """Write other content; each file is replaced atomically, as in volumes."""
        for name, content in (("tls.key", key), ("tls.crt", certificate)):
            if content is not None:
                written = self.folder / f"{name}.new"
                written.write_bytes(content)
                written.replace(self.folder / name)


def certificate_files(folder: Path) -> CertificateFiles:
    """Make a new pair in `folder`."""
    files = CertificateFiles(folder)
    files.renew()
    return files


def refused_pair() -> tuple[bytes, bytes]:
    """Return a key and its certificate that can be read, and that OpenSSL refuses at every security level: X25519 signs nothing."""
    key = x25519.X25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "kvatlas")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, certificate.public_bytes(serialization.Encoding.PEM)


class Authority:
    """An authority whose certificate is in a file, and files of those that it certifies.

    Attributes:
        file: PEM file with its certificate.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._authority = folder, trustme.CA()
        self.file = folder / "ca.crt"
        self._authority.cert_pem.write_to_path(self.file)

    def certify(self, name: str) -> tuple[Path, Path]:
        """Certify a host name, address or user; return the files of the certificate and its key."""
        certificate, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        made = self._authority.issue_cert(name)
        certificate.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
        made.private_key_pem.write_to_path(key)
        return certificate, key
