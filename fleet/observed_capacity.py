"""Observed capacity of tiers, and its drift from the configuration."""

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
"""Part by which a configured capacity may differ from the observed one without a warning."""


def observed_capacity(endpoint: Endpoint, tier: TierId) -> ObservedCapacity | None:
    """Return the observed capacity of a tier over all ranks, None while that of any rank is unknown."""
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
    """Summarize the capacity of a tier over all ranks, such as `configured 41000, observed 20480 +- 3 %`.

    Args:
        configured: blocks per rank, or a word such as `auto`.
        endpoint: the endpoint.
        tier: one of its tiers.
    """
    shown = configured * len(endpoint.ranks) if isinstance(configured, int) else configured
    return ", ".join((f"configured {shown}", *_known(endpoint, tier)))


def _known(endpoint: Endpoint, tier: TierId) -> Iterator[str]:
    if tier == FASTEST and endpoint.gpu_blocks is not None:
        yield f"reported {endpoint.gpu_blocks * len(endpoint.ranks)}"
    if (observed := observed_capacity(endpoint, tier)) is not None:
        yield f"observed {observed.n_blocks} +- {math.ceil(100 * observed.error)} %"


class CapacityDrift:
    """Warns once per rank and tier if the observed capacity differs from the configured one."""

    def __init__(self) -> None:
        self._warned: set[tuple[str, int, TierId]] = set()

    def look(self, fleet: Fleet) -> None:
        """Compare observed and configured capacities. Cost: O(ranks * tiers)."""
        self._warned = {each for each in self._warned if fleet.get(each[0]) is not None}
        for number, spec in enumerate(fleet.atlas.tiers.specs):
            tier = TierId(number)
            if spec.capacity is None or spec.shared:
                continue
            for endpoint in fleet:
                for rank in endpoint.ranks:
                    observed = rank.observed(tier)
                    key = (endpoint.name, rank.number, tier)
                    if observed is None or key in self._warned:
                        continue
                    if abs(observed.n_blocks - spec.capacity) > DRIFT * spec.capacity:
                        self._warned.add(key)
                        log.warning(
                            "%s rank %d: tier %s holds %d blocks when it is full (+- %.0f %%), but "
                            "lruCapacityPerServer says %d; `auto` goes by the engine's own events",
                            endpoint.name, rank.number, spec.name, observed.n_blocks, 100 * observed.error,
                            spec.capacity,
                        )  # fmt: skip
