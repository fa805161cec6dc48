"""The plugins of a file of the reference picker that say what is scraped, and where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from . import data_source, dcgm_source, extractor, multicluster
from .errors import Problem
from .schema import PluginConfig
from .scraping import MetricsScrapeConfig


def describes_scraping(plugin: PluginConfig) -> bool:
    """Return whether the plugin becomes a part of `metricsScrape`."""
    return (
        extractor.is_extractor(plugin)
        or data_source.is_source(plugin)
        or dcgm_source.is_dcgm(plugin)
        or multicluster.is_extractor(plugin)
    )


def scraping_problems(plugin: PluginConfig) -> Iterable[Problem]:
    """Return the problems of a plugin that describes scraping; paths are relative to its parameters."""
    if extractor.is_extractor(plugin):
        return extractor.extractor_problems(plugin)
    if data_source.is_source(plugin):
        return data_source.source_problems(plugin)
    if dcgm_source.is_dcgm(plugin):
        return dcgm_source.dcgm_problems(plugin)
    return multicluster.extractor_problems(plugin)


def scraping_of(plugins: Sequence[PluginConfig]) -> tuple[MetricsScrapeConfig, list[str]]:
    """Return the settings that valid plugins describe, and one line for each setting without effect."""
    scrape, notes = extractor.extracted(filter(extractor.is_extractor, plugins))
    for plugin in filter(data_source.is_source, plugins):
        scrape = data_source.with_source(scrape, plugin)
    scrape = multicluster.with_clusters(scrape, plugins)
    scrape = msgspec.structs.replace(scrape, dcgm=dcgm_source.dcgm_config(plugins))
    return scrape, [*notes, *dcgm_source.dcgm_notes(plugins)]
