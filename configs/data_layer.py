"""Section `dataLayer` of files of the reference picker: sources of data, discovery, replicas."""

from __future__ import annotations

from collections.abc import Iterator

from .errors import KeyPath, Problem
from .go_values import duration_problem
from .section import Section


class PluginRefConfig(Section, frozen=True):
    """A reference to a plugin."""

    plugin_ref: str
    """Name of a plugin in `plugins`."""


class DataSourceConfig(Section, frozen=True):
    """A source of data about endpoints."""

    plugin_ref: str
    """Name of a plugin in `plugins`."""
    extractors: tuple[PluginRefConfig, ...] = ()
    """Extractors of its data."""


class DiscoveryConfig(Section, frozen=True):
    """Sources of endpoints and of replicas."""

    endpoints: PluginRefConfig | None = None
    """Source of the endpoints."""
    peers: PluginRefConfig | None = None
    """Source of the replicas; no effect."""
    plugin_ref: str | None = None
    """Source of the endpoints, at its place before `llm-d.ai/v1`."""


class CrossReplicaConfig(Section, frozen=True):
    """State that replicas share."""

    syncer_plugin_ref: str | None = None
    """Plugin that synchronizes replicas."""
    sync_interval: str | None = None
    """Time between two publications; no effect."""
    publish_timeout: str | None = None
    """Timeout of a publication; no effect."""


class DataLayerConfig(Section, frozen=True):
    """Data about endpoints; kvatlas has built-in scraping."""

    inject_defaults: bool = True
    """No effect."""
    sources: tuple[DataSourceConfig, ...] = ()
    """No effect."""
    discovery: DiscoveryConfig | None = None
    """Sources of endpoints and of replicas."""
    cross_replica: CrossReplicaConfig = CrossReplicaConfig()
    """State that replicas share."""
    peer_discovery: PluginRefConfig | None = None
    """Source of the replicas, at its place before `llm-d.ai/v1`; no effect."""
    cross_replica_syncer_plugin_ref: str | None = None
    """Plugin that synchronizes replicas, at its place before `llm-d.ai/v1`."""
    cross_replica_sync_interval: str | None = None
    """Time between two publications, at its place before `llm-d.ai/v1`; no effect."""

    @property
    def endpoint_source(self) -> str | None:
        """Return the name of the plugin that lists the endpoints, None if there is none."""
        if self.discovery is None:
            return None
        endpoints = self.discovery.endpoints
        return endpoints.plugin_ref if endpoints is not None else self.discovery.plugin_ref


_PEERS = "the section replicas says how replicas find each other"
_SYNC = "what a replica knows is published within some 5 ms of its change"
_SCRAPES = "kvatlas scrapes the endpoints in any case; see metricsScrape"


def layer_notes(key: str, layer: DataLayerConfig) -> Iterator[str]:
    """Yield one line for each setting that has no effect although it was set; `key` is the section's name."""
    if not layer.inject_defaults:
        yield f"{key}.injectDefaults has no effect: {_SCRAPES}"
    shared = layer.cross_replica
    without_effect = {
        "discovery.peers": (layer.discovery is not None and layer.discovery.peers is not None, _PEERS),
        "peerDiscovery": (layer.peer_discovery is not None, _PEERS),
        "crossReplica.syncInterval": (shared.sync_interval is not None, _SYNC),
        "crossReplica.publishTimeout": (shared.publish_timeout is not None, _SYNC),
        "crossReplicaSyncInterval": (layer.cross_replica_sync_interval is not None, _SYNC),
    }
    for name, (is_set, why) in without_effect.items():
        if is_set:
            yield f"{key}.{name} has no effect: {why}"


def layer_problems(key: str, layer: DataLayerConfig) -> Iterator[Problem]:
    """Yield contradictory and malformed values."""
    discovery, replica = layer.discovery, layer.cross_replica
    if discovery is not None and discovery.plugin_ref is not None and discovery.endpoints is not None:
        message = f"found {discovery.plugin_ref!r} together with endpoints; keep one"
        yield Problem(message, (key, "discovery", "pluginRef"))
    durations: dict[KeyPath, str | None] = {
        ("crossReplica", "syncInterval"): replica.sync_interval,
        ("crossReplica", "publishTimeout"): replica.publish_timeout,
        ("crossReplicaSyncInterval",): layer.cross_replica_sync_interval,
    }
    for path, text in durations.items():
        yield from duration_problem((key, *path), text)


def layer_references(key: str, layer: DataLayerConfig) -> Iterator[tuple[KeyPath, str]]:
    """Yield every reference to a plugin that must exist, with its path; the reference never looks for that of the peers."""
    for number, source in enumerate(layer.sources):
        yield (key, "sources", number, "pluginRef"), source.plugin_ref
        for place, extractor in enumerate(source.extractors):
            yield (key, "sources", number, "extractors", place, "pluginRef"), extractor.plugin_ref
    discovery = layer.discovery or DiscoveryConfig()
    endpoints = discovery.endpoints
    references: dict[KeyPath, str | None] = {
        ("discovery", "endpoints", "pluginRef"): endpoints.plugin_ref if endpoints is not None else None,
        ("discovery", "pluginRef"): discovery.plugin_ref,
        ("crossReplica", "syncerPluginRef"): layer.cross_replica.syncer_plugin_ref,
        ("crossReplicaSyncerPluginRef",): layer.cross_replica_syncer_plugin_ref,
    }
    for path, name in references.items():
        if name is not None:
            yield (key, *path), name
