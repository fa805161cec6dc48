"""Bearer authentication: the calls that need a token, and the refusal of those without."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ...configs.listeners import AuthConfig
from ..tokens import TokenFile, TokenFiles
from .errors import error_response
from .metrics import RestMetrics
from .ui import is_page

PROBES = frozenset({"/healthz", "/readyz"})
"""Paths of health probes, which send no token."""

METRICS_PATH = "/metrics"

_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_QUESTIONS = frozenset({"/query", "/query_by_hash", "/v1/score", "/v1/weights/preview"})
"""Paths whose POST changes nothing: the question does not fit into a URL."""


def needs_token(method: str, path: str, *, protect_reads: bool) -> bool:
    """Return whether a call needs the token: every call that may change something, unknown paths included."""
    if path in PROBES or (is_page(path) and method in _READING_METHODS):
        return False
    return protect_reads or not (method in _READING_METHODS or path in _QUESTIONS)


class Tokens:
    """The configured tokens, and the calls that need one of them.

    Args:
        config: names their files.

    Raises:
        AuthError: a file cannot be used.
    """

    def __init__(self, config: AuthConfig) -> None:
        self._protect_reads, self._reviews_metrics = config.protect_reads, config.metrics_review
        self._files = TokenFiles(config)

    def __bool__(self) -> bool:
        return bool(self._files)

    def wanted(self, method: str, path: str) -> list[TokenFile]:
        """Return the tokens of which a call must send one; empty for an open call."""
        if path == METRICS_PATH and self._reviews_metrics:
            return []  # the cluster decides: see `ReviewAuth`
        both = [token for token in (self._files.metrics, self._files.bearer) if token is not None]
        if path == METRICS_PATH and self._files.metrics is not None:
            return both
        if self._files.bearer is not None and needs_token(method, path, protect_reads=self._protect_reads):
            return [self._files.bearer]
        return []

    @property
    def of_metrics(self) -> list[TokenFile]:
        """Tokens of which a call on the metrics listener must send one."""
        return self.wanted("GET", METRICS_PATH) if self._files.metrics is not None else []


class BearerAuth:
    """Refuses calls without the token with 401, before their body is read.

    Args:
        app: serves the calls that are admitted.
        wanted: method and path -> tokens of which the call must send one; empty for an open call.
        metrics: counts refusals.
    """

    def __init__(
        self, app: ASGIApp, *, wanted: Callable[[str, str], Sequence[TokenFile]], metrics: RestMetrics
    ) -> None:
        self._app, self._wanted, self._metrics = app, wanted, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is not None:
            self._metrics.refused("unauthorized")
        await (refusal or self._app)(scope, receive, send)

    def admits(self, scope: Scope) -> bool:
        """Return whether a call passes."""
        return self._refusal(scope) is None

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        wanted = self._wanted(scope["method"], scope["path"])
        if not wanted:
            return None
        given = bearer_token(Headers(scope=scope).get("authorization", ""))
        if given is not None and any(token.admits(given) for token in wanted):
            return None
        return _refusal(wanted[0].setting, is_wrong=given is not None)


def bearer_token(header: str) -> bytes | None:
    """Return the token of an Authorization header, None if there is none."""
    scheme, _, token = header.partition(" ")
    return token.strip().encode() if scheme.lower() == "bearer" and token else None


def _refusal(setting: str, *, is_wrong: bool) -> ASGIApp:
    challenge = 'Bearer realm="kvatlas"' + (', error="invalid_token"' if is_wrong else "")
    what = (
        "the token is not the one"
        if is_wrong
        else "a token is missing, Authorization: Bearer TOKEN; it is that"
    )
    message = f"{what} in the file that {setting} names"
    return error_response(401, message, headers={"WWW-Authenticate": challenge})
