"""The origin of a request, as its headers say."""

from __future__ import annotations

from ..scorers.core.decision import Origin
from ..scorers.core.slo import slo_of
from .admission import Admission
from .control_headers import MAX_ID_CHARS, fairness_id, objective, traceparent
from .router import RoutingRequest


def origin_of(request: RoutingRequest, admission: Admission) -> Origin:
    """Return the origin of a request, with the priority of its objective."""
    headers = request.headers
    name = objective(headers)
    return Origin(
        request_id=request.request_id[:MAX_ID_CHARS],
        traceparent=traceparent(headers),
        objective=name,
        priority=admission.priority(name),
        fairness_id=fairness_id(headers),
        slo=slo_of(headers),
    )
