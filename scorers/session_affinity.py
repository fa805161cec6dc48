"""`session-affinity-scorer`: prefers the endpoint of the client's session."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from .core.base import Scorer
from .core.candidates import Candidates
from .core.decision import Decision
from .core.model import RequestView
from .core.params import BuildContext, PluginParams
from .core.ratings import Inputs, Ratings
from .core.registry import Registry
from .errors import ParametersError

MAX_SESSIONS = 65_536
"""Most sessions to remember; ids come from clients, so their number needs a bound."""

MAX_SESSION_ID_CHARS = 256
"""Longest session id to remember, for the same reason."""

PLUGIN_TYPE = "session-affinity-scorer"

HeaderName = Annotated[str, Meta(min_length=1, max_length=256)]


class EncodedEndpointHeaderParams(PluginParams, frozen=True):
    """`encodedEndpointHeaderConfig`."""

    header: HeaderName = "x-session-token"
    """Header of response and request that carries the endpoint, base64."""


class SessionSourceParams(PluginParams, frozen=True):
    """One entry of `sources`."""

    header: str = ""
    """Request header that carries the session id."""
    attribute: str = ""
    """Not supported: there are no request attributes; use a header."""


class SessionIdParams(PluginParams, frozen=True):
    """`sessionIdConfig`."""

    sources: Annotated[tuple[SessionSourceParams, ...], Meta(min_length=1)] = (
        SessionSourceParams(header="x-session-id"),
    )
    """Sources of the session id, in order; the first one that is not empty counts."""
    eviction_ttl_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """Seconds without a request after which a session is forgotten."""
    eviction_sweep_seconds: Annotated[float, Meta(gt=0)] = 10.0
    """Accepted without effect: sessions are forgotten on time."""


class SessionAffinityParams(PluginParams, frozen=True):
    """Parameters of `session-affinity-scorer`."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    """Whether the client sends the endpoint itself, or an id for which kvatlas remembers the endpoint."""
    encoded_endpoint_header_config: EncodedEndpointHeaderParams = EncodedEndpointHeaderParams()
    """For `encoded_endpoint_header`."""
    session_id_config: SessionIdParams = SessionIdParams()
    """For `session_id`."""
    profile_name: str = ""
    """Accepted without effect: there is one profile."""


class EncodedEndpointScorer:
    """Score 1 for the endpoint that a request header names, else 0.

    The response carries the header for the next request. Ties: without a known session all score 0.

    Args:
        header: lower-case name.
    """

    type = PLUGIN_TYPE

    def __init__(self, header: str) -> None:
        self._header = header

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is 1 for the session's endpoint, None if there is no session."""
        return _pinned(candidates, _decoded(request.headers.get(self._header, "")))

    def response_headers(self, decision: Decision) -> Mapping[str, str]:
        """Return the header with the endpoint of the request."""
        return {self._header: base64.b64encode(decision.picked[0].encode()).decode()}


class SessionIdScorer:
    """Score 1 for the endpoint of the session's last request, else 0.

    Ties: without a known session all score 0.

    Args:
        headers: lower-case names, in the order of precedence.
        ttl_s: seconds without a request after which a session is forgotten.
    """

    type = PLUGIN_TYPE

    def __init__(self, headers: Sequence[str], *, ttl_s: float) -> None:
        self._headers, self._ttl_s = tuple(headers), ttl_s
        self._sessions: dict[str, tuple[str, float]] = {}
        """Session id -> endpoint and time of the last request, least recently used first."""

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is 1 for the session's endpoint, None if the session is unknown."""
        endpoint, used_at = self._sessions.get(self._session_id(request), (None, 0.0))
        is_known = endpoint is not None and request.now - used_at <= self._ttl_s
        return _pinned(candidates, endpoint if is_known else None)

    def picked(self, request: RequestView, decision: Decision) -> None:
        """Remember the endpoint of the session. Cost: O(1) amortised."""
        session_id = self._session_id(request)
        if session_id and len(session_id) <= MAX_SESSION_ID_CHARS:
            self._sessions.pop(session_id, None)
            self._sessions[session_id] = (decision.picked[0], request.now)
        while self._sessions:
            oldest = next(iter(self._sessions))
            if len(self._sessions) <= MAX_SESSIONS and request.now - self._sessions[oldest][1] <= self._ttl_s:
                break
            del self._sessions[oldest]

    def __len__(self) -> int:
        """Return the number of sessions remembered."""
        return len(self._sessions)

    def _session_id(self, request: RequestView) -> str:
        return next((value for name in self._headers if (value := request.headers.get(name))), "")


def _pinned(candidates: Candidates, endpoint: str | None) -> Ratings:
    scores = np.zeros(len(candidates))
    if endpoint is None:
        return Ratings(scores)
    row = candidates.row(endpoint)
    if row is not None:
        scores[row] = 1.0
    return Ratings(scores, Inputs(scores))


def _decoded(token: str) -> str | None:
    """Return the endpoint that a session token names, None if the token is invalid: clients may send anything."""
    try:
        return base64.b64decode(token, validate=True).decode() or None
    except (binascii.Error, ValueError):
        return None


def register(registry: Registry) -> None:
    """Register `session-affinity-scorer`."""
    registry.scorers.add(PLUGIN_TYPE, SessionAffinityParams, _make)


def _make(params: SessionAffinityParams, _: BuildContext) -> Scorer:
    if params.strategy == "encoded_endpoint_header":
        return EncodedEndpointScorer(params.encoded_endpoint_header_config.header.strip().lower())
    for source in params.session_id_config.sources:
        if not source.header or source.attribute:
            raise ParametersError(
                "expected one header per source; request attributes are not supported", "sessionIdConfig"
            )
    return SessionIdScorer(
        [source.header.strip().lower() for source in params.session_id_config.sources],
        ttl_s=params.session_id_config.eviction_ttl_seconds,
    )
