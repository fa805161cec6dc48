"""Calls of `/metrics` that the cluster decides about, by TokenReview and SubjectAccessReview."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ...configs.schema import KVAtlasConfig
from ...fleet.kubernetes.client.access import find_access
from ...fleet.kubernetes.client.api_server import ApiServer
from ...fleet.kubernetes.client.errors import AccessError, RequestFailedError
from ...fleet.kubernetes.client.reviews import Reviews, Verdict
from .auth import METRICS_PATH, bearer_token
from .errors import error_response
from .metrics import RestMetrics

log = logging.getLogger(__name__)

MAX_REVIEWS = 16
"""Concurrent reviews; callers choose their tokens, and the API server has other work."""

_HOW = "--metrics-endpoint-auth=false, or server.auth.metricsReview: false, opens /metrics to everybody"
_REFUSED = (401, 403)


class MetricsReviews:
    """Decides about calls of `/metrics`, with a client of the API server of its own.

    Nobody is admitted if there is no API server, or it refuses the review: one warning says so.

    Args:
        config: configuration of the process.
        environment: variables of the process.
        metrics: counts refusals.
    """

    def __init__(self, config: KVAtlasConfig, environment: Mapping[str, str], metrics: RestMetrics) -> None:
        self.metrics = metrics
        self._server: ApiServer | None = None
        self._reviews: Reviews | None = None
        self._is_warned = False
        self._n_reviews = 0
        try:
            access = find_access(config.endpoints.kubernetes.kubeconfig, environment)
        except AccessError as error:
            self._warn(str(error))
        else:
            self._server = ApiServer(access, clock=time.monotonic)
            self._reviews = Reviews(self._server, clock=time.monotonic)

    async def start(self) -> None:
        """Open the client's session."""
        if self._server is not None:
            await self._server.start()

    async def stop(self) -> None:
        """Close the client's session."""
        if self._server is not None:
            await self._server.stop()

    async def refusal(self, token: bytes | None) -> ASGIApp | None:
        """Return the response that refuses a call with this token, None if the call is admitted."""
        if token is None:
            return self._unauthorized("a token is missing: Authorization: Bearer TOKEN", is_wrong=False)
        if self._reviews is None:
            return self._unauthorized("no token can be reviewed without an API server", is_wrong=False)
        if self._n_reviews >= MAX_REVIEWS:
            return self._unavailable("too many tokens are being reviewed")
        self._n_reviews += 1
        try:
            verdict = await self._reviews.may_read(token.decode(errors="replace"), METRICS_PATH)
        except RequestFailedError as error:
            return self._failed(error)
        finally:
            self._n_reviews -= 1
        match verdict:
            case Verdict.ALLOWED:
                return None
            case Verdict.FORBIDDEN:
                self.metrics.refused("forbidden")
                return error_response(403, f"the token's owner has no right to GET {METRICS_PATH}")
            case Verdict.UNKNOWN_CALLER:
                return self._unauthorized("the cluster does not accept the token", is_wrong=True)

    def _failed(self, error: RequestFailedError) -> ASGIApp:
        if error.failure.status in _REFUSED:
            self._warn(str(error))
            return self._unauthorized("the cluster lets kvatlas review no token", is_wrong=False)
        log.debug("a token was not reviewed: %s", error)
        return self._unavailable("the API server does not answer, so the token cannot be reviewed")

    def _unauthorized(self, message: str, *, is_wrong: bool) -> ASGIApp:
        self.metrics.refused("unauthorized")
        challenge = 'Bearer realm="kvatlas"' + (', error="invalid_token"' if is_wrong else "")
        return error_response(401, message, headers={"WWW-Authenticate": challenge})

    def _unavailable(self, message: str) -> ASGIApp:
        self.metrics.refused("not_reviewed")
        return error_response(503, message, headers={"Retry-After": "1"})

    def _warn(self, why: str) -> None:
        if not self._is_warned:
            self._is_warned = True
            log.warning(
                "/metrics answers everybody with 401, since kvatlas cannot review their tokens: %s. It needs a "
                "ClusterRole that may create tokenreviews (authentication.k8s.io) and subjectaccessreviews "
                "(authorization.k8s.io); %s",
                why,
                _HOW,
            )


class ReviewAuth:
    """Refuses calls of `/metrics` that the cluster does not allow; other calls pass.

    Args:
        app: serves the calls that are admitted.
        reviews: decides.
    """

    def __init__(self, app: ASGIApp, *, reviews: MetricsReviews) -> None:
        self._app, self._reviews = app, reviews

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        refusal = None
        if scope["type"] == "http" and scope["path"] == METRICS_PATH:
            refusal = await self._reviews.refusal(bearer_token(Headers(scope=scope).get("authorization", "")))
        await (refusal or self._app)(scope, receive, send)
