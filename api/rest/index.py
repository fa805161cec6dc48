"""`/v1/index`: size and contents of the index."""

from __future__ import annotations

from collections import Counter, defaultdict

from fastapi import APIRouter

from ...fleet.fleet import Fleet
from .models import IndexOut, IndexTierOut


def index_routes(fleet: Fleet) -> APIRouter:
    """Return the route of `/v1/index`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/index", summary="The index as a whole")
    async def index() -> IndexOut:
        """Return keys, residencies and memory, and the contents of each tier over all endpoints."""
        stats = fleet.atlas.stats()
        return IndexOut(
            core=fleet.atlas.core.name,
            hash_seed=fleet.atlas.seed,
            block_sizes=sorted(fleet.atlas.block_sizes),
            keys=stats.keys,
            residencies=stats.residencies,
            unswept_keys=stats.unswept,
            bytes=stats.size_bytes,
            tiers=_tiers(fleet),
        )

    return router


def _tiers(fleet: Fleet) -> list[IndexTierOut]:
    held: dict[str, dict[str, int]] = defaultdict(
        dict
    )  # a shared tier belongs to a space, any other to an endpoint
    n_holding: Counter[str] = Counter()
    shared = {spec.name for spec in fleet.atlas.tiers.specs if spec.shared}
    for endpoint in fleet:
        for tier in fleet.atlas.occupancy(endpoint.name):
            owner = endpoint.instance.space if tier.tier in shared else endpoint.name
            held[tier.tier][owner] = tier.residencies
            n_holding[tier.tier] += tier.residencies > 0
    return [
        IndexTierOut(
            name=spec.name,
            media=list(spec.media),
            scope="shared" if spec.shared else "server",
            residencies=sum(held[spec.name].values()),
            endpoints=n_holding[spec.name],
        )
        for spec in fleet.atlas.tiers.specs
    ]
