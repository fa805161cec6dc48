"""The tuned settings in a case and in a file: weights, tier credits, and the size of the CPU tier."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from ...configs.schema import KVAtlasConfig
from .. import hardware
from ..errors import ReplayError
from ..kv_events import CPU, STORAGE
from ..replay.comparison import Case
from ..replay.policies import Policy
from .credits import Parameters, credits_of, parameters_with, with_credits
from .weights import set_weights, weights_of, with_weights


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of the tuned settings.

    Attributes:
        weights: by scorer.
        credits: of all tiers but the fastest, 0 to 1, by `PLUGIN.TIER`; empty if no plugin has credits.
        cpu_gib: CPU tier of a server.
    """

    weights: Mapping[str, float]
    credits: Mapping[str, float]
    cpu_gib: float


def settings_of(case: Case, *, max_cpu_gib: float) -> Settings:
    """Return the settings of a case.

    Args:
        case: a policy with a configuration.
        max_cpu_gib: largest CPU tier of the search; with 0 its credit has no effect.
    Raises:
        ReplayError: the policy has no configuration.
    """
    config = config_of(case)
    media = {CPU} if max_cpu_gib else set[str]()
    media |= {STORAGE} if case.fleet.has_storage else set[str]()
    return Settings(weights_of(config), credits_of(config, media), case.cpu_gib)


def case_with(case: Case, settings: Settings) -> Case:
    """Return the case with other settings; a configured capacity of the CPU tier is adapted to the tier's size."""
    config = with_credits(with_weights(config_of(case), settings.weights), settings.credits)
    place = _bounded_cpu_tier(config) if settings.cpu_gib != case.cpu_gib else None
    fleet = replace(case.fleet, cpu_blocks=_cpu_blocks(case, settings))
    if place is not None:
        tiers = list(config.tiers)
        tiers[place] = msgspec.structs.replace(tiers[place], lru_capacity_per_server=fleet.cpu_blocks)
        config = msgspec.structs.replace(config, tiers=tuple(tiers))
    return Case(Policy(case.policy.name, config), fleet, settings.cpu_gib)


def file_with(file: Path, case: Case, settings: Settings) -> tuple[str, str]:
    """Return the configuration file with other settings, and the difference to the file; both lack its comments."""
    text, config = file.read_text(), config_of(case)
    before, after = yaml.safe_load(text), yaml.safe_load(text)
    set_weights(after, _changed(weights_of(config), settings.weights))
    _set_credits(after, config, _changed(credits_of(config, {CPU, STORAGE}), settings.credits))
    place = _bounded_cpu_tier(config) if settings.cpu_gib != case.cpu_gib else None
    if place is not None and after.get("tiers"):
        after["tiers"][place]["lruCapacityPerServer"] = _cpu_blocks(case, settings)
    old, new = (yaml.safe_dump(each, sort_keys=False) for each in (before, after))
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), str(file), "tuned", lineterm="")
    return new, "\n".join(lines)


def config_of(case: Case) -> KVAtlasConfig:
    """Return the configuration of a case.

    Raises:
        ReplayError: it has none.
    """
    if case.policy.config is None:
        raise ReplayError(f"policy {case.policy.name!r} has no weights to tune; give a configuration")
    return case.policy.config


def _cpu_blocks(case: Case, settings: Settings) -> int:
    return hardware.blocks_in(settings.cpu_gib, block_size=case.fleet.block_size)


def _bounded_cpu_tier(config: KVAtlasConfig) -> int | None:
    """Return the index of the CPU tier if the configuration has its capacity, otherwise None."""
    for place, tier in enumerate(config.tiers[1:], start=1):
        if CPU in {medium.upper() for medium in tier.media}:
            return place if isinstance(tier.lru_capacity_per_server, int) else None
    return None


def _changed(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in after.items() if value != before[name]}


def _set_credits(document: dict[str, Any], config: KVAtlasConfig, changed: Mapping[str, float]) -> None:
    for plugin in document.get("plugins") or ():
        name: str = plugin.get("name") or plugin["type"]
        parameters: Parameters = plugin.get("parameters") or {}
        others = parameters_with(plugin["type"], name, parameters, config, changed)
        if others != parameters:
            plugin["parameters"] = others
