"""What a `metrics-data-source` of the reference picker says of scraping, as `metricsScrape` says it."""

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

SHORTEST_S = 0.05
"""What is shorter the reference takes for this."""


class DataSourceParams(Section, frozen=True):
    """Parameters of the plugin."""

    interval: Duration | None = None
    """As `metricsScrape.interval`."""
    scheme: Literal["http", "https"] = "http"
    """No effect: an endpoint's `metrics` is a whole URL."""
    path: str = "/metrics"
    """No effect, as `scheme`."""
    insecure_skip_verify: bool = True
    """No effect: certificates are checked against those that the system trusts."""
    ca_cert_path: str = ""
    """No effect."""
    client_cert_path: str = ""
    """No effect."""
    client_key_path: str = ""
    """No effect."""

    @property
    def without_effect(self) -> list[str]:
        """Keys with values that kvatlas would have to follow, and does not."""
        asked = {
            "scheme": self.scheme != "http",
            "path": self.path not in ("/metrics", "metrics", ""),
            "caCertPath": self.ca_cert_path,
            "clientCertPath": self.client_cert_path,
            "clientKeyPath": self.client_key_path,
        }
        return [key for key, is_asked in asked.items() if is_asked]


def is_source(plugin: PluginConfig) -> bool:
    """Whether the plugin says something of scraping."""
    return plugin.type == SOURCE and bool(plugin.parameters)


def source_problems(plugin: PluginConfig) -> list[Problem]:
    """What is wrong with the plugin's parameters; paths begin there."""
    params = decode(plugin.parameters, DataSourceParams)
    return params if isinstance(params, list) else []


def interval_of(plugin: PluginConfig) -> Duration | None:
    """Time between two scrapes by a plugin without problems, None where it does not say."""
    interval = _params(plugin).interval
    return Duration(max(SHORTEST_S, interval)) if interval is not None else None


def source_notes(plugin: PluginConfig) -> Iterator[str]:
    """What of a plugin without problems has no effect, one line."""
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
