"""`/v1/endpoints`: what is known of each endpoint and how well."""

from __future__ import annotations

import time
from dataclasses import asdict

from fastapi import APIRouter

from ..fleet import DARK_ADVICE, Endpoint, Fleet
from ..publisher import Publisher
from .errors import NotFoundError
from .models import EndpointOut, EndpointsOut, LoadOut, PublisherOut, ScrapeOut, TierOut


def endpoint_routes(fleet: Fleet) -> APIRouter:
    """`/v1/endpoints` and `/v1/endpoints/{name}`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/endpoints", summary="All endpoints")
    async def endpoints() -> EndpointsOut:
        """Load, tiers and publishers of every endpoint."""
        return EndpointsOut(endpoints=[_endpoint(endpoint, fleet) for endpoint in fleet])

    @router.get("/endpoints/{name:path}", summary="One endpoint")
    async def endpoint(name: str) -> EndpointOut:
        """Load, tiers and publishers of one endpoint."""
        found = fleet.get(name)
        if found is None:
            raise NotFoundError(f"no endpoint {name!r}; known: {', '.join(e.name for e in fleet) or 'none'}")
        return _endpoint(found, fleet)

    return router


def _endpoint(endpoint: Endpoint, fleet: Fleet) -> EndpointOut:
    now = time.monotonic()
    load = fleet.load(endpoint.name, now=now)
    in_flight = fleet.in_flight.of(endpoint.name)
    scrape = fleet.scrape_status(endpoint.name)
    return EndpointOut(
        name=endpoint.name,
        address=endpoint.addresses.serving,
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
        tiers=[
            TierOut(
                name=tier.tier,
                residencies=tier.residencies,
                capacity=tier.capacity,
                chunk_blocks=tier.chunk_blocks,
                source=tier.source.value if tier.source else None,
                dark=tier.dark,
                advice=DARK_ADVICE if tier.dark else None,
            )
            for tier in fleet.atlas.occupancy(endpoint.name)
        ],
        publishers=[_publisher(publisher, fleet, now) for publisher in endpoint.publishers],
    )


def _publisher(publisher: Publisher, fleet: Fleet, now: float) -> PublisherOut:
    subscription = publisher.subscription
    ledger = fleet.atlas.ledger(publisher.endpoint, publisher.rank)
    counters = {**asdict(ledger.counters), "pending": ledger.n_pending, "parked": ledger.hashes.n_parked}
    if subscription is not None:
        counters |= asdict(subscription.stream.counters)
    return PublisherOut(
        rank=publisher.rank,
        events=subscription.events if subscription else None,
        replay=subscription.replay if subscription else None,
        trust=publisher.trust.value,
        epoch=subscription.stream.epoch if subscription else 0,
        last_seq=subscription.stream.last_seq if subscription else None,
        lag_seconds=None if publisher.last_batch_at is None else now - publisher.last_batch_at,
        block_size=ledger.block_size,
        counters=counters,
    )
