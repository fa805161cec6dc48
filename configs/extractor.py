"""Translation of the `core-metrics-extractor` plugin of the reference picker into `metricsScrape`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from .decode import decode
from .engines import ENGINES, TYPE_LABELS, Selector
from .errors import KeyPath, Problem
from .schema import PluginConfig
from .scraping import EngineConfig, MetricsScrapeConfig
from .section import Section
from .words import nearest

EXTRACTOR_TYPES = ("core-metrics-extractor", "model-server-protocol-metrics")
"""Types of the plugin, newer first. Source: llm-d-router and gateway-api-inference-extension."""

_SPECS: Mapping[str, str] = {
    "queued_requests_spec": "waiting",
    "running_requests_spec": "running",
    "kv_usage_spec": "kv_utilization",
    "lora_spec": "lora_info",
    "lora_loaded_spec": "lora_loaded",
    "cache_info_spec": "cache_info",
}
"""Field of `ExtractedEngine` -> field of `EngineConfig`."""

_SIZES: Mapping[str, str] = {
    "cache_block_size_label_name": "block_size_label",
    "cache_num_blocks_label_name": "num_blocks_label",
    "cache_block_size_spec": "block_size",
    "cache_num_blocks_spec": "num_blocks",
}
"""The same for fields without which the size of the cache is read where kvatlas knows it."""


class ExtractedMetric(Section, frozen=True):
    """One further series of an engine."""

    attribute_key: Annotated[str, Meta(min_length=1)]
    """Attribute of endpoints that it becomes."""
    metric_spec: Annotated[str, Meta(min_length=1)]
    """The series."""


class ExtractedEngine(Section, frozen=True):
    """Series of one engine; a missing one means that the engine has none, even if kvatlas knows one."""

    name: Annotated[str, Meta(min_length=1)]
    """Name of the engine."""
    queued_requests_spec: str = ""
    """Gauge of queued requests."""
    running_requests_spec: str = ""
    """Gauge of requests being served."""
    kv_usage_spec: str = ""
    """Gauge of the used part of the KV blocks."""
    lora_spec: str = ""
    """Series with the LoRA adapters in its labels."""
    lora_loaded_spec: str | None = None
    """Series with a sample for each loaded LoRA adapter; absent: the one that kvatlas knows."""
    cache_info_spec: str = ""
    """Series with block size and number of blocks in its labels."""
    cache_block_size_label_name: str = ""
    """Label of `cacheInfoSpec` with the tokens per block."""
    cache_num_blocks_label_name: str = ""
    """Label of `cacheInfoSpec` with the number of blocks."""
    cache_block_size_spec: str = ""
    """Gauge of the tokens per block."""
    cache_num_blocks_spec: str = ""
    """Gauge of the number of blocks."""
    custom_metrics: tuple[ExtractedMetric, ...] = ()
    """Further series, which become attributes of endpoints."""


class ExtractorParams(Section, frozen=True):
    """Parameters of the plugin."""

    engine_label_key: str = ""
    """Label that names an endpoint's engine."""
    default_engine: str = ""
    """Engine of endpoints without that label."""
    engine_configs: tuple[ExtractedEngine, ...] = ()
    """Engines that the reference does not know, or whose series differ."""


def is_extractor(plugin: PluginConfig) -> bool:
    """Return whether the plugin configures engines."""
    return plugin.type in EXTRACTOR_TYPES and bool(plugin.parameters)


def extractor_problems(plugin: PluginConfig) -> Iterator[Problem]:
    """Yield the problems of the plugin's parameters; paths are relative to them."""
    params = decode(plugin.parameters, ExtractorParams)
    if isinstance(params, list):
        yield from params
        return
    for number, engine in enumerate(params.engine_configs):
        path: KeyPath = ("engineConfigs", number)
        for field in msgspec.structs.fields(ExtractedEngine):
            text: str | None = getattr(engine, field.name)
            if text and field.name in _SPECS:
                yield from _malformed(text, (*path, field.encode_name))
        for place, metric in enumerate(engine.custom_metrics):
            yield from _malformed(metric.metric_spec, (*path, "customMetrics", place, "metricSpec"))
    known = [*ENGINES, *(engine.name for engine in params.engine_configs)]
    if params.default_engine and params.default_engine not in known:
        message = (
            f"found {params.default_engine!r}, expected an engine; {nearest(params.default_engine, known)}"
        )
        yield Problem(message, ("defaultEngine",))


def _malformed(text: str, path: KeyPath) -> Iterator[Problem]:
    try:
        Selector.parse(text)
    except ValueError as error:
        yield Problem(str(error), path)


def extracted(plugins: Iterable[PluginConfig]) -> tuple[MetricsScrapeConfig, list[str]]:
    """Convert valid plugins to scraping settings; also return one line for each setting without effect."""
    engines: dict[str, EngineConfig] = {}
    default, notes = "", list[str]()
    for plugin in plugins:
        params = msgspec.convert(plugin.parameters, ExtractorParams)
        default = params.default_engine or default
        if params.engine_label_key not in ("", *TYPE_LABELS):
            notes.append(
                f"plugin {plugin.known_as}: label {params.engine_label_key} is ignored; "
                "engines are detected by their series"
            )
        for engine in params.engine_configs:
            if engine.queued_requests_spec:
                specs = {ours: getattr(engine, theirs) for theirs, ours in _SPECS.items()}
                sizes = {ours: getattr(engine, theirs) or None for theirs, ours in _SIZES.items()}
                attributes = {each.attribute_key: each.metric_spec for each in engine.custom_metrics}
                engines[engine.name] = EngineConfig(**specs, **sizes, attributes=attributes)
            else:
                notes.append(
                    f"plugin {plugin.known_as}: engine {engine.name} is ignored, since it has no series of queued requests"
                )
    if default not in (*ENGINES, *engines):
        default = MetricsScrapeConfig().engine
    return MetricsScrapeConfig(engine=default, engines=engines), notes
