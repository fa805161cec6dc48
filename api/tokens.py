"""Bearer tokens from files that may change while the process runs."""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

from ..configs.file_watch import FileWatch
from ..configs.listeners import AuthConfig
from ..configs.token_file import read_token
from .errors import AuthError

log = logging.getLogger(__name__)


class TokenFile:
    """The token that callers must send.

    Args:
        path: the file; white space around the token is ignored.
        setting: configuration key that names it, for people.

    Raises:
        AuthError: it cannot be read or holds no token that clients can send.
    """

    def __init__(self, path: Path, setting: str = "server.auth.bearerTokenFile") -> None:
        self._path, self.setting = path, setting
        self._watch = FileWatch(path)
        self._watch.mark()
        self._token = self._read()

    def admits(self, token: bytes) -> bool:
        """Return whether the file now holds this token; False while the file cannot be used.

        Compares in constant time. Cost: one `stat` call, unless the file has changed.
        """
        if self._watch.changed():
            self._reload()
        return bool(self._token) and hmac.compare_digest(token, self._token)

    def _reload(self) -> None:
        try:
            self._token = self._read()
        except AuthError as error:
            self._token = b""
            log.error("nobody is admitted until it is mended: %s", error)  # noqa: TRY400 - the message says all
            return
        log.info("%s: another token is in force", self.setting)

    def _read(self) -> bytes:
        try:
            return read_token(self._path)
        except ValueError as error:
            raise AuthError(f"{self.setting}: {error}") from None


class TokenFiles:
    """The configured token files.

    Args:
        config: names the files.

    Attributes:
        bearer: protects calls that change state, None if not configured.
        metrics: protects the metrics alone, None if not configured.

    Raises:
        AuthError: a file cannot be used.
    """

    def __init__(self, config: AuthConfig) -> None:
        self.metrics = _token_file(config.metrics_token_file, "server.auth.metricsTokenFile")
        self.bearer = _token_file(config.bearer_token_file, "server.auth.bearerTokenFile")

    def __bool__(self) -> bool:
        return self.bearer is not None or self.metrics is not None


def _token_file(path: str, setting: str) -> TokenFile | None:
    return TokenFile(Path(path), setting) if path else None
