"""What the tiers of endpoints really hold, and where the configuration says otherwise."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

from ..indexer.capacity import ObservedCapacity
from ..indexer.holders import FASTEST
from ..indexer.tiers import TierId
from .endpoint import Endpoint
from .fleet import Fleet

log = logging.getLogger(__name__)

DRIFT = 0.1
"""Part by which a configured capacity may be off without being worth a word."""


def observed_capacity(endpoint: Endpoint, tier: TierId) -> ObservedCapacity | None:
    """Of all ranks together; None while any rank's is not known."""
    known = [seen for rank in endpoint.ranks if (seen := rank.observed(tier)) is not None]
    if not known or len(known) < len(endpoint.ranks):
        return None
    return ObservedCapacity(
        n_blocks=sum(each.n_blocks for each in known),
        spread=max(each.spread for each in known),
        n_samples=min(each.n_samples for each in known),
        basis=known[0].basis,
    )


def capacity_summary(configured: int | str, endpoint: Endpoint, tier: TierId) -> str:
    """What is configured (a rank), told and observed, ranks together: `configured 41000, observed 20480 +- 3 %`."""
    shown = configured * len(endpoint.ranks) if isinstance(configured, int) else configured
    return ", ".join((f"configured {shown}", *_known(endpoint, tier)))


def _known(endpoint: Endpoint, tier: TierId) -> Iterator[str]:
    if tier == FASTEST and endpoint.gpu_blocks is not None:
        yield f"told {endpoint.gpu_blocks * len(endpoint.ranks)}"
    if (observed := observed_capacity(endpoint, tier)) is not None:
        yield f"observed {observed.n_blocks} +- {math.ceil(100 * observed.error)} %"


class CapacityDrift:
    """Says once for each rank's tier that it holds another number of blocks than its configuration says."""

    def __init__(self) -> None:
        self._said: set[tuple[str, int, TierId]] = set()

    def look(self, fleet: Fleet) -> None:
        """Compare what is observed. Cost: O(ranks * tiers)."""
        for number, spec in enumerate(fleet.atlas.tiers.specs):
            tier = TierId(number)
            if spec.capacity is None or spec.shared:
                continue
            for endpoint in fleet:
                for rank in endpoint.ranks:
                    observed = rank.observed(tier)
                    who = (endpoint.name, rank.number, tier)
                    if observed is None or who in self._said:
                        continue
                    if abs(observed.n_blocks - spec.capacity) > DRIFT * spec.capacity:
                        self._said.add(who)
                        log.warning(
                            "%s rank %d: tier %s holds %d blocks when it is full (+- %.0f %%), but "
                            "lruCapacityPerServer says %d; `auto` goes by the engine's own events",
                            endpoint.name, rank.number, spec.name, observed.n_blocks, 100 * observed.error,
                            spec.capacity,
                        )  # fmt: skip
