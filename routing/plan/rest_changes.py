"""What REST changes of a configuration, as values that other replicas can apply to theirs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

import msgspec

from ...configs.errors import ConfigError, Problem
from ...configs.policies import (
    DECODE_FILTER,
    POLICY_NAMES,
    stages_apart,
    with_policy,
    with_shadow,
)
from ...configs.schema import KVAtlasConfig
from ...configs.section import PolicyName
from ...fleet.errors import ConfigRefusedError
from .capacities import with_capacities
from .plan import make_plan
from .weights import with_weights

POLICY, SHADOW = "policy", "shadow"
"""Keys of what REST changes: the name of a policy, and the name of a policy or null."""

WEIGHT = "weight/"
"""Beginning of the key of a weight, before the name that `weights_of` gives it."""

CAPACITY = "capacity/"
"""Beginning of the key of a tier's capacity, before its name."""

_OWN = ("server", "snapshot", "recorder", "replicas", "api_version", "kind")
"""Sections that differ between replicas that decide alike."""


def with_changes(config: KVAtlasConfig, file: KVAtlasConfig, values: Mapping[str, object]) -> KVAtlasConfig:
    """Return a configuration with what REST changed, and nothing that it changed before.

    Args:
        config: in force, as it was loaded, with earlier changes.
        file: as its file had it.
        values: key -> value; weights count only under policy `weights`.

    Raises:
        ConfigError: a policy, or a weight's name or value is impossible.
        ConfigRefusedError: see `in_place`.
        SchedulingError: the plugins make no profile.
    """
    found = msgspec.structs.replace(
        config,
        policy=file.policy,
        weights=file.weights,
        plugins=file.plugins,
        scheduling_profiles=file.scheduling_profiles,
        shadow=file.shadow,
        tiers=file.tiers,
    )
    if POLICY in values:
        found = in_place(found, _policy(POLICY, values[POLICY]))
    if SHADOW in values:
        shadow = values[SHADOW]
        found = with_shadow(found, None if shadow is None else _policy(SHADOW, shadow))
    if capacities := _named(CAPACITY, values):
        found = with_capacities(found, make_plan(found).config, capacities)
    weights = _named(WEIGHT, values)
    if weights and found.policy == "weights":
        found = with_weights(found, make_plan(found), weights)
    return found


def in_place(config: KVAtlasConfig, policy: PolicyName) -> KVAtlasConfig:
    """Return the configuration with a policy in place of its own, or of its plugins.

    Raises:
        ConfigRefusedError: the plugins pick servers by role, and the policy would pick one of any role; or filters drop servers, and
            the policy has none.
    """
    if (stages := stages_apart(config)) and not config.disaggregation.is_on:
        raise ConfigRefusedError(
            f"policy {policy!r} in place of plugins that pick servers for {' and '.join(sorted(stages))} would send "
            "whole requests to any of them; write policy and disaggregation in the file instead of plugins"
        )
    filters = _filters_of(config) if config.plugins else ()
    if policy == "weights" and filters:
        raise ConfigRefusedError(
            f"policy {policy!r} in place of plugins with {', '.join(filters)} would send requests to servers that are "
            "dropped; change the scorers of the profile instead"
        )
    return with_policy(config, policy, filters)


def _filters_of(config: KVAtlasConfig) -> tuple[str, ...]:
    """Return the names of the filters of the profile, in their order; of several profiles only decode filters."""
    plan = make_plan(config)
    names = dict.fromkeys(
        each.plugin_ref for each in plan.references if ("filter", each.plugin_ref) in plan.built
    )
    if len(plan.config.scheduling_profiles) < 2:
        return tuple(names)
    types = {each.known_as: each.type for each in plan.config.plugins}
    return tuple(name for name in names if types[name] == DECODE_FILTER)


def _named(prefix: str, values: Mapping[str, object]) -> dict[str, object]:
    return {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}


def _policy(key: str, value: object) -> PolicyName:
    """Return the name of a policy, which a sibling of a later version may have and this one not."""
    for name in POLICY_NAMES:
        if value == name:
            return name
    raise ConfigError(key, [Problem(f"found {value!r}, expected one of {', '.join(POLICY_NAMES)}")])


def ended_by_file(keys: Iterable[str]) -> list[str]:
    """Return the keys that a newly loaded file ends, because it has its own values for them."""
    return [key for key in keys if key in {POLICY, SHADOW} or key.startswith((WEIGHT, CAPACITY))]


def digest(config: KVAtlasConfig) -> str:
    """Return 12 hexadecimal digits that replicas have in common if they decide alike. Cost: O(endpoints)."""
    shared = {name: getattr(config, name) for name in config.__struct_fields__ if name not in _OWN}
    return blake2b(msgspec.json.encode(shared, enc_hook=str, order="sorted"), digest_size=6).hexdigest()
