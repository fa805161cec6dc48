"""What counts as saturated, as files of the reference picker say it: by a plugin, or in a section of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from .decode import decode
from .errors import Problem
from .schema import AdmissionConfig, PluginConfig
from .section import Section
from .units import Duration

DETECTOR = "utilization-detector"
"""Type of the plugin, and the name under which the reference makes one where none is named."""


class Thresholds(Section, frozen=True):
    """Thresholds that are given; the others are as they are by default, which is the reference's."""

    queue_depth_threshold: Annotated[int, Meta(ge=0)] | None = None
    """As `admission.queueDepthThreshold`."""
    kv_cache_util_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    """As `admission.kvCacheUtilThreshold`."""
    metrics_staleness_threshold: Duration | None = None
    """As `admission.metricsStalenessThreshold`."""

    def admission(self) -> AdmissionConfig:
        """The section `admission` that says the same."""
        given = {
            name: value
            for name in ("queue_depth_threshold", "kv_cache_util_threshold", "metrics_staleness_threshold")
            if (value := getattr(self, name)) is not None
        }
        return AdmissionConfig(**given)


class SaturationDetectorConfig(Thresholds, frozen=True):
    """The section: a plugin, or as older files have it the thresholds themselves."""

    plugin_ref: str | None = None
    """Name of a plugin in `plugins`."""


class DetectorParams(Thresholds, frozen=True):
    """Parameters of the plugin."""

    headroom: Annotated[float, Meta(ge=0)] = 0.0
    """No effect on what counts as saturated; in the reference it widens the same plugin's filter."""


def detector(plugins: Iterable[PluginConfig], name: str | None) -> PluginConfig | None:
    """The detector of that name, or without one of its usual name; None where another plugin has it, or none."""
    return next(
        (each for each in plugins if (each.type, each.known_as) == (DETECTOR, name or DETECTOR)), None
    )


def detector_problems(plugin: PluginConfig) -> list[Problem]:
    """What is wrong with the plugin's parameters; paths begin there."""
    params = decode(plugin.parameters, DetectorParams)
    return params if isinstance(params, list) else []


def detected(plugin: PluginConfig) -> AdmissionConfig:
    """The section `admission` that says what a plugin without problems says."""
    params = decode(plugin.parameters, DetectorParams)
    assert not isinstance(params, list), "checked before"  # noqa: S101
    return params.admission()
