"""Translation of the `metrics-data-source` plugin of the reference picker into `metricsScrape`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from .decode import decode
from .errors import Problem
from .schema import PluginConfig
from .section import Section
from .units import Duration

SOURCE = "metrics-data-source"
"""Type of the plugin."""

MIN_INTERVAL_S = 0.05
"""Shortest interval; the reference raises a shorter one to it."""


class DataSourceParams(Section, frozen=True):
    """Parameters of the plugin."""

    interval: Duration | None = None
    """As `metricsScrape.interval`."""
    scheme: Literal["http", "https"] = "http"
    """No effect: an endpoint's `metrics` is a complete URL."""
    path: str = "/metrics"
    """No effect, as `scheme`."""
    insecure_skip_verify: bool = True
    """No effect: certificates are verified with the trust store of the system."""
    ca_cert_path: str = ""
    """No effect."""
    client_cert_path: str = ""
    """No effect."""
    client_key_path: str = ""
    """No effect."""

    @property
    def without_effect(self) -> list[str]:
        """Return the keys whose values would change scraping but are not supported."""
        asked = {
            "scheme": self.scheme != "http",
            "path": self.path not in ("/metrics", "metrics", ""),
            "caCertPath": self.ca_cert_path,
            "clientCertPath": self.client_cert_path,
            "clientKeyPath": self.client_key_path,
        }
        return [key for key, is_asked in asked.items() if is_asked]


def is_source(plugin: PluginConfig) -> bool:
    """Return whether the plugin configures scraping."""
    return plugin.type == SOURCE and bool(plugin.parameters)


def source_problems(plugin: PluginConfig) -> list[Problem]:
    """Return the problems of the plugin's parameters; paths are relative to them."""
    params = decode(plugin.parameters, DataSourceParams)
    return params if isinstance(params, list) else []


def interval_of(plugin: PluginConfig) -> Duration | None:
    """Return the scrape interval of a plugin without problems, None if it has none."""
    interval = _params(plugin).interval
    return Duration(max(MIN_INTERVAL_S, interval)) if interval is not None else None


def source_notes(plugin: PluginConfig) -> Iterator[str]:
    """Yield one line about the parameters of a valid plugin that have no effect."""
    keys = _params(plugin).without_effect
    if keys:
        yield (
            f"plugin {plugin.known_as}: {', '.join(keys)} without effect; endpoints are scraped at "
            "http://ADDRESS/metrics, or at the URL that an endpoint's `metrics` names"
        )


def _params(plugin: PluginConfig) -> DataSourceParams:
    params = decode(plugin.parameters, DataSourceParams)
    assert not isinstance(params, list), "checked before"  # noqa: S101
    return params
