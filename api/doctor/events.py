"""Checks of the event plane: do all events of the engines arrive, complete and understood?"""

from __future__ import annotations

from collections.abc import Iterator

from ...configs.schema import EventsConfig
from ...events.model import STORE_MEDIA_PREFIX
from ...events.stream import Trust
from ...fleet.endpoint import Endpoint
from ...fleet.fleet import Fleet
from ...fleet.rank import Rank
from ...fleet.tier_sources import DARK_ADVICE
from .check import Check, Finding, State
from .deployment import Deployment
from .publishing import LONGER, OTHERS, publishing, replaying
from .reuse import rules_shown_wrong

FIRST_EVENT_TIMEOUT_S = 10.0
"""Longest wait for the first sign of an endpoint."""

MANY_RESTARTS = 5
SKEW_S = 1.0
"""Smallest lead of a publisher's clock that is reported; less is coarse clocks."""
LAG_S = 5.0
"""Age of a batch on arrival that means a delay, or a clock behind ours."""

_STORES = (STORE_MEDIA_PREFIX, "LMCACHE-L2-")
"""Begin the media of stores that all servers use."""

_REPORT = "publisher and topic must be vLLM's or SGLang's; report others with their version"

_REASONS_THAT_COST = ("pending_dropped", "foreign_orphans")


def _name(endpoint: Endpoint, rank: Rank) -> str:
    return endpoint.name if len(endpoint.ranks) == 1 else f"{endpoint.name} rank {rank.number}"


def _ranks(deployment: Deployment) -> Iterator[tuple[Fleet, Endpoint, Rank]]:
    for fleet, endpoint in deployment.endpoints:
        for rank in endpoint.ranks:
            yield fleet, endpoint, rank


def _heard(deployment: Deployment) -> Iterator[Finding]:
    config = deployment.config.events
    if deployment.fleet is None and deployment.config.tiers[0].source != "routing":
        for written in deployment.config.endpoints.static:
            if written.events == "":
                yield _silent(written.name, config)
    for fleet, endpoint, rank in _ranks(deployment):
        name, subscription = _name(endpoint, rank), rank.subscription
        if subscription is None:
            if not fleet.is_from_routing:
                yield _silent(name, config)
            continue
        if fleet.is_from_routing and subscription.trust in (Trust.DARK, Trust.STALE):
            continue
        where, waited_s = subscription.events, deployment.now - endpoint.added_at
        status = fleet.scrape_status(endpoint.name)
        engine = status.engine if status is not None else None
        match subscription.trust:
            case Trust.DARK if waited_s < FIRST_EVENT_TIMEOUT_S:
                yield Finding(State.UNKNOWN, f"{name}: nothing heard from {where} for {waited_s:.0f} s")
            case Trust.DARK:
                load = fleet.load(endpoint.name, now=deployment.now)
                is_idle = load is not None and load.waiting + load.running == 0
                yield Finding(
                    State.WARN if is_idle else State.FAIL,
                    f"{name}: nothing heard from {where} for {waited_s:.0f} s"
                    + (", and it is idle" if is_idle else ""),
                    publishing(config, endpoint, engine=engine),
                )
            case Trust.STALE:
                yield Finding(
                    State.FAIL,
                    f"{name}: the connection to {where} is lost",
                    publishing(config, endpoint, engine=engine),
                )
            case trust:
                yield Finding(State.OK, f"{name}: {trust.value}, last batch {subscription.stream.last_seq}")


def _silent(name: str, config: EventsConfig) -> Finding:
    evidence = f"{name}: has no event stream; known from routing alone"
    return Finding(State.WARN, evidence, f"{publishing(config)}; and the endpoint's events address")


def _whole(deployment: Deployment) -> Iterator[Finding]:
    config = deployment.config.events
    if deployment.fleet is None:
        for written in deployment.config.endpoints.static:
            if written.events != "" and written.replay == "":
                yield Finding(State.WARN, f"{written.name}: no replay address", replaying(config))
    for _, endpoint, rank in _ranks(deployment):
        name, subscription = _name(endpoint, rank), rank.subscription
        if subscription is None:
            continue
        counters = subscription.stream.counters
        if subscription.replay is None:
            yield Finding(
                State.WARN,
                f"{name}: no replay address; {counters.gaps} gaps seen",
                replaying(config, endpoint),
            )
        elif counters.replay_failures and not counters.applied:
            yield Finding(
                State.FAIL,
                f"{name}: {subscription.replay} left {counters.replay_failures} requests unanswered",
                replaying(config, endpoint),
            )
        elif counters.lost or subscription.trust is Trust.PARTIAL:
            if 2 * counters.replay_failures > counters.replays:
                asked = f"{counters.replay_failures} of {counters.replays} replay requests were unanswered"
                yield Finding(
                    State.WARN, f"{name}: {counters.lost} batches lost; {asked}", replaying(config, endpoint)
                )
            elif counters.lost:
                asked = f"its replay of {counters.replays} requests did not have"
                yield Finding(State.WARN, f"{name}: {counters.lost} batches lost that {asked}", LONGER)
            else:
                yield Finding(State.WARN, f"{name}: some events could not be used", _REPORT)
        else:
            yield Finding(State.OK, f"{name}: {counters.gaps} gaps, {counters.replays} replays, nothing lost")


def _tiers(deployment: Deployment) -> Iterator[Finding]:
    if deployment.fleet is not None:
        yield from _places(deployment.fleet)
    for fleet, endpoint in deployment.endpoints:
        for tier in fleet.atlas.occupancy(endpoint.name):
            if tier.dark:
                evidence = f"{endpoint.name}: uses tier {tier.tier} and sends no usable event of it"
                known = tier.source.value if tier.source else "nothing"
                yield Finding(
                    State.WARN, f"{evidence}; known from {known}, {tier.residencies} blocks", DARK_ADVICE
                )
            elif tier.residencies:
                source = tier.source.value if tier.source else "nothing"
                yield Finding(
                    State.OK, f"{endpoint.name}: {tier.tier} from {source}, {tier.residencies} blocks"
                )


def _places(fleet: Fleet) -> Iterator[Finding]:
    """Find slower tiers that events call remote: shared without configuration, or not, if others have blocks of their own."""
    tiers = fleet.atlas.tiers
    for number, spec in enumerate(tiers.specs):
        if spec.is_shared_by_events:
            yield Finding(State.OK, f"tier {spec.name} is shared, as its events say (locality REMOTE)")
        elif number in fleet.atlas.mixed_tiers:
            medium = spec.media[0] if spec.media else spec.name.upper()
            yield Finding(
                State.WARN,
                f"tier {spec.name}: events of some servers say that its blocks are remote, and others hold blocks of their own",
                f"tiers: - {{name: {spec.name}-remote, media: [{medium}/REMOTE], scope: shared}}",
            )


def _understood(deployment: Deployment) -> Iterator[Finding]:
    if n_orphans := deployment.counts.total("kvatlas_lmcache_events_total", outcome="no_parent"):
        yield Finding(
            State.WARN,
            f"{n_orphans:.0f} chunks of LMCache servers continue prompts from earlier batches, and nothing names the chunks before",
            "events of LMCache's connector in the engine, or an LMCache after 0.5.6, which names them (parent_hash_hex)",
        )
    unreadable = set[str]()
    for _, endpoint in deployment.endpoints:  # their ranks are not counted apart
        reasons = deployment.counts.by("reason", "kvatlas_events_rejected_total", endpoint=endpoint.name)
        if reasons:
            unreadable.add(endpoint.name)
            shown = ", ".join(f"{reason} {count:.0f}" for reason, count in reasons.items())
            yield Finding(
                State.WARN,
                f"{endpoint.name}: unreadable messages or events: {shown}",
                _REPORT,
            )
    for _, endpoint, rank in _ranks(deployment):
        name = _name(endpoint, rank)
        counters = rank.ledger.counters
        costly = {reason: n for reason in _REASONS_THAT_COST if (n := getattr(counters, reason))}
        if costly:
            shown = ", ".join(f"{reason} {count}" for reason, count in costly.items())
            yield Finding(State.WARN, f"{name}: blocks that no key could be found for: {shown}", DARK_ADVICE)
        yield from rules_shown_wrong(endpoint, name)
        if endpoint.name not in unreadable and not costly and rank.subscription is not None:
            yield Finding(State.OK, f"{name}: {counters.unknown_removals} removals of unknown blocks")
    if deployment.fleet is not None:
        for medium in deployment.fleet.atlas.tiers.unknown_media:
            yield Finding(
                State.WARN,
                f"medium {medium} is in no tier: its blocks earn no credit",
                _tier_for(medium),
            )


def _tier_for(medium: str) -> str:
    """Return the tier that a medium needs."""
    shared = f"tiers: - {{name: store, media: [{medium}], scope: shared}}"
    return shared if medium.startswith(_STORES) else f"tiers: - {{name: {medium.lower()}, media: [{medium}]}}"


def _form(deployment: Deployment) -> Iterator[Finding]:
    """Find publishers whose events arrive and say something else than is configured."""
    for fleet, endpoint, rank in _ranks(deployment):
        subscription, name, counters = rank.subscription, _name(endpoint, rank), rank.ledger.counters
        if subscription is None:
            continue
        status = fleet.scrape_status(endpoint.name)
        if status is not None and status.engine in OTHERS and subscription.trust is Trust.DARK:
            yield Finding(
                State.WARN,
                f"{name}: is {status.engine} and sends no events",
                publishing(deployment.config.events, endpoint, engine=status.engine),
            )
        if counters.other_tenants:
            tenant = endpoint.instance.tenant
            yield Finding(
                State.WARN,
                f"{name}: {counters.other_tenants} events of other tenants than {tenant!r} ignored",
                "register the publisher once for each tenant: `tenant_id` of POST /register",
            )
        if (
            subscription.stream.life
            and subscription.snapshots is None
            and subscription.trust is Trust.PARTIAL
        ):
            yield Finding(
                State.WARN,
                f"{name}: has lost history, and its engine can send all that it holds",
                "events.snapshotPort: that of snapshot_endpoint in the engine's --kv-events-config",
            )
        if counters.unkeyed:
            yield Finding(
                State.WARN,
                f"{name}: {counters.unkeyed} blocks told by hashes that are no keys here",
                "`index.hashSeed: 0`; `block_size` of POST /register, or `kv_events_block_size` of the store; tokens in events of adapters",
            )
        yield Finding(State.OK, f"{name}: events fit the configuration")
    if deployment.fleet is not None:
        for medium in deployment.fleet.atlas.tiers.unknown_media:
            if medium.startswith(_STORES):
                yield Finding(
                    State.WARN,
                    f"a store that all servers use tells of medium {medium}, which is in no tier",
                    _tier_for(medium),
                )


def _topics(deployment: Deployment) -> Iterator[Finding]:
    unrouted = deployment.counts.by("reason", "kvatlas_messages_unrouted_total")
    for reason, count in unrouted.items():
        yield Finding(
            State.FAIL,
            f"{count:.0f} messages on {deployment.config.events.bind} from no known endpoint: {reason}",
            'in the engine\'s --kv-events-config: "topic": "kv@HOST:PORT@MODEL", HOST:PORT being the endpoint\'s address',
        )
    if not unrouted:
        yield Finding(State.OK, "every message came from a known endpoint")


def _lives(deployment: Deployment) -> Iterator[Finding]:
    for _, endpoint, rank in _ranks(deployment):
        if rank.subscription is None:
            continue
        restarts, lies = (counters := rank.subscription.stream.counters).restarts, counters.lying_stamps
        name = _name(endpoint, rank)
        if lies:
            yield Finding(
                State.WARN,
                f"{name}: {lies} of its replays have other time stamps than its live batches; they are no evidence any more",
                "have the publisher replay the bytes that it published; a restart is then seen by its process start time alone",
            )
        elif restarts >= MANY_RESTARTS:
            yield Finding(
                State.WARN,
                f"{name}: began {restarts} new lives",
                "give each engine and rank an events port of its own; two on one address look like one that restarts",
            )
        else:
            yield Finding(State.OK, f"{name}: began {restarts} new lives")


def _clocks(deployment: Deployment) -> Iterator[Finding]:
    for _, endpoint, rank in _ranks(deployment):
        lag_s, name = rank.lag_s, _name(endpoint, rank)
        if lag_s is None:
            continue
        state = State.WARN if lag_s < -SKEW_S or lag_s > LAG_S else State.OK
        how = "ahead of ours" if lag_s < 0 else "ago"
        yield Finding(
            state,
            f"{name}: its last batch was stamped {abs(lag_s):.3g} s {how}",
            "chronyc makestep, on both machines",
        )


def _block_sizes(deployment: Deployment) -> Iterator[Finding]:
    for fleet, endpoint, rank in _ranks(deployment):
        status = fleet.scrape_status(endpoint.name)
        told = status.facts.block_size if status and status.facts else None
        ledger, name = rank.ledger, _name(endpoint, rank)
        shown = ledger.block_size
        if ledger.counters.block_size_mismatches:
            yield Finding(
                State.WARN,
                f"{name}: {ledger.counters.block_size_mismatches} events of another block size than {shown}",
                "one --block-size for all ranks behind one event address",
            )
        elif not ledger.learns_from_routing and told is not None and shown is not None and told != shown:
            yield Finding(
                State.WARN,
                f"{name}: events have blocks of {shown} tokens, its /metrics say {told}",
                "metrics and events of one endpoint must be those of one engine",
            )
        elif shown is not None:
            yield Finding(State.OK, f"{name}: blocks of {shown} tokens")


CHECKS = (
    Check(
        "events-heard",
        "Do all endpoints tell their KV events?",
        "what such an endpoint holds is not known, so that no request goes there for its cache",
        _heard,
        needs_process=False,
    ),
    Check(
        "events-whole",
        "Can lost events be fetched again?",
        "after a loss or a restart of kvatlas the index lacks blocks that an endpoint holds, or keeps some that it lost",
        _whole,
        needs_process=False,
    ),
    Check(
        "events-understood",
        "Is every event understood?",
        "blocks in such events are not in the index",
        _understood,
    ),
    Check(
        "events-fit",
        "Are the events in the form that the configuration expects?",
        "such events are ignored, or their blocks earn no credit",
        _form,
    ),
    Check(
        "topics-known",
        "Do all messages come from known endpoints?",
        "events of the endpoints that are meant are lost",
        _topics,
    ),
    Check(
        "tiers-told",
        "Do engines tell what they hold in every tier that they use?",
        "what they hold there is assumed, so that requests may go to blocks that are gone",
        _tiers,
    ),
    Check(
        "block-sizes",
        "Is there one block size for each endpoint?",
        "keys of another block size never match",
        _block_sizes,
    ),
    Check(
        "publishers-steady",
        "Do publishers live on?",
        "each new life empties what is known of the endpoint",
        _lives,
    ),
    Check(
        "clocks-agree",
        "Do the engines' clocks agree with ours?",
        "kvatlas_event_lag_seconds is wrong, or events come late and the index is as old as they are",
        _clocks,
    ),
)
