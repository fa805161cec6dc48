"""Reading and setting the weights of a configuration or of its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...configs.schema import KVAtlasConfig
from ...routing.plan.plan import make_plan
from ..errors import ReplayError

SHORT_FORM = {
    "queue-scorer": "queue",
    "kv-cache-utilization-scorer": "kvCacheUtilization",
    "gpu-prefix-cache-scorer": "gpuPrefixCache",
    "cpu-prefix-cache-scorer": "cpuPrefixCache",
}
"""Scorer of the default profile -> its key in `weights`."""


def weights_of(config: KVAtlasConfig) -> dict[str, float]:
    """Return the weight of each scorer, by its name in the profile.

    Raises:
        ReplayError: its policy has none.
    """
    if config.policy != "weights":
        raise ReplayError(
            f"policy {config.policy!r} has no weights to tune; tune a file with weights or plugins"
        )
    return {name: float(weight) for name, _scorer, weight in make_plan(config).profile.scorers}


def with_weights(config: KVAtlasConfig, weights: Mapping[str, float]) -> KVAtlasConfig:
    """Return the configuration with other weights.

    Raises:
        ReplayError: it has no place for weights, since it has plugins without a profile.
    """
    if not config.plugins:
        short = {SHORT_FORM[name]: weight for name, weight in weights.items()}
        return msgspec.structs.replace(config, weights=msgspec.convert(short, type(config.weights)))
    if not config.scheduling_profiles:
        raise ReplayError(
            "found plugins without schedulingProfiles; list them there, so that their weights can be set"
        )
    (profile,) = config.scheduling_profiles
    plugins = tuple(
        msgspec.structs.replace(each, weight=weights.get(each.plugin_ref, each.weight))
        for each in profile.plugins
    )
    return msgspec.structs.replace(
        config, scheduling_profiles=(msgspec.structs.replace(profile, plugins=plugins),)
    )


def set_weights(document: dict[str, Any], changed: Mapping[str, float]) -> None:
    """Set the changed weights in a configuration file's document, whole numbers as integers."""
    weights = {name: int(weight) if weight.is_integer() else weight for name, weight in changed.items()}
    if document.get("plugins"):
        for each in document["schedulingProfiles"][0]["plugins"]:
            if each["pluginRef"] in weights:
                each["weight"] = weights[each["pluginRef"]]
    elif weights:
        short = {SHORT_FORM[name]: weight for name, weight in weights.items()}
        document["weights"] = (document.get("weights") or {}) | short
