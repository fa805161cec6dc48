"""Registry of the plugins that come with kvatlas."""

from __future__ import annotations

from . import (
    active_request,
    burst_prefix_cache,
    context_length,
    endpoint_attribute,
    header_label_affinity,
    in_flight_load,
    kv_cache_utilization,
    lmetric,
    load_aware,
    lora_affinity,
    mm_embeddings_cache,
    multicluster,
    no_hit_lru,
    p2p_source,
    precise_prefix_cache,
    prefix_cache,
    producers,
    queue,
    running_requests,
    session_affinity,
    tiered_prefix_cache,
    token_load,
    topology_affinity,
    topology_extractor,
)
from .admitters import latency_slo, probabilistic
from .core.registry import Registry
from .deciders import always, prefix_based
from .filters import (
    by_label,
    header_based_testing,
    label_selector,
    prefix_cache_affinity,
    roles,
    saturation,
    slo_headroom_tier,
    utilization,
)
from .filters import endpoint_attribute as attribute_filter
from .filters import session_affinity as session_filter
from .filters import topology_affinity as topology_filter
from .handlers import data_parallel, disagg, header_profile, joint_cost, pd, single
from .latency import attainment, cost, fleet_cost, headroom, predictor
from .pickers import max_score, random_choice, weighted_random
from .requests import agent_identity, attribute_reporter, models_responder, session_id
from .screeners import rollout


def builtin_registry() -> Registry:
    """Return a new registry with every plugin of this package."""
    registry = Registry()
    for plugin in (
        queue,
        running_requests,
        kv_cache_utilization,
        load_aware,
        active_request,
        token_load,
        prefix_cache,
        precise_prefix_cache,
        tiered_prefix_cache,
        cost,
        fleet_cost,
        lmetric,
        headroom,
        attainment,
        lora_affinity,
        session_affinity,
        endpoint_attribute,
        multicluster,
        header_label_affinity,
        topology_affinity,
        topology_extractor,
        no_hit_lru,
        context_length,
        label_selector,
        by_label,
        attribute_filter,
        header_based_testing,
        session_filter,
        topology_filter,
        roles,
        utilization,
        saturation,
        prefix_cache_affinity,
        slo_headroom_tier,
        max_score,
        weighted_random,
        random_choice,
        producers,
        in_flight_load,
        mm_embeddings_cache,
        burst_prefix_cache,
        p2p_source,
        predictor,
        latency_slo,
        probabilistic,
        agent_identity,
        session_id,
        attribute_reporter,
        models_responder,
        rollout,
        always,
        prefix_based,
        single,
        disagg,
        joint_cost,
        pd,
        header_profile,
        data_parallel,
    ):
        plugin.register(registry)
    return registry
