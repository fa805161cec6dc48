"""The origin of a request, as its headers say."""

from __future__ import annotations

from collections.abc import Mapping

from ..scorers.core.decision import Origin
from ..scorers.core.slo import slo_of
from .control_headers import MAX_ID_CHARS, fairness_id, objective, traceparent
from .policy import Policy
from .router import RoutingRequest


def origin_of(request: RoutingRequest, policy: Policy) -> Origin:
    """Return the origin of a request, with the priority of its objective.

    A request without fairness id counts for the first identity that a plugin finds, or for all such requests together.
    """
    headers = request.headers
    name = objective(headers)
    return Origin(
        request_id=request.request_id[:MAX_ID_CHARS],
        traceparent=traceparent(headers),
        objective=name,
        priority=policy.admission.priority(name),
        fairness_id=fairness_id(headers, _identity(headers, policy)),
        slo=slo_of(headers),
    )


def _identity(headers: Mapping[str, str], policy: Policy) -> str:
    for reader in policy.requests.identities:
        if found := reader.identity(headers):
            return found
    return ""
