"""`session-affinity-scorer`: prefers the endpoint that the client's session was on."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta

from .core.base import Scorer
from .core.decision import Decision
from .core.model import Candidate, Rating, Ratings, RequestView
from .core.params import BuildContext, PluginParams
from .core.registry import Registry
from .errors import ParametersError

MAX_SESSIONS = 65_536
"""Sessions remembered; ids come from clients, so their number must have a bound."""

MAX_SESSION_ID_CHARS = 256
"""Longer session ids are not remembered, for the same reason."""

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
    """Where the session id is looked for; the first that is not empty counts."""
    eviction_ttl_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """Seconds without a request after which a session is forgotten."""
    eviction_sweep_seconds: Annotated[float, Meta(gt=0)] = 10.0
    """Accepted, no effect: sessions are forgotten on time."""


class SessionAffinityParams(PluginParams, frozen=True):
    """Parameters of `session-affinity-scorer`."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    """Whether the client carries the endpoint, or an id by which kvatlas remembers it."""
    encoded_endpoint_header_config: EncodedEndpointHeaderParams = EncodedEndpointHeaderParams()
    """For `encoded_endpoint_header`."""
    session_id_config: SessionIdParams = SessionIdParams()
    """For `session_id`."""
    profile_name: str = ""
    """Accepted, no effect: there is one profile."""


class EncodedEndpointScorer:
    """1 for the endpoint that the request's header names, else 0; the response gets the header for the next request.

    Args:
        header: lower-case name.
    """

    type = PLUGIN_TYPE

    def __init__(self, header: str) -> None:
        self._header = header

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """One rating a candidate; raw is 1 for the session's endpoint, None without a session."""
        return _pinned(candidates, _decoded(request.headers.get(self._header, "")))

    def response_headers(self, decision: Decision) -> Mapping[str, str]:
        """The header with the endpoint that the request went to."""
        return {self._header: base64.b64encode(decision.picked[0].encode()).decode()}


class SessionIdScorer:
    """1 for the endpoint that the session's last request went to, else 0.

    Args:
        headers: lower-case names, looked for in order.
        ttl_s: seconds without a request after which a session is forgotten.
    """

    type = PLUGIN_TYPE

    def __init__(self, headers: Sequence[str], *, ttl_s: float) -> None:
        self._headers, self._ttl_s = tuple(headers), ttl_s
        self._sessions: dict[str, tuple[str, float]] = {}
        """Session id -> endpoint and time of the last request, the longest unused first."""

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """One rating a candidate; raw is 1 for the session's endpoint, None without a known session."""
        endpoint, used_at = self._sessions.get(self._session_id(request), (None, 0.0))
        is_known = endpoint is not None and request.now - used_at <= self._ttl_s
        return _pinned(candidates, endpoint if is_known else None)

    def picked(self, request: RequestView, decision: Decision) -> None:
        """Remember where the session is. Cost: O(1) amortised."""
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
        """Sessions remembered."""
        return len(self._sessions)

    def _session_id(self, request: RequestView) -> str:
        return next((value for name in self._headers if (value := request.headers.get(name))), "")


def _pinned(candidates: Sequence[Candidate], endpoint: str | None) -> Ratings:
    if endpoint is None:
        return [Rating(raw=None, score=0.0)] * len(candidates)
    scores = [float(candidate.name == endpoint) for candidate in candidates]
    return [Rating(raw=score, score=score) for score in scores]


def _decoded(token: str) -> str | None:
    """The endpoint that a session token names, None for anything that is none: clients may send what they like."""
    try:
        return base64.b64decode(token, validate=True).decode() or None
    except (binascii.Error, ValueError):
        return None


def register(registry: Registry) -> None:
    """Adds `session-affinity-scorer`."""
    registry.scorers.add(PLUGIN_TYPE, SessionAffinityParams, _make)


def _make(params: SessionAffinityParams, _: BuildContext) -> Scorer:
    if params.strategy == "encoded_endpoint_header":
        return EncodedEndpointScorer(params.encoded_endpoint_header_config.header.strip().lower())
    for source in params.session_id_config.sources:
        if not source.header or source.attribute:
            raise ParametersError(
                "expected one header a source; request attributes are not supported", "sessionIdConfig"
            )
    return SessionIdScorer(
        [source.header.strip().lower() for source in params.session_id_config.sources],
        ttl_s=params.session_id_config.eviction_ttl_seconds,
    )
