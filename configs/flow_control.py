"""Section `flowControl` of files of the reference picker: limits and policies of its queues.

kvatlas has no queues, so that only the saturation detector has an effect. The section is checked as the reference checks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from .errors import KeyPath, Problem
from .go_values import Quantity, duration_problem, negative_problem, quantity_problem
from .schema import PluginConfig
from .section import Section
from .words import nearest

FAIRNESS_POLICIES = (
    "global-strict-fairness-policy",
    "round-robin-fairness-policy",
    "program-aware-fairness",
)
"""Types that choose among the flows of a band; the first needs no entry in `plugins`."""

ORDERING_POLICIES = ("fcfs-ordering-policy", "edf-ordering-policy", "slo-deadline-ordering-policy")
"""Types that order the requests of a flow; the first needs no entry in `plugins`."""

USAGE_LIMIT_POLICIES = (
    "static-usage-limit-policy",
    "priority-holdback-policy",
    "soft-reflective-ceiling-policy",
)
"""Types that limit the saturation up to which a band is served; the first needs no entry in `plugins`."""

DETECTORS = ("utilization-detector", "concurrency-detector")
"""Types that measure saturation; the first needs no entry in `plugins`."""


class DetectorReference(Section, frozen=True):
    """Saturation detector in `flowControl`."""

    plugin_ref: str | None = None
    """Name of a plugin in `plugins`."""


class PriorityBandConfig(Section, frozen=True):
    """Limits and policies of one priority; no effect."""

    priority: int = 0
    """The priority."""
    max_bytes: Quantity | None = None
    """Bytes of waiting requests."""
    max_requests: Quantity | None = None
    """Waiting requests."""
    default_request_ttl: str | None = msgspec.field(default=None, name="defaultRequestTTL")
    """Longest wait."""
    fairness_policy_ref: str = ""
    """Policy that chooses a flow."""
    ordering_policy_ref: str = ""
    """Policy that orders the requests of a flow."""


class FlowControlConfig(Section, frozen=True):
    """Queues of the reference; only the saturation detector has an effect."""

    max_bytes: Quantity | None = None
    """Bytes of all waiting requests; no effect."""
    max_requests: Quantity | None = None
    """Waiting requests of all bands; no effect."""
    default_request_ttl: str | None = msgspec.field(default=None, name="defaultRequestTTL")
    """Longest wait; no effect."""
    no_endpoint_request_ttl: str | None = msgspec.field(default=None, name="noEndpointRequestTTL")
    """Longest wait while there are no endpoints; no effect."""
    default_priority_band: PriorityBandConfig | None = None
    """Template of bands; no effect."""
    default_negative_priority_band: PriorityBandConfig | None = None
    """Template of bands below 0; no effect."""
    priority_bands: tuple[PriorityBandConfig, ...] = ()
    """Bands; no effect."""
    usage_limit_policy_plugin_ref: str = ""
    """Policy that limits the saturation of bands; no effect."""
    band_selection_policy_plugin_ref: str = ""
    """Policy that orders bands; no effect."""
    saturation_detector: DetectorReference = DetectorReference()
    """Saturation detector."""
    enable_eviction: bool = False
    """Whether running requests are stopped for more important ones; no effect."""

    @property
    def without_effect(self) -> list[str]:
        """Return the keys that were set and have no effect."""
        default = FlowControlConfig()
        return [
            field.encode_name
            for field in msgspec.structs.fields(FlowControlConfig)
            if field.name != "saturation_detector"
            and getattr(self, field.name) != getattr(default, field.name)
        ]


def flow_control_notes(section: FlowControlConfig) -> Iterator[str]:
    """Yield a line if settings have no effect."""
    if keys := section.without_effect:
        yield f"flowControl.{', '.join(keys)} without effect: kvatlas forwards requests at once and has no queues"


def flow_control_problems(
    section: FlowControlConfig, plugins: Sequence[PluginConfig], *, is_on: bool
) -> Iterator[Problem]:
    """Yield what the reference refuses in the section; with its gate off, only malformed values."""
    for path, value in _quantities(section):
        yield from quantity_problem(path, value)
        yield from negative_problem(path, value) if is_on else ()
    for path, text in _durations(section):
        yield from duration_problem(path, text)
        yield from negative_problem(path, text) if is_on else ()
    if is_on:
        yield from _repeated_bands(section.priority_bands)
        yield from _policy_problems(section, {each.known_as: each.type for each in plugins})


def _bands(section: FlowControlConfig) -> Iterator[tuple[KeyPath, PriorityBandConfig]]:
    path: KeyPath = ("flowControl",)
    if section.default_priority_band is not None:
        yield (*path, "defaultPriorityBand"), section.default_priority_band
    if section.default_negative_priority_band is not None:
        yield (*path, "defaultNegativePriorityBand"), section.default_negative_priority_band
    for number, band in enumerate(section.priority_bands):
        yield (*path, "priorityBands", number), band


def _limited(
    section: FlowControlConfig,
) -> Iterator[tuple[KeyPath, FlowControlConfig | PriorityBandConfig]]:
    yield ("flowControl",), section
    yield from _bands(section)


def _quantities(section: FlowControlConfig) -> Iterator[tuple[KeyPath, Quantity | None]]:
    for path, limits in _limited(section):
        yield (*path, "maxBytes"), limits.max_bytes
        yield (*path, "maxRequests"), limits.max_requests


def _durations(section: FlowControlConfig) -> Iterator[tuple[KeyPath, str | None]]:
    for path, limits in _limited(section):
        yield (*path, "defaultRequestTTL"), limits.default_request_ttl
    yield ("flowControl", "noEndpointRequestTTL"), section.no_endpoint_request_ttl


def _repeated_bands(bands: Sequence[PriorityBandConfig]) -> Iterator[Problem]:
    first: dict[int, int] = {}
    for number, band in enumerate(bands):
        if band.priority in first:
            message = f"found {band.priority}, which priorityBands[{first[band.priority]}] has too; keep one"
            yield Problem(message, ("flowControl", "priorityBands", number, "priority"))
        first.setdefault(band.priority, number)


def _policy_problems(section: FlowControlConfig, types: Mapping[str, str]) -> Iterator[Problem]:
    """Yield references to policies that do not exist or are of another kind; `types` maps plugin names to types."""
    for path, band in _bands(section):
        fairness, ordering = (*path, "fairnessPolicyRef"), (*path, "orderingPolicyRef")
        yield from _reference_problem(fairness, band.fairness_policy_ref, FAIRNESS_POLICIES, types)
        yield from _reference_problem(ordering, band.ordering_policy_ref, ORDERING_POLICIES, types)
    place, limit = ("flowControl", "usageLimitPolicyPluginRef"), section.usage_limit_policy_plugin_ref
    yield from _reference_problem(place, limit, USAGE_LIMIT_POLICIES, types)


def _reference_problem(
    path: KeyPath, name: str, wanted: Sequence[str], types: Mapping[str, str]
) -> Iterator[Problem]:
    if name in ("", wanted[0]) or types.get(name) in wanted:
        return
    if name in types:
        yield Problem(f"found {name!r} of type {types[name]}, expected one of {', '.join(wanted)}", path)
    else:
        missing = f"found {name!r}, expected the name of a plugin"
        yield Problem(f"{missing}; {nearest(name, [wanted[0], *types])}", path)
