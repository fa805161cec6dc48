"""Plugin types that a configuration may name."""

from __future__ import annotations

import msgspec

from ...configs.schema import KVAtlasConfig
from ...scorers.builtin import builtin_registry
from ...tokenization.requests.parsers import PARSERS
from .entry_points import offered_plugins
from .reference import NO_EFFECT


def without_unknown_plugins(config: KVAtlasConfig) -> tuple[KVAtlasConfig, tuple[str, ...]]:
    """Return the configuration without plugins of unknown types, and the names of those left out."""
    known = known_types()
    unknown = [plugin.known_as for plugin in config.plugins if plugin.type not in known]
    profiles = tuple(
        msgspec.structs.replace(
            profile, plugins=tuple(each for each in profile.plugins if each.plugin_ref not in unknown)
        )
        for profile in config.scheduling_profiles
    )
    plugins = tuple(plugin for plugin in config.plugins if plugin.type in known)
    return msgspec.structs.replace(config, plugins=plugins, scheduling_profiles=profiles), tuple(unknown)


def known_types() -> set[str]:
    """Return the plugin types that a configuration may name."""
    registered = {plugin_type for kind in builtin_registry().kinds for plugin_type in kind}
    return registered | offered_plugins().names | NO_EFFECT.keys() | PARSERS.keys()
