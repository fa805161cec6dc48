"""Other capacities for the tiers of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from ...configs.decode import decode
from ...configs.errors import ConfigError, Problem
from ...configs.schema import KVAtlasConfig, TierConfig
from ...configs.words import nearest

Capacity: TypeAlias = int | str
"""Blocks, `auto` or `unlimited`."""


def capacities_of(config: KVAtlasConfig) -> dict[str, Capacity]:
    """Return `lruCapacityPerServer` of each tier by name."""
    return {tier.name: tier.lru_capacity_per_server for tier in config.tiers}


def with_capacities(
    config: KVAtlasConfig, planned: KVAtlasConfig, capacities: Mapping[str, object]
) -> KVAtlasConfig:
    """Return the configuration with new capacities for the tiers that `capacities` names; the others stay.

    Args:
        config: as loaded.
        planned: the same, as its plugins describe it.
        capacities: name of a tier -> any value.

    Raises:
        ConfigError: a name or value is impossible, or plugins give the capacity.
    """
    known, given = capacities_of(config), capacities_of(planned)
    problems, found = list[Problem](), dict[str, TierConfig]()
    for name, value in capacities.items():
        decoded = decode({"name": name or "-", "lruCapacityPerServer": value}, TierConfig)
        if name not in known:
            problems.append(Problem(f"no tier of that name; {nearest(name, list(known))}", (name,)))
        elif isinstance(decoded, list):
            problems += [Problem(each.message, (name,)) for each in decoded]
        elif known[name] != given.get(name):
            problems.append(
                Problem("plugins of the configuration give its capacity; change their parameters", (name,))
            )
        else:
            found[name] = decoded
    if problems:
        raise ConfigError("capacities", problems)
    tiers = tuple(
        msgspec.structs.replace(tier, lru_capacity_per_server=found[tier.name].lru_capacity_per_server)
        if tier.name in found
        else tier
        for tier in config.tiers
    )
    return msgspec.structs.replace(config, tiers=tiers)
