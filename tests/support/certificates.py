"""Certificate files for tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme

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
