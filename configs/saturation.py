"""Saturation detector in files of the reference picker: a plugin, or a section."""

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
"""Type of the plugin, and the name of the one that the reference adds if none is named."""


class Thresholds(Section, frozen=True):
    """Given thresholds; the others have their defaults, which are those of the reference."""

    queue_depth_threshold: Annotated[int, Meta(ge=0)] | None = None
    """As `admission.queueDepthThreshold`."""
    kv_cache_util_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    """As `admission.kvCacheUtilThreshold`."""
    metrics_staleness_threshold: Duration | None = None
    """As `admission.metricsStalenessThreshold`."""

    def admission(self) -> AdmissionConfig:
        """Return the section `admission` with the same thresholds."""
        given = {
            name: value
            for name in ("queue_depth_threshold", "kv_cache_util_threshold", "metrics_staleness_threshold")
            if (value := getattr(self, name)) is not None
        }
        return AdmissionConfig(**given)


class SaturationDetectorConfig(Thresholds, frozen=True):
    """The section: a reference to a plugin, or the thresholds themselves in older files."""

    plugin_ref: str | None = None
    """Name of a plugin in `plugins`."""


class DetectorParams(Thresholds, frozen=True):
    """Parameters of the plugin."""

    headroom: Annotated[float, Meta(ge=0)] = 0.0
    """No effect on saturation; in the reference it widens the filter of the same plugin."""


def detector(plugins: Iterable[PluginConfig], name: str | None) -> PluginConfig | None:
    """Return the detector of that name, or of its default name if None; None if no detector has it."""
    return next(
        (each for each in plugins if (each.type, each.known_as) == (DETECTOR, name or DETECTOR)), None
    )


def detector_problems(plugin: PluginConfig) -> list[Problem]:
    """Return the problems of the plugin's parameters; paths are relative to them."""
    params = decode(plugin.parameters, DetectorParams)
    return params if isinstance(params, list) else []


def detected(plugin: PluginConfig) -> AdmissionConfig:
    """Return the section `admission` with the thresholds of a valid plugin."""
    params = decode(plugin.parameters, DetectorParams)
    assert not isinstance(params, list), "checked before"  # noqa: S101
    return params.admission()
