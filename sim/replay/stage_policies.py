"""Policies for servers with roles: when another server computes the prompt."""

from __future__ import annotations

from ...configs.disaggregation import DisaggregationConfig
from ...configs.schema import (
    KVAtlasConfig,
    PluginConfig,
    ProfilePluginConfig,
    SchedulingProfileConfig,
    TierConfig,
)

NEVER = 1 << 40
"""Uncached tokens that no prompt has."""


def reference_config() -> KVAtlasConfig:
    """Return the reference picker's own configuration for prefill and decode servers, with its parameters.

    The index is learned from routing, and a prompt goes to a prefill server from 16 uncached tokens on.

    Source: llm-d-router deploy/config/pd-epp-config.yaml.
    """
    return KVAtlasConfig(
        api_version="kvatlas/v1",
        plugins=(
            PluginConfig(
                type="approx-prefix-cache-producer",
                parameters={"maxPrefixTokensToMatch": 16384, "lruCapacityPerServer": 31250},
            ),
            PluginConfig(type="prefix-cache-scorer"),
            PluginConfig(type="queue-scorer"),
            PluginConfig(type="prefill-filter"),
            PluginConfig(type="decode-filter"),
            PluginConfig(type="max-score-picker"),
            PluginConfig(
                type="disagg-profile-handler", parameters={"deciders": {"prefill": "prefix-based-pd-decider"}}
            ),
            PluginConfig(type="prefix-based-pd-decider", parameters={"nonCachedTokens": 16}),
        ),
        scheduling_profiles=tuple(
            SchedulingProfileConfig(
                name=stage,
                plugins=(
                    ProfilePluginConfig(plugin_ref=f"{stage}-filter"),
                    ProfilePluginConfig(plugin_ref="max-score-picker"),
                    ProfilePluginConfig(plugin_ref="prefix-cache-scorer", weight=2),
                    ProfilePluginConfig(plugin_ref="queue-scorer", weight=1),
                ),
            )
            for stage in ("prefill", "decode")
        ),
    )


def threshold_config(tiers: tuple[TierConfig, ...], uncached_tokens: int, *, encode: bool) -> KVAtlasConfig:
    """Return kvatlas's configuration that chooses the decode server first, and then by its uncached tokens.

    Args:
        tiers: of the engines.
        uncached_tokens: from which on a prefill server computes the prompt.
        encode: whether there are encode servers.
    """
    apart = DisaggregationConfig(uncached_tokens=uncached_tokens, encode=encode)
    return KVAtlasConfig(api_version="kvatlas/v1", tiers=tiers, disaggregation=apart)
