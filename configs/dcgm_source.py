"""Translation of the reference's `dcgm-data-source` and `dcgm-extractor` into `metricsScrape.dcgm`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta

from .dcgm import DcgmConfig
from .decode import decode
from .errors import Problem
from .schema import PluginConfig
from .section import Section
from .units import Duration

SOURCE = "dcgm-data-source"
EXTRACTOR = "dcgm-extractor"

MIN_INTERVAL_S = 0.05
"""Shortest interval; the reference raises a shorter one to it."""


class DcgmSourceParams(Section, frozen=True):
    """Parameters of `dcgm-data-source`."""

    scheme: Literal["http", "https"] = "http"
    """As `metricsScrape.dcgm.scheme`."""
    path: str = "/metrics"
    """As `metricsScrape.dcgm.page`."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 9400
    """As `metricsScrape.dcgm.port`."""
    insecure_skip_verify: bool = True
    """As `metricsScrape.dcgm.verify` turned round."""
    use_node_address: bool = False
    """As `metricsScrape.dcgm.useNodeAddress`."""
    interval: Duration | None = None
    """As `metricsScrape.dcgm.interval`."""


def is_dcgm(plugin: PluginConfig) -> bool:
    """Return whether the plugin is one of both."""
    return plugin.type in (SOURCE, EXTRACTOR)


def dcgm_problems(plugin: PluginConfig) -> list[Problem]:
    """Return the problems of the source's parameters; paths are relative to them. The extractor takes any."""
    params = decode(plugin.parameters, DcgmSourceParams) if plugin.type == SOURCE else None
    return params if isinstance(params, list) else []


def dcgm_config(plugins: Iterable[PluginConfig]) -> DcgmConfig:
    """Return the settings that valid plugins describe: both are needed."""
    found = {plugin.type: plugin for plugin in plugins if is_dcgm(plugin)}
    if len(found) < 2:
        return DcgmConfig()
    params = decode(found[SOURCE].parameters, DcgmSourceParams)
    assert not isinstance(params, list), "checked before"  # noqa: S101
    interval = DcgmConfig().interval
    if params.interval is not None:
        interval = Duration(max(MIN_INTERVAL_S, params.interval))
    return DcgmConfig(
        enabled=True,
        scheme=params.scheme,
        port=params.port,
        page=params.path or "/metrics",
        use_node_address=params.use_node_address,
        interval=interval,
        verify=not params.insecure_skip_verify,
    )


def dcgm_notes(plugins: Iterable[PluginConfig]) -> list[str]:
    """Return a line for a plugin without the other one."""
    found = {plugin.type: plugin for plugin in plugins if is_dcgm(plugin)}
    if len(found) != 1:
        return []
    (plugin,) = found.values()
    other = EXTRACTOR if plugin.type == SOURCE else SOURCE
    return [f"plugin {plugin.known_as} has no effect: there is no {other}"]
