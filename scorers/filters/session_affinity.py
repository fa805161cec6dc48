"""`session-affinity-filter`: keeps the endpoint of the client's session, and all if the session has none."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from ..core.base import Filter, Rng
from ..core.candidates import Candidates
from ..core.model import RequestView
from ..core.params import BuildContext
from ..core.ratings import Verdicts, keep_all
from ..core.registry import Registry
from ..core.sessions import (
    EncodedEndpoints,
    RememberedSessions,
    SessionAffinityParams,
    Sessions,
    id_sources,
)

PLUGIN_TYPE = "session-affinity-filter"
MULTICLUSTER_TYPE = "multicluster-session-affinity-filter"


class _SessionFilter(Sessions):
    """Filter that drops all but the endpoint of the request's session, if that is a candidate. It never drops all."""

    type = PLUGIN_TYPE
    max_load_age_s = math.inf

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return one verdict per candidate."""
        endpoint = self.endpoint_of(request)
        if endpoint is None or (row := candidates.row(endpoint)) is None:
            return keep_all(candidates)
        keep = np.zeros(len(candidates), np.bool_)
        keep[row] = True
        return Verdicts(keep, partial(_reasons, endpoint))


class EncodedEndpointFilter(_SessionFilter, EncodedEndpoints):
    """Filter by the endpoint that a request header names; the response carries it for the next request."""


class SessionIdFilter(_SessionFilter, RememberedSessions):
    """Filter by the endpoint that is remembered for the session's id."""


def _reasons(endpoint: str, dropped: Candidates) -> list[str]:
    return [f"the session is bound to {endpoint}"] * len(dropped)


def register(registry: Registry) -> None:
    """Register `session-affinity-filter` and its type for endpoints that are clusters, which differs in the name only."""
    for plugin_type in (PLUGIN_TYPE, MULTICLUSTER_TYPE):
        registry.filters.add(plugin_type, SessionAffinityParams, partial(_make, plugin_type))


def _make(plugin_type: str, params: SessionAffinityParams, context: BuildContext) -> Filter:
    plugin: EncodedEndpointFilter | SessionIdFilter
    if params.strategy == "encoded_endpoint_header":
        plugin = EncodedEndpointFilter(params.header, namespace=context.namespace)
    else:
        plugin = SessionIdFilter(id_sources(params, context), ttl_s=params.ttl_s)
    plugin.type = plugin_type
    return plugin
