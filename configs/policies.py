"""Named policies, `policy` of a configuration: each stands for plugins and a profile."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import get_args

import msgspec

from .errors import Problem
from .schema import KVAtlasConfig, PluginConfig, ProfilePluginConfig, SchedulingProfileConfig
from .section import PolicyName

POLICY_NAMES: tuple[PolicyName, ...] = get_args(PolicyName)

_COST = "fleet-cost-scorer"
"""Scorer of the policy `latency`; `latency.yaml` has the same for the reference's format."""

_MEDIA = "always-disagg-multimodal-decider"

DECODE_FILTER = "decode-filter"
"""Type of the filter that keeps servers which decode."""

_PREFILL, _ENCODE = "prefill", "encode"

_FILTERS = {"prefill-filter": _PREFILL, "encode-filter": _ENCODE}
"""Type of a filter -> the stage whose servers it keeps."""

_BESIDE_PLUGINS = {
    "weights": "found weights together with plugins; write the weights in schedulingProfiles, or remove plugins",
    "policy": "found policy together with plugins; remove one of them",
}
"""Key -> the problem if it is in a file with `plugins`."""


def expanded(config: KVAtlasConfig) -> KVAtlasConfig:
    """Return the configuration with the plugins and profiles of its policy; itself if its policy has none."""
    if config.policy != "latency":
        return config
    apart = config.disaggregation
    if not apart.is_on:
        kept = config.scheduling_profiles[0].plugins if config.scheduling_profiles else ()
        profile = SchedulingProfileConfig(plugins=(*kept, ProfilePluginConfig(plugin_ref=_COST)))
        plugins = (*config.plugins, PluginConfig(type=_COST))
        return msgspec.structs.replace(config, plugins=plugins, scheduling_profiles=(profile,))
    encode = {"encode": ("encode-filter", "active-request-scorer")} if apart.encode else {}
    deciders = {"deciders": {"encode": _MEDIA}} if apart.encode else {}
    parameters: dict[str, object] = {"missingStage": apart.missing_stage, **deciders}
    others = (PluginConfig(type=_MEDIA),) if apart.encode else ()
    if not apart.uncached_tokens:
        handler = PluginConfig(type="disagg-profile-handler", parameters=parameters)
        return _with_profiles(config, {"decode": (DECODE_FILTER, _COST), **encode}, (*others, handler))
    parameters["uncachedTokens"] = apart.uncached_tokens
    handler = PluginConfig(type="joint-cost-handler", parameters=parameters)
    stages = {"decode": (DECODE_FILTER,), "prefill": ("prefill-filter",), **encode}
    return _with_profiles(config, stages, (*others, handler))


def _with_profiles(
    config: KVAtlasConfig, profiles: Mapping[str, tuple[str, ...]], others: tuple[PluginConfig, ...]
) -> KVAtlasConfig:
    """Return the configuration with plugins of these types in profiles, and others beside them."""
    types = dict.fromkeys(each for plugins in profiles.values() for each in plugins)
    sections = tuple(
        SchedulingProfileConfig(
            name=name, plugins=tuple(ProfilePluginConfig(plugin_ref=each) for each in plugins)
        )
        for name, plugins in profiles.items()
    )
    plugins = (*(PluginConfig(type=each) for each in types), *others)
    return msgspec.structs.replace(config, plugins=plugins, scheduling_profiles=sections)


def with_policy(config: KVAtlasConfig, policy: PolicyName, filters: Sequence[str] = ()) -> KVAtlasConfig:
    """Return the configuration with another policy, and without plugins of its own, but for some filters.

    Args:
        config: the configuration.
        policy: the policy.
        filters: names of the filters that stay, in their order, with the plugins that their parameters name; for `latency` alone.
    """
    by_name = {plugin.known_as: plugin for plugin in config.plugins}
    named = [each for name in filters for each in by_name[name].parameters.values() if isinstance(each, str)]
    plugins = tuple(by_name[name] for name in dict.fromkeys((*filters, *named)) if name in by_name)
    # one that is a scorer too has no say beside the costs
    references = tuple(ProfilePluginConfig(plugin_ref=name, weight=0.0) for name in filters)
    profiles = (SchedulingProfileConfig(plugins=references),) if filters else ()
    return msgspec.structs.replace(config, policy=policy, plugins=plugins, scheduling_profiles=profiles)


def keeps_filters(config: KVAtlasConfig) -> bool:
    """Return whether a configuration has filters that policy `latency` kept, see `with_policy`."""
    if config.policy != "latency" or config.disaggregation.is_on:
        return False
    return any(each.plugin_ref != _COST for profile in config.scheduling_profiles for each in profile.plugins)


def with_shadow(config: KVAtlasConfig, policy: PolicyName | None) -> KVAtlasConfig:
    """Return the configuration with a policy as its shadow in place of any other shadow; None for no shadow."""
    shadow = msgspec.structs.replace(config.shadow, file="", policy=policy)
    return msgspec.structs.replace(config, shadow=shadow)


def policy_problems(config: KVAtlasConfig, keys: Container[object]) -> Iterator[Problem]:
    """Yield contradictions between policies and plugins.

    Args:
        config: the content of a file.
        keys: those that the file has at its top.
    """
    if config.plugins:
        # the short forms imply their own plugins
        yield from (Problem(_BESIDE_PLUGINS[key], (key,)) for key in _BESIDE_PLUGINS if key in keys)
    if config.policy != "weights" and config.scheduling_profiles:
        message = (
            f"found schedulingProfiles together with policy {config.policy!r}, which has its own profile"
        )
        yield Problem(f"{message}; remove one of them", ("schedulingProfiles",))
    if config.shadow.policy and config.shadow.file:
        yield Problem("found policy together with file; remove one of them", ("shadow", "policy"))


def policy_of(config: KVAtlasConfig) -> str:
    """Return the name of the policy; `plugins` if the configuration has its own."""
    return "plugins" if config.policy == "weights" and config.plugins else config.policy


def stages_apart(config: KVAtlasConfig) -> frozenset[str]:
    """Return the stages beside decode for which a configuration picks servers."""
    apart = config.disaggregation
    found: set[str] = set()
    if apart.is_on:
        found |= {_ENCODE} if apart.encode else set[str]()
        found |= {_PREFILL} if apart.uncached_tokens or not apart.encode else set[str]()
    types = {plugin.known_as: plugin.type for plugin in config.plugins}
    for profile in config.scheduling_profiles:
        found |= {profile.name} & {_PREFILL, _ENCODE}
        found |= {
            _FILTERS[kind] for each in profile.plugins if (kind := types.get(each.plugin_ref, "")) in _FILTERS
        }
    return frozenset(found)
