"""Calls that need no token: refused if a stranger makes them, or a page of another site in somebody's browser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ..tokens import TokenFile
from .auth import PROBES, needs_token
from .errors import error_response
from .hosts import HostNames
from .metrics import RestMetrics

_LOCAL = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
"""Peers on this machine. Not all of 127.0.0.0/8: the proxy of a mesh passes calls of others on from 127.0.0.6."""

_OF_PROXIES = ("forwarded", "via", "x-forwarded-", "x-real-ip", "x-envoy-")
"""Headers that proxies add. They prove that a call comes from elsewhere; nothing is read from them."""

_SHOWN_CHARS = 80


class _Refusal(NamedTuple):
    """Why a call is refused, for counters and for its caller."""

    reason: str
    message: str


class OpenCalls:
    """Refuses with 403 calls that nothing proves to be the operator's.

    A call passes if it needs a token, since `BearerAuth` decides about it: no page of another site has the token. Of
    the others, the headers Host and Origin must not name other sites. A call that changes something must also come
    from this machine, directly, or over a connection with a client certificate.

    Args:
        app: serves the calls that are admitted.
        wanted: method and path -> tokens of which the call must send one; empty for an open call.
        hosts: names of this process.
        has_certificates: whether every caller has shown a client certificate.
        metrics: counts refusals.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        wanted: Callable[[str, str], Sequence[TokenFile]],
        hosts: HostNames,
        has_certificates: bool,
        metrics: RestMetrics,
    ) -> None:
        self._app, self._wanted, self._hosts, self._metrics = app, wanted, hosts, metrics
        self._has_certificates = has_certificates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        self._metrics.refused(refusal.reason)
        await error_response(403, refusal.message)(scope, receive, send)

    def admits(self, scope: Scope) -> bool:
        """Return whether a call passes."""
        return self._refusal(scope) is None

    def _refusal(self, scope: Scope) -> _Refusal | None:
        method, path = scope["method"], scope["path"]
        if path in PROBES or self._wanted(method, path):
            return None
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if host and not self._hosts.has(host):  # no browser leaves it out
            return _Refusal(
                "foreign_host",
                f"the header Host names {host[:_SHOWN_CHARS]!r}, which is not known as a name of kvatlas; "
                "if it is one, add it to rest.allowedHosts",
            )
        if origin is not None and not self._hosts.is_own_page(origin, host):
            return _Refusal(
                "foreign_origin",
                f"the call comes from a page of another site, {origin[:_SHOWN_CHARS]!r}; "
                "if that is a name of kvatlas, add it to rest.allowedHosts",
            )
        if needs_token(method, path, protect_reads=False) and not (
            self._has_certificates or _is_local(scope)
        ):
            return _Refusal(
                "not_local",
                "without a token, changes are accepted only from this machine, not through a proxy: "
                "set server.auth.bearerTokenFile and send its token, or use kubectl port-forward",
            )
        return None


def _is_local(scope: Scope) -> bool:
    """Return whether a process of this machine called, and not for somebody else."""
    peer = scope.get("client")
    is_forwarded = any(name.decode("latin-1").startswith(_OF_PROXIES) for name, _ in scope["headers"])
    return peer is not None and peer[0] in _LOCAL and not is_forwarded
