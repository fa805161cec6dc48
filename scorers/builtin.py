"""The plugins that come with kvatlas."""

from __future__ import annotations

from . import kv_cache_utilization, max_score, prefix_cache, queue
from .registry import Registry


def builtin_registry() -> Registry:
    """A new registry with every scorer and picker of this package."""
    registry = Registry()
    queue.register(registry)
    kv_cache_utilization.register(registry)
    prefix_cache.register(registry)
    max_score.register(registry)
    return registry
