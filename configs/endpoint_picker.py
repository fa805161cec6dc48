"""Configuration files of the reference endpoint picker, `kind: EndpointPickerConfig`.

The plugins and profiles of such a file become a `KVAtlasConfig`. The other sections configure parts of the reference
that are built into kvatlas: they are checked, and those without effect are noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .checks import check_plugins, reference_problems
from .cross_replica import redis_syncer, replicas_of, syncer_problems
from .data_layer import DataLayerConfig, PluginRefConfig, layer_notes, layer_problems, layer_references
from .decode import decode
from .errors import KeyPath, Problem
from .feature_gates import FLOW_CONTROL, gate_notes, gate_problems, is_on
from .flow_control import DETECTORS, FlowControlConfig, flow_control_notes, flow_control_problems
from .multicluster import DISCOVERY as CLUSTER_DISCOVERY
from .multicluster import with_usual_types
from .reference_scraping import describes_scraping, scraping_of, scraping_problems
from .request_handler import ParserRefConfig, RequestHandlerConfig
from .saturation import SaturationDetectorConfig, detected, detector, detector_problems
from .schema import (
    EndpointsConfig,
    KVAtlasConfig,
    ModelConfig,
    PluginConfig,
    ProfilePluginConfig,
    SchedulingProfileConfig,
    TokenizationConfig,
)
from .section import Section
from .token_producer import estimate, is_token_producer, remote_tokenizer, token_producer_problems

KIND = "EndpointPickerConfig"

DEFAULT_PRODUCER = "approx-prefix-cache-producer"
"""Type and default name of the producer that the reference adds for plugins that name none."""

FILE_DISCOVERY = "file-discovery"
"""Type of the plugin that names a file of endpoints."""

DEFAULT_WEIGHTS = {"queue-scorer": 2.0, "kv-cache-utilization-scorer": 2.0, "prefix-cache-scorer": 3.0}
"""Scorers and weights of the reference if it has no configuration."""

DEFAULT_PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
"""Types that need no entry in `plugins` to be named as a parser."""

PREDICTOR = "predicted-latency-producer"
"""Type and default name of the producer that the reference adds for plugins that read predictions and name none."""

_PREFIX_READERS = (
    "prefix-cache-scorer",
    "prefix-cache-affinity-filter",
    "latency-scorer",
    "lmetric-scorer",
    PREDICTOR,
    "p2p-source-producer",
)
_HANDLERS = ("disagg-profile-handler", "pd-profile-handler")
"""Profile handlers for which the reference adds the same producer, without a parameter that names it."""

_PRECISE = "precise-prefix-cache-producer"
_PREDICTION_READERS = (
    "latency-scorer",
    "slo-attainment-scorer",
    "slo-headroom-tier-filter",
    "latency-slo-admitter",
)
_PRODUCER_KEYS = frozenset({"prefixMatchInfoProducerName", "tier", "autoTune", "lruCapacityPerServer"})
"""Parameters with which a plugin selects the source of its matches."""


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
    plugins: tuple[PluginConfig, ...] = ()
    """Plugins; absent: the reference's default scorers and weights."""
    scheduling_profiles: tuple[SchedulingProfileConfig, ...] = ()
    """Scheduling profile; absent: every filter, scorer and picker in `plugins`, with weight 1."""
    feature_gates: tuple[str, ...] = ()
    """Feature gates of the reference."""
    data_layer: DataLayerConfig = DataLayerConfig()
    """Data about endpoints."""
    data: DataLayerConfig = DataLayerConfig()
    """Older name of `dataLayer`."""
    request_handler: RequestHandlerConfig = RequestHandlerConfig()
    """Request bodies."""
    flow_control: FlowControlConfig = FlowControlConfig()
    """Queues; kvatlas has none, and reads only the saturation detector."""
    saturation_detector: SaturationDetectorConfig = SaturationDetectorConfig()
    """Saturation detector, at its older place."""
    parser: PluginRefConfig | None = None
    """Older form of `requestHandler.parsers`, which it adds to."""


def check_endpoint_picker(config: EndpointPickerConfig) -> list[Problem]:
    """Return every contradiction in a file whose types are valid."""
    flow_control_is_on = is_on(config.feature_gates, FLOW_CONTROL)
    return [
        *check_plugins(config.plugins, config.scheduling_profiles),
        *gate_problems(config.feature_gates),
        *reference_problems(_references(config), config.plugins),
        *layer_problems("dataLayer", config.data_layer),
        *layer_problems("data", config.data),
        *syncer_problems(config.plugins, config.data_layer, config.data),
        *flow_control_problems(config.flow_control, config.plugins, is_on=flow_control_is_on),
        *_discovery_problems(config),
        *_parameter_problems(config),
    ]


def kvatlas_config(config: EndpointPickerConfig) -> KVAtlasConfig:
    """Convert to a `KVAtlasConfig`: plugins with the implied producer, profiles, file of endpoints, series."""
    _, discovery = _file_discovery(config)
    detecting = detector(config.plugins, _detector_name(config))
    scrape, _ = scraping_of(config.plugins)
    token_producers = filter(is_token_producer, config.plugins)
    syncer = redis_syncer(config.plugins, config.data_layer, config.data)
    translated = [discovery, None if _is_filter(detecting, config) else detecting, syncer, *token_producers]
    given = with_usual_types(
        tuple(each for each in config.plugins if each not in translated and not describes_scraping(each))
    )
    profiles = config.scheduling_profiles
    if not given and not profiles:
        given, profiles = _default_plugins()
    plugins = tuple(map(_with_producer, _with_predictor(given)))
    names, types = {plugin.known_as for plugin in plugins}, {plugin.type for plugin in plugins}
    is_read = plugins != given or (_PRECISE not in types and not types.isdisjoint(_HANDLERS))
    if is_read and DEFAULT_PRODUCER not in names:
        plugins = (*plugins, PluginConfig(type=DEFAULT_PRODUCER))
    admission = detected(detecting) if detecting is not None else config.saturation_detector.admission()
    return KVAtlasConfig(
        api_version="kvatlas/v1",
        model=ModelConfig(remote_tokenizer=remote_tokenizer(config.plugins)),
        tokenization=TokenizationConfig(estimate=estimate(config.plugins)),
        plugins=plugins,
        scheduling_profiles=profiles,
        endpoints=EndpointsConfig(file=discovery.parameters["path"] if discovery is not None else ""),
        request_handler=_request_handler(config),
        metrics_scrape=scrape,
        admission=admission,
        replicas=replicas_of(syncer),
    )


def _request_handler(config: EndpointPickerConfig) -> RequestHandlerConfig:
    """Return the section with the parser at its older place, unless that is named there too."""
    handler, older = config.request_handler, config.parser
    if older is None or older.plugin_ref in {each.plugin_ref for each in handler.parsers}:
        return handler
    parsers = (*handler.parsers, ParserRefConfig(plugin_ref=older.plugin_ref))
    return msgspec.structs.replace(handler, parsers=parsers)


def default_config() -> KVAtlasConfig:
    """Return the configuration of the reference if it has no file."""
    return kvatlas_config(EndpointPickerConfig(api_version="llm-d.ai/v1"))


def _default_plugins() -> tuple[tuple[PluginConfig, ...], tuple[SchedulingProfileConfig, ...]]:
    references = tuple(
        ProfilePluginConfig(plugin_ref=name, weight=weight) for name, weight in DEFAULT_WEIGHTS.items()
    )
    return tuple(map(_of_type, DEFAULT_WEIGHTS)), (SchedulingProfileConfig(plugins=references),)


def _of_type(plugin_type: str) -> PluginConfig:
    return PluginConfig(type=plugin_type)


def notes(config: EndpointPickerConfig) -> list[str]:
    """Return one line for each setting outside of plugins that has no effect although it was set."""
    return [
        *gate_notes(config.feature_gates),
        *layer_notes("dataLayer", config.data_layer),
        *layer_notes("data", config.data),
        *flow_control_notes(config.flow_control),
        *scraping_of(config.plugins)[1],
    ]


def _file_discovery(config: EndpointPickerConfig) -> tuple[int, PluginConfig | None]:
    """Return the position and entry of the plugin whose file lists the endpoints; (0, None) if there is none."""
    wanted = config.data_layer.endpoint_source or config.data.endpoint_source
    for number, plugin in enumerate(config.plugins):
        is_file = plugin.type in (FILE_DISCOVERY, CLUSTER_DISCOVERY)
        if is_file and wanted is not None and plugin.known_as == wanted:
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
        if describes_scraping(plugin):
            problems = scraping_problems(plugin)
        elif is_token_producer(plugin):
            problems = token_producer_problems(plugin)
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
    return config.flow_control.saturation_detector.plugin_ref or config.saturation_detector.plugin_ref


def _with_producer(plugin: PluginConfig) -> PluginConfig:
    if plugin.type not in _PREFIX_READERS or not _PRODUCER_KEYS.isdisjoint(plugin.parameters):
        return plugin
    parameters = plugin.parameters | {"prefixMatchInfoProducerName": DEFAULT_PRODUCER}
    return msgspec.structs.replace(plugin, parameters=parameters)


def _with_predictor(plugins: tuple[PluginConfig, ...]) -> tuple[PluginConfig, ...]:
    """Return the plugins with a predictor, if one of them needs it and there is none."""
    if any(each.type == PREDICTOR for each in plugins) or not any(map(_reads_predictions, plugins)):
        return plugins
    return (*plugins, PluginConfig(type=PREDICTOR))


def _reads_predictions(plugin: PluginConfig) -> bool:
    return plugin.type in _PREDICTION_READERS or plugin.parameters.get("ttftSource") == "latencyPredictor"


def _references(config: EndpointPickerConfig) -> Iterator[tuple[KeyPath, str]]:
    yield from layer_references("dataLayer", config.data_layer)
    yield from layer_references("data", config.data)
    for number, parser in enumerate(config.request_handler.parsers):
        if parser.plugin_ref not in DEFAULT_PARSERS:
            yield ("requestHandler", "parsers", number, "pluginRef"), parser.plugin_ref
    in_flow_control = config.flow_control.saturation_detector.plugin_ref is not None
    name = _detector_name(config)
    if name is not None and name != DETECTORS[0]:  # which the reference adds
        path = ("flowControl", "saturationDetector") if in_flow_control else ("saturationDetector",)
        yield (*path, "pluginRef"), name
    if config.parser is not None and config.parser.plugin_ref not in DEFAULT_PARSERS:
        yield ("parser", "pluginRef"), config.parser.plugin_ref
