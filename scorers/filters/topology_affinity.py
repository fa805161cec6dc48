"""`topology-affinity-filter`: keeps endpoints close to the one that does the other stage of the request."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.base import Rng
from ..core.candidates import Candidates
from ..core.model import RequestView
from ..core.params import BuildContext, PluginParams
from ..core.ratings import Verdicts, keep_all
from ..core.registry import Registry
from ..core.topology import LEVELS, Level, Topology


class TopologyAffinityFilterParams(PluginParams, frozen=True):
    """Parameters of `topology-affinity-filter`."""

    min_affinity: Level = "host"
    """Widest level that an endpoint may share with the peer: host, rack, zone or region."""
    topology_producer_name: str = ""
    """Name of a `topology-extractor` in `plugins`; absent: the one without a name, or the usual labels of Kubernetes."""

    def remarks(self, context: BuildContext) -> Iterator[str]:
        """Yield that the extractor does not exist, if it is named and does not."""
        yield from super().remarks(context)
        name = self.topology_producer_name
        if name and name not in context.topologies:
            yield f"no topology-extractor is named {name!r}; the usual labels of Kubernetes are used"


class TopologyAffinityFilter:
    """Filter that drops endpoints farther from the request's peer than a level.

    It keeps all without a peer, and if every endpoint is farther.

    Args:
        topology: labels of the levels.
        widest: widest level that is kept, as position in `LEVELS`.
    """

    type = "topology-affinity-filter"

    def __init__(self, topology: Topology, widest: int) -> None:
        self._topology, self._widest = topology, widest

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return one verdict per candidate."""
        peer = request.peer_labels
        levels = self._topology.levels(peer, candidates) if peer is not None else None
        if levels is None:
            return keep_all(candidates)
        keep = levels <= self._widest
        return Verdicts(keep, self._reasons) if keep.any() else keep_all(candidates)

    def _reasons(self, dropped: Candidates) -> list[str]:
        return [f"not in the {LEVELS[self._widest]} of the request's peer"] * len(dropped)


def register(registry: Registry) -> None:
    """Register `topology-affinity-filter`."""
    registry.filters.add(TopologyAffinityFilter.type, TopologyAffinityFilterParams, _make)


def _make(params: TopologyAffinityFilterParams, context: BuildContext) -> TopologyAffinityFilter:
    return TopologyAffinityFilter(
        context.topology(params.topology_producer_name), LEVELS.index(params.min_affinity)
    )
