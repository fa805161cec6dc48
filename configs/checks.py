"""Checks beyond the types of the schema: addresses, uniqueness, and contradictions between values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from .address import (
    HostPort,
    ZmqAddress,
    check_base_url,
    check_bind_address,
    check_metrics_url,
)
from .cluster import KubernetesConfig
from .endpoints import endpoint_addresses
from .engines import AUTO, ENGINES, MAX_ATTRIBUTES, Selector, attribute_names
from .errors import KeyPath, Problem
from .listener_checks import listener_problems
from .networks import parse_network
from .problems import malformed, repeated
from .replica_checks import replica_problems
from .schema import (
    EndpointsConfig,
    EventsConfig,
    KVAtlasConfig,
    ModelConfig,
    PluginConfig,
    RemoteTokenizerConfig,
    SchedulingProfileConfig,
    SnapshotConfig,
    StaticEndpoint,
    TierConfig,
)
from .scraping import EngineConfig, MetricsScrapeConfig
from .tracing import TracingConfig
from .words import nearest


def check_config(config: KVAtlasConfig) -> list[Problem]:
    """Return every contradiction in a configuration whose types are valid."""
    return [
        *listener_problems(config),
        *_admission_problems(config),
        *_bind_problems(config),
        *malformed(("events", "bind"), config.events.bind, check_bind_address),
        *_model_problems(config),
        *_source_problems(config.endpoints),
        *endpoint_problems(("endpoints", "static"), config.endpoints.static, config.events),
        *kubernetes_problems(config.endpoints),
        *election_problems(config),
        *replica_problems(config),
        *_tier_problems(config.tiers),
        *check_plugins(config.plugins, config.scheduling_profiles),
        *_scrape_problems(config.metrics_scrape),
        *_engine_problems(config.metrics_scrape),
        *_snapshot_problems(config.snapshot),
        *_tracing_problems(config.tracing),
    ]


def check_plugins(
    plugins: Sequence[PluginConfig], profiles: Sequence[SchedulingProfileConfig]
) -> Iterator[Problem]:
    """Yield repeated names, and references to plugins that do not exist."""
    yield from repeated(
        (
            (("plugins", number, "name" if each.name else "type"), each.known_as)
            for number, each in enumerate(plugins)
        ),
        "plugin name",
    )
    references: list[tuple[KeyPath, str]] = []
    for number, profile in enumerate(profiles):
        for place, plugin in enumerate(profile.plugins):
            path: KeyPath = ("schedulingProfiles", number, "plugins", place)
            references.append(((*path, "pluginRef"), plugin.plugin_ref))
    yield from reference_problems(references, plugins)


def reference_problems(
    references: Iterable[tuple[KeyPath, str]], plugins: Sequence[PluginConfig]
) -> Iterator[Problem]:
    """Yield references to plugins that do not exist."""
    names = [plugin.known_as for plugin in plugins]
    for path, name in references:
        if name not in names:
            yield Problem(f"found {name!r}, expected the name of a plugin; {nearest(name, names)}", path)


def _model_problems(config: KVAtlasConfig) -> Iterator[Problem]:
    yield from _remote_problems(("model",), config.model.remote_tokenizer)
    if config.models and config.model != ModelConfig():
        yield Problem("found together with models; move it into that list", ("model",))
    names: list[tuple[KeyPath, str]] = []
    for number, model in enumerate(config.models):
        path: KeyPath = ("models", number)
        yield from _remote_problems(path, model.remote_tokenizer)
        if not model.names:
            yield Problem("missing, expected the names of the model in requests", (*path, "names"))
        if not model.endpoint_labels and len(config.models) > 1:
            message = "missing, expected the labels of its endpoints, since a server serves one of the models"
            yield Problem(message, (*path, "endpointLabels"))
        names += [((*path, "names", place), name) for place, name in enumerate(model.names)]
        names += [((*path, "adapters", place), name) for place, name in enumerate(model.adapters)]
    yield from repeated(names, "name")


def _remote_problems(model: KeyPath, remote: RemoteTokenizerConfig) -> Iterator[Problem]:
    if remote.url not in ("", "endpoints"):
        yield from malformed((*model, "remoteTokenizer", "url"), remote.url, check_base_url)


def _bind_problems(config: KVAtlasConfig) -> Iterator[Problem]:
    events = config.events
    if events.mode == "bind" and config.server.workers > 1:
        message = "found 'bind' with several workers, which cannot listen on one address; use connect, or one worker"
        yield Problem(message, ("events", "mode"))
    for place, network in enumerate(events.bind_allow):
        yield from malformed(("events", "bindAllow", place), network, parse_network)
    if not events.bind_allow:
        message = (
            'found no network, so that no publisher could connect; for all of them: ["0.0.0.0/0", "::/0"]'
        )
        yield Problem(message, ("events", "bindAllow"))
    curve = events.curve
    if bool(curve.key_file) != bool(curve.peers_folder):
        missing = "peersFolder" if curve.key_file else "keyFile"
        yield Problem("missing, expected both keyFile and peersFolder", ("events", "curve", missing))
    if curve.key_file and events.mode != "bind":
        yield Problem("found keys with mode 'connect', where they have no use", ("events", "curve"))


def _admission_problems(config: KVAtlasConfig) -> Iterator[Problem]:
    threshold, interval = config.admission.metrics_staleness_threshold, config.metrics_scrape.interval
    if threshold <= interval and any(priority < 0 for priority in config.admission.objectives.values()):
        message = f"found {threshold:g}s, expected more than metricsScrape.interval of {interval:g}s"
        yield Problem(
            f"{message}; the fleet would count as saturated until the next scrape",
            ("admission", "metricsStalenessThreshold"),
        )


def _source_problems(endpoints: EndpointsConfig) -> Iterator[Problem]:
    if endpoints.static and endpoints.file:
        yield Problem(
            f"found {endpoints.file!r} together with endpoints.static; keep one", ("endpoints", "file")
        )


def endpoint_problems(
    base: KeyPath, endpoints: tuple[StaticEndpoint, ...], events: EventsConfig
) -> Iterator[Problem]:
    """Yield every contradiction in the list of servers at the path `base`."""
    for number, endpoint in enumerate(endpoints):
        malformed = list(_address_problems((*base, number), endpoint))
        yield from malformed
        if not malformed:
            yield from _rank_problems((*base, number), endpoint, events)
    numbered = list(enumerate(endpoints))
    yield from repeated((((*base, number, "name"), each.name) for number, each in numbered), "name")
    yield from repeated(
        (((*base, number, "address"), _normal_address(each.address)) for number, each in numbered), "address"
    )
    yield from repeated(
        (((*base, number, "events"), each.events) for number, each in numbered if each.events),
        "events address",
    )


def _address_problems(path: KeyPath, endpoint: StaticEndpoint) -> Iterator[Problem]:
    yield from malformed((*path, "address"), endpoint.address, HostPort.parse)
    if endpoint.events:
        yield from malformed((*path, "events"), endpoint.events, ZmqAddress.parse)
    if endpoint.replay:
        yield from malformed((*path, "replay"), endpoint.replay, ZmqAddress.parse)
    if endpoint.metrics:
        yield from malformed((*path, "metrics"), endpoint.metrics, check_metrics_url)


def _rank_problems(path: KeyPath, endpoint: StaticEndpoint, events: EventsConfig) -> Iterator[Problem]:
    try:
        endpoint_addresses(endpoint, events)
    except ValueError as error:
        yield Problem(str(error), (*path, "dataParallelSize"))


def _normal_address(text: str) -> str:
    """Return the address in its normal form for comparison; a malformed one, which is reported elsewhere, unchanged."""
    try:
        return str(HostPort.parse(text))
    except ValueError:
        return text


def kubernetes_problems(endpoints: EndpointsConfig) -> Iterator[Problem]:
    """Yield contradictions in `endpoints.kubernetes`."""
    kubernetes, path = endpoints.kubernetes, ("endpoints", "kubernetes")
    if kubernetes.inference_pool and kubernetes.endpoint_selector:
        message = f"found {kubernetes.endpoint_selector!r} together with inferencePool; keep one"
        yield Problem(message, (*path, "endpointSelector"))
    elif kubernetes.inference_pool and kubernetes.target_ports:
        yield Problem("found ports together with inferencePool, which has its own", (*path, "targetPorts"))
    elif kubernetes.endpoint_selector and not kubernetes.target_ports:
        yield Problem("found none, expected the ports that serve, such as [8000]", (*path, "targetPorts"))
    elif not kubernetes.is_on and kubernetes != KubernetesConfig():
        yield Problem("found neither inferencePool nor endpointSelector, expected one of them", path)
    for other in ("static", "file"):
        if kubernetes.is_on and getattr(endpoints, other):
            yield Problem(f"found together with endpoints.{other}; keep one", path)


def election_problems(config: KVAtlasConfig) -> Iterator[Problem]:
    """Yield contradictions in `leaderElection`."""
    election = config.leader_election
    if election.enabled and config.server.workers > 1:
        message = "found true with several workers, of which only one would be ready; run several replicas, or one worker"
        yield Problem(message, ("leaderElection", "enabled"))
    terms = (
        ("retryPeriod", election.retry_period, "renewDeadline", election.renew_deadline),
        ("renewDeadline", election.renew_deadline, "leaseDuration", election.lease_duration),
    )
    for key, value, longer_key, longer in terms:
        if value >= longer:
            message = f"found {value}, expected less than {longer_key} of {longer}"
            yield Problem(message, ("leaderElection", key))


def _tier_problems(tiers: tuple[TierConfig, ...]) -> Iterator[Problem]:
    yield from repeated(
        ((("tiers", number, "name"), tier.name) for number, tier in enumerate(tiers)), "tier name"
    )
    yield from repeated(
        (
            (("tiers", number, "media", position), medium.upper())
            for number, tier in enumerate(tiers)
            for position, medium in enumerate(tier.media)
        ),
        "medium",
    )


def _scrape_problems(scrape: MetricsScrapeConfig) -> Iterator[Problem]:
    idle, base = scrape.idle_interval, "metricsScrape"
    if scrape.stale_after <= scrape.interval:
        message = f"found {scrape.stale_after}, expected more than the interval of {scrape.interval}"
        yield Problem(f"{message}; every load would be stale before the next scrape", (base, "staleAfter"))
    elif idle is not None and not scrape.interval <= idle < scrape.stale_after:
        message = (
            f"expected from the interval of {scrape.interval} to less than staleAfter of {scrape.stale_after}"
        )
        yield Problem(f"found {idle}, {message}", (base, "idleInterval"))


def _engine_problems(scrape: MetricsScrapeConfig) -> Iterator[Problem]:
    base: KeyPath = ("metricsScrape", "engines")
    known = (AUTO, *dict.fromkeys((*ENGINES, *scrape.engines)))
    if scrape.engine not in known:
        yield Problem(f"found {scrape.engine!r}, expected {' or '.join(known)}", ("metricsScrape", "engine"))
    for name, engine in scrape.engines.items():
        if not engine.waiting and (engine.waiting == "" or name not in ENGINES):
            yield Problem("missing, expected the series of queued requests", (*base, name, "waiting"))
        for field in msgspec.structs.fields(EngineConfig):
            text: str | dict[str, str] | None = getattr(engine, field.name)
            if isinstance(text, str) and text and not field.name.endswith("_label"):
                yield from malformed((*base, name, field.encode_name), text, Selector.parse)
        for attribute, text in engine.attributes.items():
            yield from malformed((*base, name, "attributes", attribute), text, Selector.parse)
    if (n := len(attribute_names(scrape))) > MAX_ATTRIBUTES:
        yield Problem(f"found {n} attributes, expected at most {MAX_ATTRIBUTES}", base)


def _snapshot_problems(snapshot: SnapshotConfig) -> Iterator[Problem]:
    if snapshot.max_age <= snapshot.interval:
        message = f"found {snapshot.max_age}, expected more than the interval of {snapshot.interval}"
        yield Problem(f"{message}; the last snapshot could always be too old", ("snapshot", "maxAge"))


def _tracing_problems(tracing: TracingConfig) -> Iterator[Problem]:
    if tracing.endpoint:
        yield from malformed(("tracing", "endpoint"), tracing.endpoint, check_base_url)
