"""`session-affinity-scorer`: prefers the endpoint of the client's session."""

from __future__ import annotations

import math

import numpy as np

from .core.base import Scorer
from .core.candidates import Candidates
from .core.model import RequestView
from .core.params import BuildContext
from .core.ratings import Inputs, Ratings
from .core.registry import Registry
from .core.sessions import (
    EncodedEndpoints,
    RememberedSessions,
    SessionAffinityParams,
    Sessions,
    id_sources,
)

PLUGIN_TYPE = "session-affinity-scorer"


class _SessionScorer(Sessions):
    """Score 1 for the endpoint of the request's session, else 0. Ties: without a known session all score 0."""

    type = PLUGIN_TYPE
    max_load_age_s = math.inf

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is 1 for the session's endpoint, None if there is no session."""
        scores = np.zeros(len(candidates))
        endpoint = self.endpoint_of(request)
        if endpoint is None:
            return Ratings(scores)
        row = candidates.row(endpoint)
        if row is not None:
            scores[row] = 1.0
        return Ratings(scores, Inputs(scores))


class EncodedEndpointScorer(_SessionScorer, EncodedEndpoints):
    """Scorer by the endpoint that a request header names; the response carries it for the next request."""


class SessionIdScorer(_SessionScorer, RememberedSessions):
    """Scorer by the endpoint that is remembered for the session's id."""


def register(registry: Registry) -> None:
    """Register `session-affinity-scorer`."""
    registry.scorers.add(PLUGIN_TYPE, SessionAffinityParams, _make)


def _make(params: SessionAffinityParams, context: BuildContext) -> Scorer:
    if params.strategy == "encoded_endpoint_header":
        return EncodedEndpointScorer(params.header, namespace=context.namespace)
    return SessionIdScorer(id_sources(params, context), ttl_s=params.ttl_s)
