"""Scorers for endpoints that are clusters, by the averages that their pickers export.

`multicluster-queue-scorer` prefers shorter queues, `multicluster-kv-cache-utilization-scorer` more free GPU blocks.
"""

from __future__ import annotations

from functools import partial

from .core.params import BuildContext, NoParams
from .core.registry import Registry
from .endpoint_attribute import EndpointAttributeScorer

QUEUE, UTILIZATION = "multicluster-queue-scorer", "multicluster-kv-cache-utilization-scorer"

QUEUE_SIZE, KV_CACHE_UTILIZATION = "MultiClusterQueueSize", "MultiClusterKVCacheUtilization"
"""Attributes that `multicluster-metrics-extractor` makes: averages, so that a queue may be a part of a request."""


def register(registry: Registry) -> None:
    """Register both, which take no parameters."""
    registry.scorers.add(QUEUE, NoParams, partial(_make, QUEUE_SIZE, None, QUEUE))
    registry.scorers.add(UTILIZATION, NoParams, partial(_make, KV_CACHE_UTILIZATION, (0.0, 1.0), UTILIZATION))


def _make(
    attribute: str, fixed: tuple[float, float] | None, plugin_type: str, _: NoParams, _context: BuildContext
) -> EndpointAttributeScorer:
    return EndpointAttributeScorer(attribute, lower_is_better=True, fixed=fixed, plugin_type=plugin_type)
