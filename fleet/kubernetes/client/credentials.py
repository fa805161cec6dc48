"""Token and TLS context for requests, reloaded when their files are rotated."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from ....configs.file_watch import FileWatch
from .access import Access
from .errors import AccessError

LOOK_EVERY_S = 60.0
"""Longest time that files are believed unchanged. The kubelet replaces a token when a fifth of its hour is left."""


class Credentials:
    """Token and TLS context of an `Access`, reloaded from their files.

    The kubelet replaces a symbolic link above the files, which a file watch does not report, so the files are checked by
    time.

    Args:
        access: names the files, or holds their content.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._token = access.token if isinstance(access.token, str) else ""
        self._token_read_at: float | None = None
        self._tls: ssl.SSLContext | None = None
        self._tls_seen_at: float | None = None
        self._tls_files = FileWatch(*_tls_files(access))

    def token(self, *, now: float) -> str:
        """Return the bearer token, empty for none.

        Raises:
            AccessError: its file cannot be read, and no earlier token is known.
        """
        if isinstance(self._access.token, Path) and _is_old(self._token_read_at, now):
            self._read_token(self._access.token, now)
        return self._token

    def renew(self, *, now: float) -> bool:
        """Reload token and client certificate from their files; return whether one has changed."""
        before = self._token
        if isinstance(self._access.token, Path):
            self._read_token(self._access.token, now)
        has_certificate = self._access.certificate is not None and self._tls is not None
        return self._token != before or (has_certificate and self.renew_tls(now=now))

    def tls(self, *, now: float) -> ssl.SSLContext:
        """Return the TLS context for connections, a new one after its files have changed.

        Raises:
            AccessError: the files cannot be used, and no earlier context is known.
        """
        if self._tls is None or _is_old(self._tls_seen_at, now):
            self._tls_seen_at = now
            if self._tls_files.changed() or self._tls is None:
                self._load_tls()
        assert self._tls is not None  # noqa: S101 - loaded, or raised
        return self._tls

    def renew_tls(self, *, now: float) -> bool:
        """Reload the TLS context if its files have changed; return whether they had."""
        before, self._tls_seen_at = self._tls, None
        return self.tls(now=now) is not before

    def _read_token(self, path: Path, now: float) -> None:
        try:
            token = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            if not self._token:
                raise AccessError(f"the token in {path} cannot be read: {error}") from error
            return
        if token:
            self._token, self._token_read_at = token, now
        elif not self._token:  # otherwise it is being written
            raise AccessError(f"the token in {path} cannot be read: it is empty")

    def _load_tls(self) -> None:
        try:
            self._tls = _context(self._access)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            if self._tls is None:
                raise AccessError(f"the certificates for the API server cannot be used: {error}") from error


def _is_old(since: float | None, now: float) -> bool:
    return since is None or now - since >= LOOK_EVERY_S


def _tls_files(access: Access) -> Iterator[Path]:
    for each in (access.ca, *(access.certificate or ())):
        if isinstance(each, Path):
            yield each


def _context(access: Access) -> ssl.SSLContext:
    if isinstance(access.ca, Path):
        context = ssl.create_default_context(cafile=access.ca)
    else:
        context = ssl.create_default_context(cadata=access.ca)
    # Python 3.13 requires extensions that the CAs of many clusters lack, such as an authority key identifier.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if access.certificate is not None:
        certificate, key = access.certificate
        if isinstance(certificate, Path):
            context.load_cert_chain(certificate, key)
        else:
            with _as_file(
                f"{certificate}\n{key}"
            ) as file:  # OpenSSL reads client certificates from files only
                context.load_cert_chain(file)
    return context


@contextmanager
def _as_file(text: str) -> Generator[str]:
    """Yield the path of a file with the text, which no other user can read; it is removed at the end."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        yield file.name
