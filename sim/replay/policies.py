"""Routing policies that a replay compares: simple ones, those of kvatlas and its peers, and any configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import msgspec

from ...configs.schema import DEFAULT_TIERS, KVAtlasConfig, PluginConfig, TierConfig, WeightsConfig
from ...indexer.factory import index_core
from ...routing.plan.plan import make_plan
from ...scorers.core.max_score import MaxScorePicker
from ...scorers.core.profile import Profile
from ...scorers.latency.attainment import SloAttainmentParams, SloAttainmentScorer
from ...scorers.latency.predictor import LatencyPredictor, PredictedLatencyParams
from ...scorers.weights import default_profile
from ..errors import ReplayError
from ..roles import ENCODE
from .dynamo_cost import dynamo_profile
from .fleet_spec import FleetSpec
from .guides import guide
from .indexed_router import IndexedRouter
from .router import RandomChoice, RoundRobin, Router, SessionHash
from .stage_policies import NEVER, joint_config, reference_config, threshold_config


@dataclass(frozen=True, slots=True)
class Policy:
    """One routing policy.

    Attributes:
        name: for reports; one of `POLICIES` if there is no configuration.
        config: a configuration; its capacities are in blocks of `FleetSpec.block_size` before `coarser`.
    """

    name: str
    config: KVAtlasConfig | None = None


def named_policy(name: str) -> Policy:
    """Return the built-in policy of this name.

    Raises:
        ReplayError: it does not exist.
    """
    known = POLICIES | STAGE_POLICIES
    if name not in known:
        raise ReplayError(f"found policy {name!r}, want one of {', '.join(known)}")
    return Policy(name)


def make_router(policy: Policy, fleet: FleetSpec, *, granularity: int, rng: Random) -> Router:
    """Make a router.

    Args:
        policy: its policy.
        fleet: the simulated engines.
        granularity: blocks of the configuration per block of `fleet`.
        rng: random numbers for the router.
    """
    if policy.config is not None:
        # capacities that producers of prefixes name are those of the plan's tiers
        return _indexed(_coarser(make_plan(policy.config).config, granularity), fleet, rng)
    if (policy.name in STAGE_POLICIES) != bool(fleet.roles):
        want = STAGE_POLICIES if fleet.roles else POLICIES
        servers = "servers with roles" if fleet.roles else "servers without roles"
        raise ReplayError(f"policy {policy.name!r} is not for {servers}; want one of {', '.join(want)}")
    return (POLICIES | STAGE_POLICIES)[policy.name](fleet, rng)


def _coarser(config: KVAtlasConfig, granularity: int) -> KVAtlasConfig:
    tiers = tuple(
        msgspec.structs.replace(tier, lru_capacity_per_server=tier.lru_capacity_per_server // granularity)
        if isinstance(tier.lru_capacity_per_server, int)
        else tier
        for tier in config.tiers
    )
    return msgspec.structs.replace(config, tiers=tiers)


def _config(
    tiers: tuple[TierConfig, ...], *plugins: str, weights: WeightsConfig | None = None
) -> KVAtlasConfig:
    return KVAtlasConfig(
        api_version="kvatlas/v1",
        tiers=tiers,
        plugins=tuple(PluginConfig(type=plugin) for plugin in plugins),
        weights=weights or WeightsConfig(),
    )


def _indexed(config: KVAtlasConfig, fleet: FleetSpec, rng: Random) -> Router:
    return IndexedRouter(config, fleet, core=index_core(), rng=rng)


def _event_tiers(fleet: FleetSpec) -> tuple[TierConfig, ...]:
    """Return the engines' tiers, with events as their source."""
    return DEFAULT_TIERS[:1] + DEFAULT_TIERS[1:2] * bool(fleet.cpu_blocks) + _storage(fleet)


def _storage(fleet: FleetSpec) -> tuple[TierConfig, ...]:
    shared = msgspec.structs.replace(DEFAULT_TIERS[2], scope="shared")
    return (shared,) if fleet.has_storage else ()


def _learned_tiers(fleet: FleetSpec) -> tuple[TierConfig, ...]:
    """Return the engines' tiers, learned from the routed requests, each with its true size."""
    gpu = msgspec.structs.replace(DEFAULT_TIERS[0], source="routing")
    cpu = msgspec.structs.replace(
        DEFAULT_TIERS[1], source="inferred", lru_capacity_per_server=fleet.cpu_blocks or "auto"
    )
    return (gpu, cpu) if fleet.cpu_blocks else (gpu,)


def _least_queue(fleet: FleetSpec, rng: Random) -> Router:
    weights = WeightsConfig(queue=1, kv_cache_utilization=0, gpu_prefix_cache=0, cpu_prefix_cache=0)
    return _indexed(_config(_learned_tiers(fleet)[:1], weights=weights), fleet, rng)


def _approximate(fleet: FleetSpec, rng: Random) -> Router:
    return _indexed(_config(_learned_tiers(fleet)), fleet, rng)


def _precise_gpu(fleet: FleetSpec, rng: Random) -> Router:
    weights = WeightsConfig(cpu_prefix_cache=0)
    return _indexed(_config(DEFAULT_TIERS[:1], weights=weights), fleet, rng)


def _precise(fleet: FleetSpec, rng: Random) -> Router:
    return _indexed(_config(_event_tiers(fleet)), fleet, rng)


def _affinity(fleet: FleetSpec, rng: Random) -> Router:
    plugins = ("prefix-cache-affinity-filter", "token-load-scorer")
    return _indexed(_config(_learned_tiers(fleet)[:1], *plugins), fleet, rng)


def _optimized_baseline(fleet: FleetSpec, rng: Random) -> Router:
    return _indexed(make_plan(guide("optimized-baseline")).config, fleet, rng)


def _dynamo(fleet: FleetSpec, rng: Random) -> Router:
    profile = dynamo_profile(block_size=fleet.block_size, gpu_blocks=fleet.gpu_blocks)
    return IndexedRouter(_config(_event_tiers(fleet)), fleet, core=index_core(), rng=rng, profile=profile)


def _latency_cost(fleet: FleetSpec, rng: Random) -> Router:
    return _indexed(_config(_event_tiers(fleet), "latency-cost-scorer"), fleet, rng)


SLO_WEIGHT = 16.0
"""Weight of the chance to meet the objectives beside 2:2:1:1: of 4, 8, 16 and 32 the one with which most requests met theirs."""


def _objectives(fleet: FleetSpec, rng: Random) -> Router:
    tiers = _event_tiers(fleet)
    config = _config(tiers)
    names = [tier.name for tier in tiers]
    scorer = SloAttainmentScorer(SloAttainmentParams())
    profile = Profile(
        [*default_profile(config.weights, tiers=names).scorers, (scorer.type, scorer, SLO_WEIGHT)],
        MaxScorePicker(),
        predictor=(
            LatencyPredictor.type,
            LatencyPredictor(
                PredictedLatencyParams(
                    streaming_mode=True, endpoint_role_label="speed" if len(fleet.speeds) > 1 else ""
                ),
                names,
            ),
        ),
    )
    return IndexedRouter(config, fleet, core=index_core(), rng=rng, profile=profile)


def _latency(fleet: FleetSpec, rng: Random) -> Router:
    return _indexed(_config(_event_tiers(fleet), "fleet-cost-scorer"), fleet, rng)


def _latency_approximate(fleet: FleetSpec, rng: Random) -> Router:
    return _indexed(_config(_learned_tiers(fleet), "fleet-cost-scorer"), fleet, rng)


POLICIES: dict[str, Callable[[FleetSpec, Random], Router]] = {
    "round-robin": lambda _fleet, _rng: RoundRobin(),
    "random": lambda _fleet, rng: RandomChoice(rng),
    "least-queue": _least_queue,
    "session-hash": lambda _fleet, _rng: SessionHash(),
    "approximate": _approximate,
    "precise-gpu": _precise_gpu,
    "precise": _precise,
    "affinity": _affinity,
    "optimized-baseline": _optimized_baseline,
    "dynamo": _dynamo,
    "latency-cost": _latency_cost,
    "slo": _objectives,
    "latency": _latency,
    "latency-approximate": _latency_approximate,
}
"""docs/replay.md describes each. `approximate` and `precise` have the weights 2:2:1:1, `precise-gpu` has 2:2:1:0."""


def replica_configs(fleet: FleetSpec) -> dict[str, KVAtlasConfig]:
    """Return the configurations of which replicas are compared: those of `precise`, `approximate` and `latency`."""
    tiers = _event_tiers(fleet)
    return {
        "weights": _config(tiers),
        "approximate": _config(_learned_tiers(fleet)),
        "latency": _config(tiers, "fleet-cost-scorer"),
    }


def _threshold(uncached_tokens: int) -> Callable[[FleetSpec, Random], Router]:
    def make(fleet: FleetSpec, rng: Random) -> Router:
        config = threshold_config(_event_tiers(fleet), uncached_tokens, encode=ENCODE in fleet.roles)
        return _indexed(config, fleet, rng)

    return make


def _joint(fleet: FleetSpec, rng: Random) -> Router:
    return _indexed(joint_config(_event_tiers(fleet), encode=ENCODE in fleet.roles), fleet, rng)


def _reference(fleet: FleetSpec, rng: Random) -> Router:
    return _indexed(make_plan(reference_config()).config, fleet, rng)


STAGE_POLICIES: dict[str, Callable[[FleetSpec, Random], Router]] = {
    "reference": _reference,
    "threshold": _threshold(512),
    "always": _threshold(1),
    "never": _threshold(NEVER),
    "joint": _joint,
}
"""docs/replay.md describes each; they are for servers with roles."""
