"""The default profile: two load scorers, and one prefix scorer per tier for the two fastest tiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .core.base import Filter, Scorer
from .core.max_score import MaxScorePicker
from .core.prefix_source import OneTier
from .core.profile import Profile
from .kv_cache_utilization import KVCacheUtilizationScorer
from .prefix_cache import PrefixCacheScorer
from .queue import QueueScorer

GPU_PREFIX_NAME = "gpu-prefix-cache-scorer"
CPU_PREFIX_NAME = "cpu-prefix-cache-scorer"


class Weights(Protocol):
    """The four weights; `configs.schema.WeightsConfig` implements it."""

    @property
    def queue(self) -> float:
        """Return the weight of `queue-scorer`."""
        ...

    @property
    def kv_cache_utilization(self) -> float:
        """Return the weight of `kv-cache-utilization-scorer`."""
        ...

    @property
    def gpu_prefix_cache(self) -> float:
        """Return the weight of `gpu-prefix-cache-scorer`."""
        ...

    @property
    def cpu_prefix_cache(self) -> float:
        """Return the weight of `cpu-prefix-cache-scorer`."""
        ...


def default_profile(
    weights: Weights, *, tiers: Sequence[str], filters: Sequence[tuple[str, Filter]] = ()
) -> Profile:
    """Return the profile for the short form `weights:`.

    Args:
        weights: one weight per scorer.
        tiers: names of the configured tiers, fastest first, at least one. `gpu-prefix-cache-scorer` reads the first,
            `cpu-prefix-cache-scorer` the second; it scores 0 if there is no second tier.
        filters: (name, filter), in the order of their calls.
    """
    second = tiers[1] if len(tiers) > 1 else None
    scorers: list[tuple[str, Scorer, float]] = [
        (QueueScorer.type, QueueScorer(), weights.queue),
        (KVCacheUtilizationScorer.type, KVCacheUtilizationScorer(), weights.kv_cache_utilization),
        (GPU_PREFIX_NAME, PrefixCacheScorer(OneTier(tiers[0])), weights.gpu_prefix_cache),
        (CPU_PREFIX_NAME, PrefixCacheScorer(OneTier(second)), weights.cpu_prefix_cache),
    ]
    return Profile(scorers, MaxScorePicker(), filters)
