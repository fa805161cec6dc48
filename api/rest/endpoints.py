"""`/v1/endpoints`: load, tiers and event streams of each endpoint."""

from __future__ import annotations

import asyncio
import time
from dataclasses import fields
from typing import Annotated, Any

from fastapi import APIRouter, Query

from ...events.counters import StreamCounters
from ...fleet.endpoint import Endpoint
from ...fleet.fleet import Fleet
from ...fleet.observed_capacity import capacity_summary, observed_capacity
from ...fleet.rank import Rank
from ...fleet.tier_sources import DARK_ADVICE
from ...fleet.turns import in_turns
from ...indexer.atlas import TierOccupancy
from ...indexer.counters import LedgerCounters
from ...indexer.tiers import TierId
from .answers import Answers
from .errors import NotFoundError
from .models import (
    EndpointOut,
    EndpointsOut,
    ErrorOut,
    LoadOut,
    ObservedCapacityOut,
    PublisherOut,
    ResetOut,
    ScrapeOut,
    TierOut,
)

Limit = Annotated[int, Query(ge=1, le=10_000, description="at most so many")]
Cursor = Annotated[str, Query(description="`nextCursor` of the page before; absent: the first page")]
_UNKNOWN: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorOut, "description": "there is no such endpoint"}
}
_MAX_SHOWN = 20


def endpoint_routes(fleet: Fleet, answers: Answers) -> APIRouter:
    """Return the routes of `/v1/endpoints`, `/v1/endpoints/{name}` and its reset."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])
    turn = asyncio.Lock()  # a page of 1,000 endpoints takes several MB while it is made

    @router.get("/endpoints", summary="All endpoints")
    async def endpoints(limit: Limit = 1000, cursor: Cursor = "") -> EndpointsOut:
        """Return load, tiers and publishers of every endpoint, by name."""
        async with turn:
            names = sorted(endpoint.name for endpoint in fleet if endpoint.name > cursor)
            page = map(fleet.get, names[:limit])  # None for one that left between two turns
            shown = (endpoint_out(endpoint, fleet) for endpoint in page if endpoint is not None)
            return EndpointsOut(
                endpoints=[each async for each in in_turns(shown)],
                next_cursor=names[limit - 1] if len(names) > limit else None,
            )

    @router.get("/endpoints/{name:path}", summary="One endpoint", responses=_UNKNOWN)
    async def endpoint(name: str) -> EndpointOut:
        """Return load, tiers and publishers of one endpoint."""
        return endpoint_out(_found(name, fleet), fleet)

    @router.post("/endpoints/{name:path}/reset", summary="Forget and learn anew", responses=_UNKNOWN)
    async def reset(name: str) -> ResetOut:
        """Forget all that an endpoint holds and learn it again, from the replay of its publishers if they have one.

        For an index that is wrong. Requests are still routed, without prefix credit until the contents are known again. With
        several replicas, all of them do so.
        """
        return await answers.reset(_found(name, fleet).name)

    return router


def _found(name: str, fleet: Fleet) -> Endpoint:
    found = fleet.get(name)
    if found is None:
        names = sorted(endpoint.name for endpoint in fleet)
        known = ", ".join(names[:_MAX_SHOWN]) + (", ..." if len(names) > _MAX_SHOWN else "")
        raise NotFoundError(f"no endpoint {name[:80]!r}; known: {known or 'none'}")
    return found


def endpoint_out(endpoint: Endpoint, fleet: Fleet) -> EndpointOut:
    """Return the present load, tiers and publishers of an endpoint."""
    now = time.monotonic()
    load = fleet.load(endpoint.name, now=now)
    in_flight = fleet.in_flight.of(endpoint.name)
    scrape = fleet.scrape_status(endpoint.name)
    return EndpointOut(
        name=endpoint.name,
        address=endpoint.address,
        tenant=endpoint.instance.tenant,
        instance=endpoint.instance.name,
        labels=dict(endpoint.labels),
        load=LoadOut(
            waiting=load.waiting,
            running=load.running,
            kv_utilization=load.kv_utilization,
            in_flight_requests=in_flight.requests,
            in_flight_tokens=in_flight.tokens,
            age_seconds=now - load.updated_at,
        )
        if load
        else None,
        scrape=ScrapeOut(
            url=scrape.url,
            engine=scrape.engine,
            interval_seconds=scrape.interval_s,
            failing=scrape.failing,
            last_error=scrape.last_error,
        )
        if scrape
        else None,
        tiers=[_tier(tier, endpoint, fleet) for tier in fleet.atlas.occupancy(endpoint.name)],
        publishers=[_publisher(rank, now) for rank in endpoint.ranks],
    )


def _tier(tier: TierOccupancy, endpoint: Endpoint, fleet: Fleet) -> TierOut:
    configured = fleet.settings.configured_capacity(tier.tier_id)
    return TierOut(
        name=tier.tier,
        residencies=tier.residencies,
        capacity=tier.capacity,
        configured_capacity=configured,
        capacity_summary=capacity_summary(configured, endpoint, tier.tier_id),
        observed_capacity=_observed(endpoint, tier.tier_id),
        chunk_blocks=tier.chunk_blocks,
        source=tier.source.value if tier.source else None,
        dark=tier.dark,
        advice=DARK_ADVICE if tier.dark else None,
    )


def _observed(endpoint: Endpoint, tier: TierId) -> ObservedCapacityOut | None:
    observed = observed_capacity(endpoint, tier)
    if observed is None:
        return None
    return ObservedCapacityOut(
        blocks=observed.n_blocks,
        error=observed.error,
        samples=observed.n_samples,
        basis=observed.basis.value,
    )


def _counts(counters: StreamCounters | LedgerCounters) -> dict[str, int]:
    """Return counters by name; `asdict` takes several times as long."""
    return {each.name: getattr(counters, each.name) for each in fields(counters)}


def _publisher(rank: Rank, now: float) -> PublisherOut:
    subscription, ledger = rank.subscription, rank.ledger
    counters = {**_counts(ledger.counters), "pending": ledger.n_pending, "parked": ledger.hashes.n_parked}
    if subscription is not None:
        counters |= _counts(subscription.stream.counters)
    return PublisherOut(
        rank=rank.number,
        events=subscription.events if subscription else None,
        replay=subscription.replay if subscription else None,
        trust=rank.trust.value,
        epoch=subscription.stream.epoch if subscription else 0,
        last_seq=subscription.stream.last_seq if subscription else None,
        lag_seconds=None if rank.last_batch_at is None else now - rank.last_batch_at,
        block_size=ledger.block_size,
        counters=counters,
    )
