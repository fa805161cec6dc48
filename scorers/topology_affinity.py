"""`topology-affinity-scorer`: prefers endpoints close to the one that does the other stage of the request."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .core.candidates import Candidates
from .core.model import RequestView
from .core.params import BuildContext, PluginParams
from .core.ratings import Inputs, Ratings
from .core.registry import Registry
from .core.topology import Topology

SCORES = np.array([1.0, 0.2, 0.05, 0.02, 0.0])
"""Score by level: host, rack, zone, region, none. Source: the reference's scorer."""


class TopologyAffinityScorerParams(PluginParams, frozen=True):
    """Parameters of `topology-affinity-scorer`."""

    topology_producer_name: str = ""
    """Name of a `topology-extractor` in `plugins`; absent: the one without a name, or the usual labels of Kubernetes."""

    def remarks(self, context: BuildContext) -> Iterator[str]:
        """Yield that the extractor does not exist, if it is named and does not."""
        yield from super().remarks(context)
        name = self.topology_producer_name
        if name and name not in context.topologies:
            yield f"no topology-extractor is named {name!r}; the usual labels of Kubernetes are used"


class TopologyAffinityScorer:
    """Score 1 on the host of the request's peer, 0.2 in its rack, 0.05 in its zone, 0.02 in its region, else 0.

    Ties: endpoints with the same closest level score the same; without a peer all score 0.

    Args:
        topology: labels of the levels.
    """

    type = "topology-affinity-scorer"

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is the number of the closest common level, None without a peer."""
        peer = request.peer_labels
        levels = self._topology.levels(peer, candidates) if peer is not None else None
        if levels is None:
            return Ratings(np.zeros(len(candidates)))
        return Ratings(SCORES[levels], Inputs(levels.astype(np.float64)))


def register(registry: Registry) -> None:
    """Register `topology-affinity-scorer`."""
    registry.scorers.add(TopologyAffinityScorer.type, TopologyAffinityScorerParams, _make)


def _make(params: TopologyAffinityScorerParams, context: BuildContext) -> TopologyAffinityScorer:
    return TopologyAffinityScorer(context.topology(params.topology_producer_name))
