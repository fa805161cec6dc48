"""Configuration files of the reference endpoint picker, `kind: EndpointPickerConfig`.

The plugins and profiles of such a file become a `KVAtlasConfig`. The other sections configure parts of the reference
that are built into kvatlas: they are checked and have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from .checks import check_plugins, reference_problems
from .data_source import interval_of, is_source, source_notes, source_problems
from .decode import decode
from .errors import KeyPath, Problem
from .extractor import extracted, extractor_problems, is_extractor
from .saturation import SaturationDetectorConfig, detected, detector, detector_problems
from .schema import EndpointsConfig, KVAtlasConfig, PluginConfig, SchedulingProfileConfig
from .section import Section
from .words import nearest

KIND = "EndpointPickerConfig"

DEFAULT_PRODUCER = "approx-prefix-cache-producer"
"""Type and default name of the producer that the reference adds for plugins that name none."""

FILE_DISCOVERY = "file-discovery"
"""Type of the plugin that names a file of endpoints."""

_PREFIX_READERS = ("prefix-cache-scorer", "prefix-cache-affinity-filter")
_PRODUCER_KEYS = frozenset({"prefixMatchInfoProducerName", "tier", "autoTune", "lruCapacityPerServer"})
"""Parameters with which a plugin selects the source of its matches."""

GATES = ("flowControl", "haPopulateNonLeaderDatastore", "dataLayer", "prepareDataPlugins")
"""Feature gates of the reference, including older ones."""


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


class DataLayerConfig(Section, frozen=True):
    """Data about endpoints; kvatlas has built-in scraping."""

    inject_defaults: bool = True
    """No effect."""
    sources: tuple[DataSourceConfig, ...] = ()
    """No effect."""
    discovery: PluginRefConfig | None = None
    """Source of the endpoints."""
    peer_discovery: PluginRefConfig | None = None
    """Source of the replicas."""
    cross_replica_syncer_plugin_ref: str | None = None
    """Plugin that synchronizes replicas."""
    cross_replica_sync_interval: str | None = None
    """No effect."""


class RequestHandlerConfig(Section, frozen=True):
    """Parsers; kvatlas parses every known API."""

    parsers: tuple[PluginRefConfig, ...] = ()
    """No effect."""


class FileDiscoveryParams(Section, frozen=True):
    """Parameters of `file-discovery`."""

    path: Annotated[str, Meta(min_length=1)]
    """File with the endpoints; relative to the configuration file."""
    watch_file: bool = False
    """No effect: the file is always watched."""


class EndpointPickerConfig(Section, frozen=True, tag_field="kind", tag=KIND):
    """Configuration file of the reference picker."""

    api_version: Literal["llm-d.ai/v1alpha1", "llm-d.ai/v1", "inference.networking.x-k8s.io/v1alpha1"]
    """Version of the format."""
    plugins: Annotated[tuple[PluginConfig, ...], Meta(min_length=1)]
    """Plugins."""
    scheduling_profiles: tuple[SchedulingProfileConfig, ...] = ()
    """Scheduling profile; absent: every filter, scorer and picker in `plugins`, with weight 1."""
    feature_gates: tuple[str, ...] = ()
    """Feature gates of the reference."""
    data_layer: DataLayerConfig = DataLayerConfig()
    """Data about endpoints."""
    data: DataLayerConfig = DataLayerConfig()
    """Older name of `dataLayer`."""
    request_handler: RequestHandlerConfig = RequestHandlerConfig()
    """Parsers."""
    flow_control: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Queues; kvatlas has none, and reads only the saturation detector."""
    saturation_detector: SaturationDetectorConfig = SaturationDetectorConfig()
    """Saturation detector, at its older place."""
    parser: PluginRefConfig | None = None
    """Deprecated in the reference; no effect."""


def check_endpoint_picker(config: EndpointPickerConfig) -> list[Problem]:
    """Return every contradiction in a file whose types are valid."""
    return [
        *check_plugins(config.plugins, config.scheduling_profiles),
        *_gate_problems(config.feature_gates),
        *reference_problems(_references(config), config.plugins),
        *_discovery_problems(config),
        *_parameter_problems(config),
    ]


def kvatlas_config(config: EndpointPickerConfig) -> KVAtlasConfig:
    """Convert to a `KVAtlasConfig`: plugins with the implied producer, profiles, file of endpoints, series."""
    _, discovery = _file_discovery(config)
    detecting = detector(config.plugins, _detector_name(config))
    sources = [each for each in config.plugins if is_source(each)]
    scrape, _ = extracted(filter(is_extractor, config.plugins))
    for interval in filter(None, map(interval_of, sources)):
        scrape = msgspec.structs.replace(scrape, interval=interval)
    translated = [discovery, None if _is_filter(detecting, config) else detecting, *sources]
    given = tuple(each for each in config.plugins if each not in translated and not is_extractor(each))
    plugins = tuple(map(_with_producer, given))
    if plugins != given and DEFAULT_PRODUCER not in {plugin.known_as for plugin in plugins}:
        plugins = (*plugins, PluginConfig(type=DEFAULT_PRODUCER))
    return KVAtlasConfig(
        api_version="kvatlas/v1",
        plugins=plugins,
        scheduling_profiles=config.scheduling_profiles,
        endpoints=EndpointsConfig(file=discovery.parameters["path"] if discovery is not None else ""),
        metrics_scrape=scrape,
        admission=detected(detecting) if detecting is not None else config.saturation_detector.admission(),
    )


def notes(config: EndpointPickerConfig) -> list[str]:
    """Return one line for each setting outside of plugins that has no effect although it was set."""
    asked = {gate for gate in config.feature_gates if gate in ("flowControl", "flowControl=true")}
    gates = [
        f"feature gate {gate}: kvatlas forwards requests at once and has no queues" for gate in sorted(asked)
    ]
    sources = (note for each in config.plugins if is_source(each) for note in source_notes(each))
    return [*gates, *extracted(filter(is_extractor, config.plugins))[1], *sources]


def _file_discovery(config: EndpointPickerConfig) -> tuple[int, PluginConfig | None]:
    """Return the position and entry of the plugin whose file lists the endpoints; (0, None) if there is none."""
    wanted = config.data_layer.discovery or config.data.discovery
    for number, plugin in enumerate(config.plugins):
        if wanted is not None and (plugin.type, plugin.known_as) == (FILE_DISCOVERY, wanted.plugin_ref):
            return number, plugin
    return 0, None


def _discovery_problems(config: EndpointPickerConfig) -> Iterator[Problem]:
    number, plugin = _file_discovery(config)
    params = decode(plugin.parameters, FileDiscoveryParams) if plugin is not None else None
    for problem in params if isinstance(params, list) else ():
        yield Problem(problem.message, ("plugins", number, "parameters", *problem.path))


def _parameter_problems(config: EndpointPickerConfig) -> Iterator[Problem]:
    """Yield the problems of plugins whose parameters become sections of a `KVAtlasConfig`."""
    for number, plugin in enumerate(config.plugins):
        problems: Iterable[Problem] = ()
        if is_extractor(plugin):
            problems = extractor_problems(plugin)
        elif is_source(plugin):
            problems = source_problems(plugin)
        elif plugin is detector(config.plugins, _detector_name(config)):
            problems = detector_problems(plugin)
        for problem in problems:
            yield Problem(problem.message, ("plugins", number, "parameters", *problem.path))


def _is_filter(detecting: PluginConfig | None, config: EndpointPickerConfig) -> bool:
    """Return whether a profile names the saturation detector, which drops endpoints there."""
    profiles = config.scheduling_profiles
    named = {each.plugin_ref for profile in profiles for each in profile.plugins}
    return detecting is not None and detecting.known_as in named


def _detector_name(config: EndpointPickerConfig) -> str | None:
    """Return the name of the saturation detector, None if none is named."""
    named = config.flow_control.get("saturationDetector")
    name = cast("Mapping[object, object]", named).get("pluginRef") if isinstance(named, dict) else None
    return name if isinstance(name, str) else config.saturation_detector.plugin_ref


def _with_producer(plugin: PluginConfig) -> PluginConfig:
    if plugin.type not in _PREFIX_READERS or not _PRODUCER_KEYS.isdisjoint(plugin.parameters):
        return plugin
    parameters = plugin.parameters | {"prefixMatchInfoProducerName": DEFAULT_PRODUCER}
    return msgspec.structs.replace(plugin, parameters=parameters)


def _gate_problems(gates: tuple[str, ...]) -> Iterator[Problem]:
    for number, gate in enumerate(gates):
        name, equals, value = gate.partition("=")
        path: KeyPath = ("featureGates", number)
        if name not in GATES:
            yield Problem(f"found {gate!r}, expected a feature gate; {nearest(name, GATES)}", path)
        elif equals and value not in ("true", "false"):
            yield Problem(f"found {gate!r}, expected {name}=true or {name}=false", path)


def _references(config: EndpointPickerConfig) -> Iterator[tuple[KeyPath, str]]:
    yield from _layer_references("dataLayer", config.data_layer)
    yield from _layer_references("data", config.data)
    for number, parser in enumerate(config.request_handler.parsers):
        yield ("requestHandler", "parsers", number, "pluginRef"), parser.plugin_ref
    in_flow_control = bool(config.flow_control.get("saturationDetector"))
    if (name := _detector_name(config)) is not None:
        path = ("flowControl", "saturationDetector") if in_flow_control else ("saturationDetector",)
        yield (*path, "pluginRef"), name
    if config.parser is not None:
        yield ("parser", "pluginRef"), config.parser.plugin_ref


def _layer_references(key: str, layer: DataLayerConfig) -> Iterator[tuple[KeyPath, str]]:
    for number, source in enumerate(layer.sources):
        yield (key, "sources", number, "pluginRef"), source.plugin_ref
        for place, extractor in enumerate(source.extractors):
            yield (key, "sources", number, "extractors", place, "pluginRef"), extractor.plugin_ref
    for name, reference in (("discovery", layer.discovery), ("peerDiscovery", layer.peer_discovery)):
        if reference is not None:
            yield (key, name, "pluginRef"), reference.plugin_ref
    if layer.cross_replica_syncer_plugin_ref is not None:
        yield (key, "crossReplicaSyncerPluginRef"), layer.cross_replica_syncer_plugin_ref
