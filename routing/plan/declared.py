"""Entries of `plugins` with valid parameters, and what their plugins may read of each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ...configs.dcgm import GPU_UTILIZATION
from ...configs.discovery import DEFAULT_NAMESPACE
from ...configs.engines import attribute_names
from ...configs.errors import KeyPath, path_text
from ...configs.schema import KVAtlasConfig, PluginConfig
from ...scorers.core.params import BuildContext, PluginParams, RequestAttribute
from ...scorers.core.prefix_source import MediaProducer, PrefixProducer
from ...scorers.handlers.joint_cost import JointCostHandler
from ...scorers.topology_extractor import TopologyExtractorParams
from .producers import ProducedTiers

PROFILE_KINDS = frozenset({"filter", "scorer", "picker"})
"""Kinds of plugins that a profile lists."""


@runtime_checkable
class _DescribesIndex(Protocol):
    """Parameters that describe an index of prefixes."""

    def producer(self) -> PrefixProducer | None: ...


@dataclass(frozen=True, slots=True)
class Declared:
    """An entry of `plugins` with valid parameters."""

    path: KeyPath
    config: PluginConfig
    params: Mapping[str, PluginParams]
    """Kind -> its parameters."""

    @property
    def is_filter(self) -> bool:
        """Whether it drops endpoints in a profile."""
        return "filter" in self.params

    @property
    def decides(self) -> bool:
        """Whether it is part of a profile; the other kinds act for every profile."""
        return not PROFILE_KINDS.isdisjoint(self.params)


def unread(
    config: KVAtlasConfig, declared: Mapping[str, Declared], handler: JointCostHandler
) -> Iterator[str]:
    """Yield notes on scorers and pickers in profiles whose filters alone a handler runs."""
    for number, profile in enumerate(config.scheduling_profiles):
        for position, reference in enumerate(profile.plugins):
            found = declared.get(reference.plugin_ref)
            if (
                profile.name in handler.compared
                and found is not None
                and found.decides
                and not found.is_filter
            ):
                place = path_text(("schedulingProfiles", number, "plugins", position))
                yield (
                    f"{place}: {reference.plugin_ref} has no effect: {handler.type} compares the endpoints that the filters keep by "
                    "their costs"
                )


def producers_of(declared: Mapping[str, Declared]) -> dict[str, PrefixProducer]:
    """Return plugin name -> the index that its parameters describe."""
    return {
        name: producer
        for name, each in declared.items()
        for params in each.params.values()
        if isinstance(params, _DescribesIndex) and (producer := params.producer()) is not None
    }


def context_of(
    config: KVAtlasConfig, declared: Mapping[str, Declared], produced: ProducedTiers
) -> BuildContext:
    """Return what every plugin may read."""
    scrape = config.metrics_scrape
    params = [(name, given) for name, each in declared.items() for given in each.params.values()]
    producers = producers_of(declared).items()
    return BuildContext(
        tuple(tier.name for tier in produced.tiers),
        produced.sources,
        namespace=config.endpoints.kubernetes.namespace or DEFAULT_NAMESPACE,
        request_attributes={name: each for name, each in params if isinstance(each, RequestAttribute)},
        topologies={
            name: each.topology() for name, each in params if isinstance(each, TopologyExtractorParams)
        },
        attributes=(*attribute_names(scrape), *([GPU_UTILIZATION] if scrape.dcgm.enabled else ())),
        predictor=next((name for name, each in declared.items() if "predictor" in each.params), None),
        media={name: each.n_items for name, each in producers if isinstance(each, MediaProducer)},
    )
