"""Translation of the plugins of the reference picker that scrape endpoints into `metricsScrape`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .decode import decode
from .errors import Problem
from .multicluster import METRICS_SOURCE as CLUSTERS
from .schema import PluginConfig
from .scraping import MetricsScrapeConfig, ScrapeTlsConfig
from .section import Section
from .units import Duration

SOURCE = "metrics-data-source"
"""Type of the plugin for servers."""

MIN_INTERVAL_S = 0.05
"""Shortest interval; the reference raises a shorter one to it."""


class DataSourceParams(Section, frozen=True):
    """Parameters of both plugins."""

    interval: Duration | None = None
    """As `metricsScrape.interval`."""
    scheme: Literal["http", "https", ""] = ""
    """As `metricsScrape.scheme`; default http for servers, https for clusters."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """As `metricsScrape.port`; 0 for the one that serves requests."""
    path: str = "/metrics"
    """As `metricsScrape.page`."""
    insecure_skip_verify: bool | None = None
    """As `metricsScrape.tls.verify` turned round; default true for servers, false for clusters."""
    ca_cert_path: str = ""
    """As `metricsScrape.tls.caFile`."""
    client_cert_path: str = ""
    """As `metricsScrape.tls.certFile`."""
    client_key_path: str = ""
    """As `metricsScrape.tls.keyFile`."""
    families: tuple[str, ...] = ()
    """No effect: kvatlas reads only the series that it needs."""


def is_source(plugin: PluginConfig) -> bool:
    """Return whether the plugin configures scraping."""
    return plugin.type == CLUSTERS or (plugin.type == SOURCE and bool(plugin.parameters))


def interval_of(plugin: PluginConfig) -> Duration | None:
    """Return the interval that a source sets, None if it sets none or its parameters are wrong."""
    params = decode(plugin.parameters, DataSourceParams)
    return None if isinstance(params, list) else params.interval


def source_problems(plugin: PluginConfig) -> Iterator[Problem]:
    """Yield the problems of the plugin's parameters; paths are relative to them."""
    params = decode(plugin.parameters, DataSourceParams)
    if isinstance(params, list):
        yield from params
    elif bool(params.client_cert_path) != bool(params.client_key_path):
        missing = "clientKeyPath" if params.client_cert_path else "clientCertPath"
        yield Problem("missing, expected both clientCertPath and clientKeyPath", (missing,))


def with_source(scrape: MetricsScrapeConfig, plugin: PluginConfig) -> MetricsScrapeConfig:
    """Return the settings with those of a source without problems."""
    params = decode(plugin.parameters, DataSourceParams)
    assert not isinstance(params, list), "checked before"  # noqa: S101
    are_clusters = plugin.type == CLUSTERS
    scheme = params.scheme or ("https" if are_clusters else "http")
    skips = params.insecure_skip_verify
    tls = ScrapeTlsConfig(
        verify=are_clusters if skips is None else not skips,
        ca_file=params.ca_cert_path,
        cert_file=params.client_cert_path,
        key_file=params.client_key_path,
    )
    interval = scrape.interval
    if params.interval is not None:
        interval = Duration(max(MIN_INTERVAL_S, params.interval))
    return msgspec.structs.replace(
        scrape,
        interval=interval,
        scheme=scheme,
        port=params.port or None,
        page=params.path or "/metrics",
        tls=tls if scheme == "https" else scrape.tls,  # endpoints may give https URLs themselves
    )
