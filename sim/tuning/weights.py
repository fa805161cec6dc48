"""The weights of a configuration: reading them, setting them, and a file with others."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from ...api.scheduling.plan import make_plan
from ...configs.schema import KVAtlasConfig
from ..errors import ReplayError

SHORT_FORM = {
    "queue-scorer": "queue",
    "kv-cache-utilization-scorer": "kvCacheUtilization",
    "gpu-prefix-cache-scorer": "gpuPrefixCache",
    "cpu-prefix-cache-scorer": "cpuPrefixCache",
}
"""Scorer of the default profile -> its key in `weights`."""


def weights_of(config: KVAtlasConfig) -> dict[str, float]:
    """Weight of each scorer, by its name in the profile."""
    return {name: float(weight) for name, _scorer, weight in make_plan(config).profile.scorers}


def with_weights(config: KVAtlasConfig, weights: Mapping[str, float]) -> KVAtlasConfig:
    """The configuration with other weights.

    Raises:
        ReplayError: its weights stand nowhere, since it has plugins without a profile.
    """
    if not config.plugins:
        short = {SHORT_FORM[name]: weight for name, weight in weights.items()}
        return msgspec.structs.replace(config, weights=msgspec.convert(short, type(config.weights)))
    if not config.scheduling_profiles:
        raise ReplayError(
            "found plugins without schedulingProfiles; list them there, so that weights have a place"
        )
    (profile,) = config.scheduling_profiles
    plugins = tuple(
        msgspec.structs.replace(each, weight=weights.get(each.plugin_ref, each.weight))
        for each in profile.plugins
    )
    return msgspec.structs.replace(
        config, scheduling_profiles=(msgspec.structs.replace(profile, plugins=plugins),)
    )


def file_with_weights(file: Path, weights: Mapping[str, float]) -> tuple[str, str]:
    """A configuration file with other weights, and the difference to the file as it is; comments are lost in both."""
    text = file.read_text()
    before, after = yaml.safe_load(text), yaml.safe_load(text)
    _set(after, {name: int(weight) if weight.is_integer() else weight for name, weight in weights.items()})
    old, new = (yaml.safe_dump(each, sort_keys=False) for each in (before, after))
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), str(file), "tuned", lineterm="")
    return new, "\n".join(lines)


def _set(document: dict[str, Any], weights: Mapping[str, float]) -> None:
    if not document.get("plugins"):
        document["weights"] = {SHORT_FORM[name]: weight for name, weight in weights.items()}
        return
    for each in document["schedulingProfiles"][0]["plugins"]:
        if each["pluginRef"] in weights:
            each["weight"] = weights[each["pluginRef"]]
