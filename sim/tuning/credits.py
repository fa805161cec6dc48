"""Credits of the slower tiers, in the plugins that have a credit per tier."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from ...configs.schema import KVAtlasConfig, TierConfig
from ...scorers import producers, tiered_prefix_cache
from ...scorers.precise_prefix_cache import PrecisePrefixCacheScorer
from ...scorers.tiered_prefix_cache import TieredPrefixCacheScorer

Parameters = dict[str, Any]
"""Parameters of a plugin in a configuration."""

PRECISE = frozenset({producers.PRECISE, PrecisePrefixCacheScorer.type})


def credits_of(config: KVAtlasConfig, media: Collection[str]) -> dict[str, float]:
    """Return the credits by `PLUGIN.TIER`, except those of the fastest tier, which the scorer's weight already covers.

    Args:
        config: the configuration.
        media: media of the engines' tiers, in upper case; credits of other tiers have no effect.
    """
    return {
        key: _credit(plugin_type, parameters, tier, place)
        for plugin_type, parameters, name in _plugins(config)
        for place, tier in _slower_tiers(config, media)
        for key in (f"{name}.{tier.name}",)
    }


def with_credits(config: KVAtlasConfig, worth: Mapping[str, float]) -> KVAtlasConfig:
    """Return the configuration with other credits, by `PLUGIN.TIER`."""
    plugins = tuple(
        msgspec.structs.replace(
            plugin,
            parameters=parameters_with(plugin.type, plugin.known_as, plugin.parameters, config, worth),
        )
        for plugin in config.plugins
    )
    return msgspec.structs.replace(config, plugins=plugins)


def parameters_with(
    plugin_type: str, name: str, parameters: Parameters, config: KVAtlasConfig, worth: Mapping[str, float]
) -> Parameters:
    """Return a plugin's parameters with other credits; unchanged if it has none of them."""
    for tier in config.tiers:
        credit = worth.get(f"{name}.{tier.name}")
        if credit is None:
            continue
        if plugin_type in PRECISE:
            indexer = parameters.get("indexerConfig", {})
            kept = [each for each in _backends(parameters) if not _is_word_for(each["name"], tier)]
            backends = [*kept, {"name": tier.name, "weight": credit}]
            parameters = parameters | {"indexerConfig": indexer | {"kvCacheBackendConfigs": backends}}
        else:
            parameters = parameters | {"credits": parameters.get("credits", {}) | {tier.name: credit}}
    return parameters


def _plugins(config: KVAtlasConfig) -> Iterator[tuple[str, Parameters, str]]:
    for plugin in config.plugins:
        if plugin.type in PRECISE or plugin.type == TieredPrefixCacheScorer.type:
            yield plugin.type, plugin.parameters, plugin.known_as


def _slower_tiers(config: KVAtlasConfig, media: Collection[str]) -> Iterator[tuple[int, TierConfig]]:
    for place, tier in enumerate(config.tiers[1:], start=1):
        if any(medium.upper() in media for medium in tier.media):
            yield place, tier


def _credit(plugin_type: str, parameters: Parameters, tier: TierConfig, place: int) -> float:
    if plugin_type in PRECISE:
        found = (each["weight"] for each in _backends(parameters) if _is_word_for(each["name"], tier))
        return float(max(found, default=0.0))
    default = tiered_prefix_cache.DEFAULT_CREDITS
    return float(parameters.get("credits", {}).get(tier.name, default[min(place, len(default) - 1)]))


def _backends(parameters: Parameters) -> list[Parameters]:
    listed: list[Parameters] = parameters.get("indexerConfig", {}).get("kvCacheBackendConfigs", [])
    return listed or [{"name": name, "weight": weight} for name, weight in producers.DEFAULT_CREDITS.items()]


def _is_word_for(word: str, tier: TierConfig) -> bool:
    """Return whether a backend's name means this tier, as in `routing.plan`."""
    return word.lower() == tier.name.lower() or word.upper() in {medium.upper() for medium in tier.media}
