"""The services beside ext-proc."""

from __future__ import annotations

import grpc

from ...routing.picker import Picker
from . import pod_scores, scorer


def make_services(picker: Picker) -> dict[str, grpc.GenericRpcHandler]:
    """Return name -> handler of every service that answers from `picker`."""
    return {
        scorer.SERVICE: scorer.ScorerService(picker).handler(),
        pod_scores.SERVICE: pod_scores.PodScoresService(picker).handler(),
    }
