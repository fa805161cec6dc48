"""Subject of the checks: a configuration, and the process that runs it if there is one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.registry import Collector

from ...configs.schema import KVAtlasConfig
from ...fleet.endpoint import Endpoint
from ...fleet.fleet import Fleet
from ...fleet.kubernetes.cluster import Cluster
from ...fleet.replicas.view import ReplicasView
from .stages.visits import Visit

Labels = Mapping[str, str]


class Counts:
    """The process's own metrics at one time, by name as in docs/metrics.md. Cost: one scrape."""

    def __init__(self, registry: Collector | None = None) -> None:
        self._samples: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
        for family in registry.collect() if registry is not None else ():
            for sample in family.samples:
                self._samples[sample.name].append((sample.labels, sample.value))

    def total(self, name: str, **labels: str) -> float:
        """Return the sum over the series of `name` with these labels; 0 if there are none."""
        return sum(value for found, value in self._samples[name] if labels.items() <= found.items())

    def values(self, name: str) -> list[float]:
        """Return the values of all series of `name`."""
        return [value for _, value in self._samples[name]]

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Return the sum per value of one label, without zeros, largest first."""
        sums: dict[str, float] = defaultdict(float)
        for found, value in self._samples[name]:
            if labels.items() <= found.items() and value:
                sums[found[label]] += value
        return dict(sorted(sums.items(), key=lambda entry: -entry[1]))


@dataclass(frozen=True, slots=True)
class Deployment:
    """One deployment.

    Attributes:
        config: in force, or of a file.
        fleet: of the running process; None for a file alone.
        counts: the process's metrics.
        now: monotonic seconds.
        wall: wall-clock seconds.
        cluster: discovery and election of the running process; None for a file alone.
        refused: file -> reason why its present content is not in force.
        visits: endpoint -> what answered at its address; absent if it was not visited.
        replicas: of the running process; None if it decides alone, or for a file.
    """

    config: KVAtlasConfig
    fleet: Fleet | None = None
    counts: Counts = field(default_factory=Counts)
    now: float = 0.0
    wall: float = 0.0
    cluster: Cluster | None = None
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    visits: Mapping[str, Visit] = field(default_factory=dict[str, Visit])
    replicas: ReplicasView | None = None

    @property
    def endpoints(self) -> Iterator[tuple[Fleet, Endpoint]]:
        """Yield every endpoint with its fleet, by name; none without a process."""
        if self.fleet is not None:
            for endpoint in sorted(self.fleet, key=lambda each: each.name):
                yield self.fleet, endpoint
