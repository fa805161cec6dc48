"""One endpoint: where it is, and what follows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..configs.endpoints import EndpointAddresses
from ..events.stream import Trust
from .instance import Instance
from .rank import Publisher


@dataclass(slots=True)
class Endpoint:
    """One model server and what follows it."""

    name: str
    addresses: EndpointAddresses
    labels: Mapping[str, str]
    added_at: float
    instance: Instance
    publishers: list[Publisher] = field(default_factory=list[Publisher])
    started: float | None = None
    """Process start time last scraped, wall-clock seconds."""
    gpu_blocks: int | None = None
    """Blocks of its fastest tier, a rank, as its metrics tell."""
    offloads: bool = False
    """Whether its metrics have shown that blocks move to slower memory."""

    def has_labels(self, wanted: Mapping[str, str]) -> bool:
        """Whether it has all these labels."""
        return wanted.items() <= self.labels.items()

    @property
    def has_events(self) -> bool:
        """Whether any rank publishes events."""
        return any(publisher.subscription for publisher in self.publishers)

    def publisher(self, rank: int) -> Publisher | None:
        """The event stream of a rank, None for a rank that is not there."""
        for publisher in self.publishers:  # for every candidate of a request: faster than `next`
            if publisher.rank == rank:
                return publisher
        return None

    def trust_in(self, rank: int) -> Trust | None:
        """Trust in the events of a rank, None for one without."""
        publisher = self.publisher(rank)
        if publisher is None or publisher.subscription is None:
            return None
        return publisher.subscription.trust

    @property
    def trust(self) -> Trust:
        """The least trusted rank's."""
        order = list(Trust)
        return max((publisher.trust for publisher in self.publishers), key=order.index)
