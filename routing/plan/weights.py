"""Other weights for the scorers of a configuration."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ...configs.decode import decode
from ...configs.errors import ConfigError, Problem
from ...configs.schema import KVAtlasConfig, SchedulingProfileConfig, WeightsConfig
from ...configs.section import Section, Weight
from ...configs.words import nearest
from ...scorers.core.decision import qualified
from ...scorers.core.scheduler import Scheduler
from .plan import Plan


class _OneWeight(Section, frozen=True):
    weight: Weight


def weights_of(plan: Plan) -> dict[str, float]:
    """Return the weight of each scorer.

    By key of `weights`, by plugin name if the configuration has plugins, or by `profile/plugin` if it has a handler.
    """
    if not plan.config.plugins:
        weights: dict[str, float] = msgspec.to_builtins(plan.config.weights)
        return weights
    return {name: weight for name, _, weight in plan.profile.scorers}


def with_weights(config: KVAtlasConfig, plan: Plan, weights: Mapping[str, object]) -> KVAtlasConfig:
    """Return the configuration with new weights for the scorers that `weights` names; the others stay.

    Args:
        config: as loaded.
        plan: of that configuration.
        weights: names as `weights_of` gives them, and any value.

    Raises:
        ConfigError: a name or value is impossible.
    """
    if config.policy != "weights":
        message = f"policy {config.policy!r} has no weights; change the policy first, or give plugins"
        raise ConfigError("weights", [Problem(message)])
    if not config.plugins:
        return msgspec.structs.replace(config, weights=_short(config.weights, weights))
    found = _named(plan, weights)
    if isinstance(plan.profile, Scheduler):
        profiles = tuple(_weighted(each, found) for each in config.scheduling_profiles)
        return msgspec.structs.replace(config, scheduling_profiles=profiles)
    references = tuple(
        msgspec.structs.replace(each, weight=found.get(each.plugin_ref, each.weight))
        for each in plan.references
    )
    name = config.scheduling_profiles[0].name if config.scheduling_profiles else "default"
    profile = SchedulingProfileConfig(name=name, plugins=references)
    return msgspec.structs.replace(config, scheduling_profiles=(profile,))


def _weighted(profile: SchedulingProfileConfig, weights: Mapping[str, float]) -> SchedulingProfileConfig:
    """Return one of several profiles with weights by `profile/plugin`."""
    plugins = tuple(
        msgspec.structs.replace(
            each, weight=weights.get(qualified(profile.name, each.plugin_ref), each.weight)
        )
        for each in profile.plugins
    )
    return msgspec.structs.replace(profile, plugins=plugins)


def _short(before: WeightsConfig, weights: Mapping[str, object]) -> WeightsConfig:
    decoded = decode({**msgspec.to_builtins(before), **weights}, WeightsConfig)
    if isinstance(decoded, list):
        raise ConfigError("weights", decoded)
    return decoded


def _named(plan: Plan, weights: Mapping[str, object]) -> dict[str, float]:
    known, problems, found = list(weights_of(plan)), list[Problem](), dict[str, float]()
    for name, value in weights.items():
        decoded = decode({"weight": value}, _OneWeight)
        if name not in known:
            problems.append(Problem(f"no scorer of that name; {nearest(name, known)}", (name,)))
        elif isinstance(decoded, list):
            problems += [Problem(each.message, (name,)) for each in decoded]
        else:
            found[name] = decoded.weight
    if problems:
        raise ConfigError("weights", problems)
    return found
