"""`topology-extractor`: names the labels that give the place of an endpoint."""

from __future__ import annotations

from .core.params import PluginParams
from .core.registry import Registry
from .core.topology import LABELS, TOPOLOGY_EXTRACTOR, Topology


class TopologyExtractorParams(PluginParams, frozen=True):
    """Parameters of `topology-extractor`; an empty name stands for the default."""

    hostname: str = LABELS[0]
    """Label with the name of the host."""
    rack: str = LABELS[1]
    """Label with the name of the rack."""
    zone: str = LABELS[2]
    """Label with the name of the zone."""
    region: str = LABELS[3]
    """Label with the name of the region."""

    def topology(self) -> Topology:
        """Return the labels by level."""
        given = (self.hostname, self.rack, self.zone, self.region)
        host, rack, zone, region = (own or usual for own, usual in zip(given, LABELS, strict=True))
        return Topology((host, rack, zone, region))


def register(registry: Registry) -> None:
    """Register `topology-extractor`."""
    registry.extractors.add(TOPOLOGY_EXTRACTOR, TopologyExtractorParams, lambda params, _: params.topology())
