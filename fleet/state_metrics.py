"""Metrics of the fleet, made from current state."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields

from prometheus_client.metrics_core import Metric

from ..events.counters import StreamCounters
from ..events.stream import Trust
from ..events.subscriber import Subscriber
from ..indexer.counters import LedgerCounters
from .families import counter, gauge
from .fleet import Fleet
from .observed_capacity import observed_capacity
from .rank import Rank

_STREAM_TEXTS = {
    "applied": "Batches applied.",
    "duplicates": "Duplicate batches, skipped.",
    "gaps": "Gaps seen in live batches.",
    "lost": "Batches that no replay returned.",
    "implausible": "Batches with a number that no publisher comes to so soon, dropped.",
    "disowned": "Live batches that the publisher's own history does not have, dropped.",
    "lying_stamps": "Replays whose time stamps contradicted the live batches' again within a minute; stamps are no evidence since.",
    "restarts": "Restarts of the publisher.",
    "replays": "Replay requests.",
    "replay_failures": "Replay requests without response.",
    "replay_cuts": "Replies to replay requests that were cut off at a limit.",
}
_LEDGER_REASONS = tuple(each.name for each in fields(LedgerCounters))

assert set(_STREAM_TEXTS) == {each.name for each in fields(StreamCounters)}  # noqa: S101 - one text per counter


def fleet_families(fleet: Fleet, subscriber: Subscriber) -> Iterator[Metric]:
    """Yield residencies, trust, stream counters and scrapes of every endpoint.

    Endpoints may come and go between two families. Cost: O(endpoints * tiers).
    """
    yield from _residencies(fleet)
    yield from _index(fleet)
    yield from _in_flight(fleet)
    yield from fleet.predictions.families()
    yield from _unrouted(subscriber)
    yield from _publishers(fleet)
    yield from _scrapes(fleet)


def _publishers(fleet: Fleet) -> Iterator[Metric]:
    """Yield the families of event streams, each as soon as it is made: all together take long for a large fleet."""
    trust = gauge("publisher_trust", "1 for the publisher's current state.", "endpoint", "rank", "state")
    for labels, rank in _ranks(fleet):
        for state in Trust:
            trust.add_metric([*labels, state.value], float(rank.trust is state))
    yield trust
    for name, text in _STREAM_TEXTS.items():
        stream = counter(f"stream_{name}", text, "endpoint", "rank")
        for labels, rank in _ranks(fleet):
            if rank.subscription is not None:
                stream.add_metric(labels, getattr(rank.subscription.stream.counters, name))
        yield stream
    pending = gauge(
        "pending_hashes", "Engine hashes with residencies but without block key.", "endpoint", "rank"
    )
    parked = gauge("parked_blocks", "Stored blocks whose parent is unknown.", "endpoint", "rank")
    for labels, rank in _ranks(fleet):
        pending.add_metric(labels, rank.ledger.n_pending)
        parked.add_metric(labels, rank.ledger.hashes.n_parked)
    yield from (pending, parked)
    events = counter(
        "ledger_events", "Events, or parts of them, that could not be applied.", "endpoint", "rank", "reason"
    )
    for labels, rank in _ranks(fleet):
        for reason in _LEDGER_REASONS:
            events.add_metric([*labels, reason], getattr(rank.ledger.counters, reason))
    yield events


def _ranks(fleet: Fleet) -> Iterator[tuple[list[str], Rank]]:
    for endpoint in fleet:
        for rank in endpoint.ranks:
            yield [endpoint.name, str(rank.number)], rank


def _unrouted(subscriber: Subscriber) -> Iterator[Metric]:
    unrouted = counter(
        "messages_unrouted", "Messages on the bound event socket of no known endpoint.", "reason"
    )
    for reason, count in subscriber.unrouted.items():
        unrouted.add_metric([reason], count)
    refused = counter("event_connections_refused", "Refused connections to the bound event socket.", "reason")
    for reason, count in subscriber.refused.items():
        refused.add_metric([reason], count)
    yield from (unrouted, refused)


def _scrapes(fleet: Fleet) -> Iterator[Metric]:
    scrapes = counter("scrapes", "Successful reads of an endpoint's /metrics.", "endpoint")
    errors = counter("scrape_errors", "Failed reads of an endpoint's /metrics.", "endpoint", "reason")
    intervals = gauge("scrape_interval_seconds", "Current time between two reads.", "endpoint")
    ages = gauge("load_age_seconds", "Age of an endpoint's load; absent if stale.", "endpoint")
    now = time.monotonic()
    for endpoint in fleet:
        status, load = fleet.scrape_status(endpoint.name), fleet.load(endpoint.name, now=now)
        if status is not None:
            scrapes.add_metric([endpoint.name], status.n_scrapes)
            intervals.add_metric([endpoint.name], status.interval_s)
            for reason, count in status.n_errors.items():
                errors.add_metric([endpoint.name, reason], count)
        if load is not None:
            ages.add_metric([endpoint.name], load.age_s(now))
    yield from (scrapes, errors, intervals, ages)


def _in_flight(fleet: Fleet) -> Iterator[Metric]:
    requests = gauge("in_flight_requests", "Requests sent to an endpoint that have not ended.", "endpoint")
    tokens = gauge("in_flight_tokens", "Their uncached prompt tokens, until the response begins.", "endpoint")
    unseen = gauge("in_flight_unseen_requests", "Of these, requests whose response is hidden.", "endpoint")
    for endpoint in fleet:
        load = fleet.in_flight.own(endpoint.name)
        requests.add_metric([endpoint.name], load.requests)
        tokens.add_metric([endpoint.name], load.tokens)
        unseen.add_metric([endpoint.name], fleet.in_flight.n_unseen(endpoint.name))
    yield from (requests, tokens, unseen)


def _residencies(fleet: Fleet) -> Iterator[Metric]:
    held = gauge("residencies", "Blocks an endpoint holds in a tier.", "endpoint", "tier")
    capacity = gauge("capacity_blocks", "Bound of a tier of an endpoint, in blocks.", "endpoint", "tier")
    real = gauge("observed_capacity_blocks", "Observed capacity of a tier, in blocks.", "endpoint", "tier")
    for endpoint in fleet:
        for tier in fleet.atlas.occupancy(endpoint.name):
            held.add_metric([endpoint.name, tier.tier], tier.residencies)
            if (observed := observed_capacity(endpoint, tier.tier_id)) is not None:
                real.add_metric([endpoint.name, tier.tier], observed.n_blocks)
            if tier.capacity is not None:
                capacity.add_metric([endpoint.name, tier.tier], tier.capacity)
    yield from (held, capacity, real)


def _index(fleet: Fleet) -> Iterator[Metric]:
    stats = fleet.atlas.stats()
    for name, text, value in (
        ("bytes", "Memory of the index.", stats.size_bytes),
        ("keys", "Distinct block keys in the index.", stats.keys),
        ("residencies", "Blocks in the index, counted per holder.", stats.residencies),
        ("unswept_keys", "Keys of removed endpoints whose memory is not freed yet.", stats.unswept),
    ):
        family = gauge(f"index_{name}", text)
        family.add_metric([], value)
        yield family
