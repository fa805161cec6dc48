"""Sessions of clients: the endpoint that a request's session is bound to, for the filter and the scorer that keep it there."""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Annotated, Literal

from msgspec import Meta

from ..errors import ParametersError
from .decision import Decision
from .model import RequestView
from .params import BuildContext, HeaderReader, PluginParams
from .shared import SharedUses
from .sibling_sessions import SiblingSessions, digest_of

DEFAULT_HEADER = "x-session-token"
DEFAULT_TTL_S = 300.0

MAX_SESSIONS = 65_536
"""Most sessions to remember; ids come from clients, so their number needs a bound."""

MAX_SESSION_ID_CHARS = 256
"""Longest session id to remember, for the same reason."""

_PRODUCERS = {"SessionIDDataKey": "session-id-producer"}
"""Attribute -> default name of the plugin that makes it, if that differs from the attribute."""

HeaderName = Annotated[str, Meta(max_length=256)]


class EncodedEndpointHeaderParams(PluginParams, frozen=True):
    """`encodedEndpointHeaderConfig`."""

    header: HeaderName = DEFAULT_HEADER
    """Header of response and request that carries the endpoint, base64; empty: the default."""


class SessionSourceParams(PluginParams, frozen=True):
    """One entry of `sources`: a header or an attribute."""

    header: str = ""
    """Request header that carries the session id."""
    attribute: str = ""
    """Attribute of the request that is the session id, such as `SessionIDDataKey` or `agent-identity`."""
    producer: str = ""
    """Name of the plugin in `plugins` that makes the attribute; absent: the default one."""

    @property
    def made_by(self) -> str:
        """Return the name of the plugin that makes the attribute."""
        return self.producer or _PRODUCERS.get(self.attribute, self.attribute)


DEFAULT_SOURCES = (SessionSourceParams(header="x-session-id"),)


class SessionIdParams(PluginParams, frozen=True):
    """`sessionIdConfig`."""

    sources: tuple[SessionSourceParams, ...] = DEFAULT_SOURCES
    """Sources of the session id, in order; the first one that is not empty counts. An empty list is the default."""
    eviction_ttl_seconds: Annotated[float, Meta(ge=0)] = DEFAULT_TTL_S
    """Seconds without a request after which a session is forgotten; 0 is the default."""
    eviction_sweep_seconds: Annotated[float, Meta(ge=0)] = 10.0
    """Accepted without effect: sessions are forgotten on time."""


class SessionAffinityParams(PluginParams, frozen=True):
    """Parameters of `session-affinity-filter` and `session-affinity-scorer`."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    """Whether the client sends the endpoint itself, or an id for which kvatlas remembers the endpoint."""
    encoded_endpoint_header_config: EncodedEndpointHeaderParams = EncodedEndpointHeaderParams()
    """For `encoded_endpoint_header`."""
    session_id_config: SessionIdParams = SessionIdParams()
    """For `session_id`."""
    profile_name: str = ""
    """Accepted without effect: the server that answers counts, or the one that the plugin's profile picks."""

    @property
    def header(self) -> str:
        """Return the lower-case name of the header that carries the endpoint."""
        return self.encoded_endpoint_header_config.header.strip().lower() or DEFAULT_HEADER

    @property
    def ttl_s(self) -> float:
        """Return the seconds after which a session is forgotten."""
        return self.session_id_config.eviction_ttl_seconds or DEFAULT_TTL_S

    def remarks(self, context: BuildContext) -> Iterator[str]:
        """Yield the sources that never have a session id."""
        yield from super().remarks(context)
        for source in self.session_id_config.sources if self.strategy == "session_id" else ():
            if source.attribute and source.made_by not in context.request_attributes:
                yield f"no plugin {source.made_by!r} makes the attribute {source.attribute!r} of requests"


class Sessions(ABC):
    """The endpoints of sessions."""

    @abstractmethod
    def endpoint_of(self, request: RequestView) -> str | None:
        """Return the name of the endpoint that the request's session is bound to, None if it is bound to none."""


class EncodedEndpoints(Sessions):
    """Sessions whose client sends the endpoint, as base64 of `NAMESPACE/NAME`; nothing is stored.

    Args:
        header: lower-case name of the header, in requests and responses.
        namespace: namespace of endpoints whose name has none.
    """

    def __init__(self, header: str, *, namespace: str) -> None:
        self._header, self._namespace = header, namespace

    def endpoint_of(self, request: RequestView) -> str | None:
        """Return the endpoint that the header names, None if it is missing or invalid: clients may send anything."""
        token = request.headers.get(self._header)
        if not token:
            return None
        try:
            namespace, slash, name = base64.b64decode(token, validate=True).decode().partition("/")
        except (binascii.Error, ValueError):
            return None
        if not slash:
            return None
        return name if namespace == self._namespace else f"{namespace}/{name}"

    def response_headers(self, decision: Decision) -> Mapping[str, str]:
        """Return the header with the endpoint of the request."""
        name = decision.picked[0]
        full = name if "/" in name else f"{self._namespace}/{name}"
        return {self._header: base64.b64encode(full.encode()).decode()}


class RememberedSessions(Sessions):
    """Sessions whose client sends an id, by which their endpoint is remembered.

    Args:
        sources: read the session id from request headers, in the order of precedence; empty text if there is none.
        ttl_s: seconds without a request after which a session is forgotten.
    """

    def __init__(self, sources: Sequence[HeaderReader], *, ttl_s: float) -> None:
        self._sources, self._ttl_s = tuple(sources), ttl_s
        self._bound: dict[str, tuple[str, float]] = {}
        """Session id -> endpoint and time of the last request, least recently used first."""
        self._siblings = SiblingSessions(ttl_s, most=MAX_SESSIONS)
        self._shared = SharedUses(self._siblings.take, self._uses)

    def shared_uses(self) -> Mapping[str, SharedUses]:
        """See `SharesUses`: digest of the session's id -> endpoint."""
        return {"sessions": self._shared}

    def __len__(self) -> int:
        """Return the number of sessions remembered."""
        return len(self._bound)

    def endpoint_of(self, request: RequestView) -> str | None:
        """Return the endpoint to which the session was bound, None if the session is unknown."""
        return self._endpoint_of(self._id_of(request), request.now)

    def picked(self, request: RequestView, decision: Decision) -> None:
        """Bind the session to its endpoint, unless it is bound to another one that could have been picked.

        So a session returns to its endpoint after requests that other scorers sent elsewhere. Cost: O(1) amortised, and
        O(endpoints) for a request that left its endpoint.
        """
        session_id, name = self._id_of(request), decision.picked[0]
        if session_id and len(session_id) <= MAX_SESSION_ID_CHARS:
            bound = self._endpoint_of(session_id, request.now)
            if bound is not None and bound != name and bound in decision.kept_names:
                name = bound
            self._bound.pop(session_id, None)
            self._bound[session_id] = (name, request.now)
            if self._shared.on_change is not None:
                self._shared.note(digest_of(session_id), name)
        while self._bound:
            oldest = next(iter(self._bound))
            if len(self._bound) <= MAX_SESSIONS and request.now - self._bound[oldest][1] <= self._ttl_s:
                break
            del self._bound[oldest]

    def _endpoint_of(self, session_id: str, now: float) -> str | None:
        endpoint, used_at = self._bound.get(session_id, (None, 0.0))
        theirs = self._siblings.of(session_id) if self._siblings and session_id else None
        if theirs is not None and (endpoint is None or theirs[1] > used_at):
            endpoint, used_at = theirs
        return endpoint if now - used_at <= self._ttl_s else None

    def _uses(self) -> dict[str, tuple[str, float]]:
        uses = self._siblings.uses()
        for session_id, own in self._bound.items():
            digest = digest_of(session_id)
            uses[digest] = max(own, uses.get(digest, own), key=itemgetter(1))  # the later one
        return uses

    def _id_of(self, request: RequestView) -> str:
        for read in self._sources:
            if session_id := read(request.headers):
                return session_id
        return ""


def id_sources(params: SessionAffinityParams, context: BuildContext) -> list[HeaderReader]:
    """Return the readers of session ids; a source whose attribute no plugin makes is left out.

    Raises:
        ParametersError: a source names no header and no attribute, or both.
    """
    readers: list[HeaderReader] = []
    for source in params.session_id_config.sources or DEFAULT_SOURCES:
        header = source.header.strip().lower()
        if bool(header) == bool(source.attribute):
            raise ParametersError(
                "expected either a header or an attribute in each source", "sessionIdConfig"
            )
        if header:
            readers.append(partial(_header, header))
        elif (made := context.request_attributes.get(source.made_by)) is not None:
            readers.append(made.attribute)
    return readers


def _header(name: str, headers: Mapping[str, str]) -> str:
    return headers.get(name, "")
