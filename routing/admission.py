"""Admission: requests refused while the fleet is saturated."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from itertools import chain
from types import MappingProxyType

from ..configs.schema import AdmissionConfig
from ..fleet.fleet import Fleet
from ..scorers.core.model import Load
from .refusals import NO_CANDIDATES, SHED
from .router import Refusal


class Admission:
    """Refuses requests of negative priority while the fleet is saturated; every other request is admitted.

    Args:
        config: priorities of objectives, and thresholds of saturation.
        discovered: objective -> priority, for objectives that the configuration does not name.
        idle_interval_s: longest time between two scrapes of an idle endpoint, whose load may be older by that.
    Source: the reference picker's default admission and its `utilization-detector`, with its wording.
    """

    def __init__(
        self,
        config: AdmissionConfig,
        *,
        discovered: Mapping[str, int] = MappingProxyType({}),
        idle_interval_s: float = 0.0,
    ) -> None:
        self._config, self._discovered, self._idle_interval_s = config, discovered, idle_interval_s

    @property
    def max_load_age_s(self) -> float:
        """Return 0 if a request may have a negative priority, and so depend on the load; infinite otherwise."""
        given, found = self._config.objectives, self._discovered
        if not given and not found:  # as most often; asked for at every pick
            return math.inf
        return 0.0 if min(chain(given.values(), found.values())) < 0 else math.inf

    def priority(self, objective: str) -> int:
        """Return the priority of an objective; 0 if it is unknown or empty."""
        return self._config.objectives.get(objective, self._discovered.get(objective, 0))

    def saturation(self, loads: Collection[Load | None], *, now: float) -> float:
        """Return the mean over endpoints of the larger of queue and KV-cache utilization, each over its threshold.

        An endpoint whose load is unknown or too old counts as 1, and so does an empty fleet; 1 is saturated.
        """
        if not loads:
            return 1.0
        return sum(self._endpoint_saturation(load, now) for load in loads) / len(loads)

    def refusal(self, priority: int, loads: Collection[Load | None], *, now: float) -> Refusal | None:
        """Return why a request of that priority is refused, None if it is admitted."""
        return SHED if priority < 0 and self.saturation(loads, now=now) >= 1.0 else None

    def check(self, priority: int, fleet: Fleet) -> Refusal | None:
        """Return why a request of that priority is refused now, None if it is admitted."""
        if priority >= 0:
            return None
        now = time.monotonic()
        loads = [fleet.load(each.name, now=now) for each in fleet if each.addresses.serving]
        return self.refusal(priority, loads, now=now) if loads else NO_CANDIDATES

    def _endpoint_saturation(self, load: Load | None, now: float) -> float:
        config = self._config
        if load is None:
            return 1.0
        is_idle = not load.waiting and not load.running
        oldest_s = config.metrics_staleness_threshold + (self._idle_interval_s if is_idle else 0.0)
        if load.age_s(now) > oldest_s:
            return 1.0
        return max(
            _share(load.waiting, config.queue_depth_threshold),
            _share(load.kv_utilization, config.kv_cache_util_threshold),
        )


def _share(value: float, threshold: float) -> float:
    return value / threshold if threshold else math.inf
