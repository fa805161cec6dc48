"""Registry of the plugins that come with kvatlas."""

from __future__ import annotations

from . import (
    active_request,
    context_length,
    kv_cache_utilization,
    load_aware,
    lora_affinity,
    no_hit_lru,
    precise_prefix_cache,
    prefix_cache,
    producers,
    queue,
    running_requests,
    session_affinity,
    tiered_prefix_cache,
    token_load,
)
from .core.registry import Registry
from .filters import decode_role, label_selector, prefix_cache_affinity, saturation, utilization
from .latency import cost
from .pickers import max_score, random_choice, weighted_random


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
        lora_affinity,
        session_affinity,
        no_hit_lru,
        context_length,
        label_selector,
        decode_role,
        utilization,
        saturation,
        prefix_cache_affinity,
        max_score,
        weighted_random,
        random_choice,
        producers,
    ):
        plugin.register(registry)
    return registry
