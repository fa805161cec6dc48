"""Checks of the endpoints' own metrics: is their load known, and fresh?"""

from __future__ import annotations

from collections.abc import Iterator

from ...configs.schema import TierConfig
from ...fleet.endpoint import Endpoint
from ...fleet.observed_capacity import DRIFT, capacity_summary, observed_capacity
from ...indexer.tiers import TierId, TierSource
from .check import Check, Finding, State
from .deployment import Deployment

SLOW_S = 0.25
"""Longest interval of scraping a busy endpoint: at 20 requests/s five may have joined its queue meanwhile."""


def _known(deployment: Deployment) -> Iterator[Finding]:
    if deployment.fleet is None:
        for written in deployment.config.endpoints.static:
            if written.metrics == "":
                yield _unscraped(written.name, written.address)
        return
    for fleet, endpoint in deployment.endpoints:
        if endpoint.address is None:
            continue  # registered instances get no requests
        status, load = fleet.scrape_status(endpoint.name), fleet.load(endpoint.name, now=deployment.now)
        if status is None:
            yield _unscraped(endpoint.name, endpoint.address)
        elif status.failing:
            n_errors = sum(status.n_errors.values())
            yield Finding(
                State.FAIL,
                f"{endpoint.name}: {status.url}: {status.last_error} ({n_errors} failed, {status.n_scrapes} good)",
                _REMEDIES.get(status.last_reason or "", _URL),
            )
        elif load is None:
            yield Finding(State.UNKNOWN, f"{endpoint.name}: {status.url} has not answered yet")
        else:
            yield Finding(
                State.OK,
                f"{endpoint.name}: {load.waiting} waiting, {load.running} running, {load.age_s(deployment.now):.2f} s old",
            )


def _unscraped(name: str, address: str) -> Finding:
    remedy = f"endpoints.static[{name}].metrics: http://{address}/metrics"
    return Finding(State.WARN, f"{name}: is not scraped", remedy)


_URL = (
    "endpoints.static[].metrics: the URL of its Prometheus metrics, reachable from here; metricsScrape.scheme, port and page for "
    "endpoints that give none"
)

_REMEDIES = {
    "missing_series": "metricsScrape.engines: the names of its series, see docs/scraping.md; vLLM: no --disable-log-stats",
    "timeout": f"metricsScrape.timeout: longer, if it answers slowly; else {_URL}",
}
"""Reason of the last failure -> remedy, where it is not the URL."""


def _fresh(deployment: Deployment) -> Iterator[Finding]:
    scrape = deployment.config.metrics_scrape
    if scrape.interval > SLOW_S:
        yield Finding(
            State.WARN,
            f"busy endpoints are read every {scrape.interval:g} s; {SLOW_S:g} s is the most that queues stay known",
            "metricsScrape.interval: 50ms",
        )
    else:
        yield Finding(State.OK, f"busy endpoints are read every {scrape.interval:g} s")
    for fleet, endpoint in deployment.endpoints:
        load = fleet.load(endpoint.name, now=deployment.now)
        late_s = load.age_s(deployment.now) - scrape.idle_interval_s if load is not None else 0
        if load is not None and late_s > scrape.stale_after / 2:
            yield Finding(
                State.WARN,
                f"{endpoint.name}: its load is {load.age_s(deployment.now):.2f} s old",
                "metricsScrape.timeout: less than staleAfter; the endpoint answers slowly",
            )


def _capacity(deployment: Deployment) -> Iterator[Finding]:
    tiers = deployment.config.tiers
    for number, tier in enumerate(tiers):
        is_guessed = tier.source in ("inferred", "routing")
        if is_guessed and tier.lru_capacity_per_server in ("auto", "unlimited") and number:
            yield _unbounded(f"tier {tier.name} is {tier.source}", tier)
    configured = tiers[0].lru_capacity_per_server
    unbounded = {tier.name: tier for tier in tiers[1:] if not isinstance(tier.lru_capacity_per_server, int)}
    for fleet, endpoint in deployment.endpoints:
        status = fleet.scrape_status(endpoint.name)
        told = status.facts.gpu_blocks_per_engine if status and status.facts else None
        if isinstance(configured, int) and told is not None and configured != told:
            yield Finding(
                State.WARN,
                f"{endpoint.name}: tier {tiers[0].name} is bounded to {configured} blocks, the engine has {told}",
                f"tiers[{tiers[0].name}].lruCapacityPerServer: auto",
            )
        yield from _drift(deployment, endpoint)
        for held in fleet.atlas.occupancy(endpoint.name):
            if held.source is TierSource.INFERRED and held.tier in unbounded:
                evidence = f"{endpoint.name}: tier {held.tier} is inferred"
                if observed_capacity(endpoint, held.tier_id) is None:
                    yield _unbounded(evidence, unbounded[held.tier])
                else:
                    summary = capacity_summary("auto", endpoint, held.tier_id)
                    yield Finding(State.OK, f"{evidence}: {summary}")
    yield Finding(State.OK, f"{len(tiers)} tiers are bounded as far as their sources need it")


def _unbounded(evidence: str, tier: TierConfig) -> Finding:
    """Return the finding of a tier with inferred blocks and unknown capacity."""
    is_auto = tier.lru_capacity_per_server == "auto"
    return Finding(
        State.WARN,
        f"{evidence} without a bound" + (" until the audit shows one" if is_auto else ""),
        f"tiers[{tier.name}].lruCapacityPerServer: blocks that a server has there; "
        "or auto, and vllm serve --enable-prompt-tokens-details",
    )


def _drift(deployment: Deployment, endpoint: Endpoint) -> Iterator[Finding]:
    """Compare the capacity that an endpoint's events show with the configured one."""
    for number, tier in enumerate(deployment.config.tiers):
        configured, observed = tier.lru_capacity_per_server, observed_capacity(endpoint, TierId(number))
        if observed is None or not isinstance(configured, int) or tier.scope == "shared":
            continue
        summary = capacity_summary(configured, endpoint, TierId(number))
        configured *= len(endpoint.ranks)
        if abs(observed.n_blocks - configured) > DRIFT * configured:
            yield Finding(
                State.WARN,
                f"{endpoint.name}: tier {tier.name}: {summary} ({observed.n_samples} evictions seen)",
                f"tiers[{tier.name}].lruCapacityPerServer: auto",
            )


CHECKS = (
    Check(
        "load-known",
        "Is every endpoint's load known?",
        "queue and utilization of such an endpoint do not count, so that it is picked by its cache alone",
        _known,
        needs_process=False,
    ),
    Check(
        "load-fresh",
        "Is load read often enough?",
        "bursts go to one endpoint before its queue is seen to grow",
        _fresh,
        needs_process=False,
    ),
    Check(
        "capacity-real",
        "Are tiers bounded to what engines have?",
        "blocks count as held that the engine has evicted, or are forgotten that it holds",
        _capacity,
        needs_process=False,
    ),
)
