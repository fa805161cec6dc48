"""Translation of the reference's plugins for endpoints that are clusters.

Each endpoint is the gateway of a cluster; its picker's own metrics give the load of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from .decode import decode
from .engines import Selector
from .errors import Problem
from .schema import PluginConfig
from .scraping import EngineConfig, MetricsScrapeConfig
from .section import Section

DISCOVERY = "multicluster-file-discovery"
"""Type of the plugin that names a file of clusters, as `file-discovery` does."""

METRICS_SOURCE = "multicluster-metrics-data-source"
"""Type of the plugin that scrapes them, as `metrics-data-source` does."""

EXTRACTOR = "multicluster-metrics-extractor"
"""Type of the plugin that names their series."""

ENGINE = "cluster"
"""Name of the engine that stands for a cluster's picker."""

QUEUE_SIZE, KV_CACHE_UTILIZATION = "MultiClusterQueueSize", "MultiClusterKVCacheUtilization"
"""Attributes that the scorers for clusters read."""

_SCORER, _PRODUCER = "multicluster-prefix-cache-scorer", "multicluster-approx-prefix-cache-producer"


class ExtractorParams(Section, frozen=True):
    """Parameters of `multicluster-metrics-extractor`; an empty name stands for the default."""

    kv_cache_utilization_metric: str = msgspec.field(default="", name="kvCacheUtilizationMetric")
    """Gauge of the average KV-cache utilization, 0 to 1; default `llm_d_epp_average_kv_cache_utilization`."""
    queue_size_metric: str = ""
    """Gauge of the average queue; default `llm_d_epp_average_queue_size`."""

    @property
    def series(self) -> tuple[str, str]:
        """Return the series of utilization and queue."""
        return (
            self.kv_cache_utilization_metric or "llm_d_epp_average_kv_cache_utilization",
            self.queue_size_metric or "llm_d_epp_average_queue_size",
        )


def is_extractor(plugin: PluginConfig) -> bool:
    """Return whether the plugin names the series of clusters."""
    return plugin.type == EXTRACTOR


def extractor_problems(plugin: PluginConfig) -> Iterator[Problem]:
    """Yield the problems of the plugin's parameters; paths are relative to them."""
    params = decode(plugin.parameters, ExtractorParams)
    if isinstance(params, list):
        yield from params
        return
    for key, text in zip(("kvCacheUtilizationMetric", "queueSizeMetric"), params.series, strict=True):
        try:
            Selector.parse(text)
        except ValueError as error:
            yield Problem(str(error), (key,))


def with_clusters(scrape: MetricsScrapeConfig, plugins: Iterable[PluginConfig]) -> MetricsScrapeConfig:
    """Return the settings with clusters as the default engine, if an extractor of theirs is among the valid plugins."""
    for plugin in filter(is_extractor, plugins):
        used, queue = msgspec.convert(plugin.parameters, ExtractorParams).series
        engine = EngineConfig(
            waiting=queue,
            kv_utilization=used,
            attributes={QUEUE_SIZE: queue, KV_CACHE_UTILIZATION: used},
        )
        scrape = msgspec.structs.replace(scrape, engine=ENGINE, engines={**scrape.engines, ENGINE: engine})
    return scrape


def with_usual_types(plugins: tuple[PluginConfig, ...]) -> tuple[PluginConfig, ...]:
    """Return the plugins with approximate matching of clusters by the types for servers, which do the same.

    A scorer that names no producer gets the default one for clusters, which is added if it is missing.
    """
    changed = tuple(map(_usual, plugins))
    needs = any(
        each.parameters.get("prefixMatchInfoProducerName") == _PRODUCER
        for each, before in zip(changed, plugins, strict=True)
        if before.type == _SCORER
    )
    if needs and _PRODUCER not in {each.known_as for each in changed}:
        return (*changed, PluginConfig(type="approx-prefix-cache-producer", name=_PRODUCER))
    return changed


def _usual(plugin: PluginConfig) -> PluginConfig:
    if plugin.type == _PRODUCER:
        return msgspec.structs.replace(plugin, type="approx-prefix-cache-producer", name=plugin.known_as)
    if plugin.type != _SCORER:
        return plugin
    producer = plugin.parameters.get("prefixMatchInfoProducerName") or _PRODUCER
    parameters = plugin.parameters | {"prefixMatchInfoProducerName": producer}
    return msgspec.structs.replace(
        plugin, type="prefix-cache-scorer", name=plugin.known_as, parameters=parameters
    )
