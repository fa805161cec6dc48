"""Observers of routing, which change nothing of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from ...configs.schema import KVAtlasConfig
from ...fleet.endpoint import Endpoint
from ...fleet.fleet import Fleet
from ...fleet.lmcache.directory import Directory
from ...indexer.prefix import Prefix
from ...scorers.core.base import Rng
from ...scorers.core.decision import Decision
from ...scorers.core.model import RequestView
from ...scorers.core.scheduler import Deciding
from ...scorers.core.shadow import Draws, Repeat
from ..kv_size import KvSize, kv_size
from ..outcome import Completion
from ..router import Arrival, Route
from .capacity.curve import CapacityCurve
from .capacity.metrics import capacity_families
from .recorder.metrics import recorder_families
from .recorder.recorder import Recorder
from .shadow.metrics import shadow_families
from .shadow.shadow import Shadow


class Observers:
    """The observers that a configuration enables.

    Args:
        config: the configuration.
        fleet: endpoints.

    Raises:
        RecorderError: the recorder's secret cannot be used.
    """

    def __init__(self, config: KVAtlasConfig, fleet: Fleet) -> None:
        self.recorder = Recorder(config.recorder) if config.recorder.folder else None
        """None if nothing is recorded."""
        self.capacity = (
            CapacityCurve(config.capacity_curve, fleet, _KvSizes(config).of)
            if config.capacity_curve.enabled
            else None
        )
        """None if no curve is kept."""
        self.shadow = _shadow(config)
        """None if no second configuration decides too."""
        self.directory = (
            Directory(fleet, config.lmcache.directory, next(iter(config.model.names), ""))
            if config.lmcache.directory.url
            else None
        )
        """None if no directory of LMCache is asked."""
        self._is_running = False

    def use(self, config: KVAtlasConfig) -> None:
        """Follow a change of the configuration in force; a shadow with the same settings keeps what it learned."""
        before = self.shadow
        if before is not None and before.config == config.shadow:
            before.follow(config)
            return
        if before is not None:
            before.cancel()
        self.shadow = _shadow(config)
        if self.shadow is not None and self._is_running:
            self.shadow.start()

    def start(self) -> None:
        """Start all observers."""
        self._is_running = True
        if self.capacity is not None:
            self.capacity.start()
        if self.shadow is not None:
            self.shadow.start()
        if self.recorder is not None:
            self.recorder.start()
        if self.directory is not None:
            self.directory.start()

    async def stop(self) -> None:
        """Finish pending work. Call it after the last request."""
        if self.capacity is not None:
            await self.capacity.stop()
        if self.shadow is not None:
            await self.shadow.stop()
        if self.recorder is not None:
            await self.recorder.stop()
        if self.directory is not None:
            await self.directory.stop()

    @property
    def max_load_age_s(self) -> float:
        """Return the age up to which the load of endpoints with known requests will do."""
        return self.shadow.max_load_age_s if self.shadow is not None else math.inf

    def draws(self, rng: Rng) -> Draws | None:
        """Return draws for a decision, for `routed`; None if `rng` itself will do."""
        return self.shadow.draws(rng) if self.shadow is not None else None

    def routed(
        self, view: RequestView, decision: Decision, prefix: Prefix | None, repeat: Repeat | None
    ) -> tuple[Arrival | None, Deciding | None]:
        """Observe a routed request; returns what its route keeps for `first_token` and `ended`, see `Route`."""
        shadow: Deciding | None = None
        if self.shadow is not None and repeat is not None:
            shadow = self.shadow.routed(view, decision, repeat)
        if self.capacity is not None:
            self.capacity.routed(decision, prefix)
        if self.directory is not None:
            self.directory.routed(prefix, now=view.now)
        return self.recorder.routed(decision, prefix) if self.recorder is not None else None, shadow

    def first_token(self, route: Route, *, ttft_s: float) -> None:
        """Observe the first token of a routed request."""
        if self.shadow is not None:
            self.shadow.first_token(route.decision, route.shadow, ttft_s=ttft_s)

    def ended(self, completion: Completion) -> None:
        """Observe the end of a request."""
        if self.shadow is not None and completion.route is not None:
            route, n_output = completion.route, completion.output_tokens
            self.shadow.ended(
                route.decision,
                route.shadow,
                tpot_s=completion.tpot_s,
                n_output=n_output,
                is_refused=not completion.was_computed,
            )
        if self.recorder is not None:
            self.recorder.ended(completion)

    def families(self) -> Iterator[Metric]:
        """Yield the metrics of all observers."""
        yield from capacity_families(self.capacity)
        yield from recorder_families(self.recorder)
        yield from shadow_families(self.shadow)
        if self.directory is not None:
            yield from self.directory.families()


def _shadow(config: KVAtlasConfig) -> Shadow | None:
    is_wanted = config.shadow.policy is not None or config.shadow.file
    return Shadow(config.shadow, config) if is_wanted else None


class _KvSizes:
    """Memory per token on each endpoint, by the model that it serves."""

    def __init__(self, config: KVAtlasConfig) -> None:
        self._sizes = [(model.endpoint_labels, kv_size(model)) for model in config.served_models]

    def of(self, endpoint: Endpoint) -> KvSize | None:
        return next((size for labels, size in self._sizes if endpoint.has_labels(labels)), None)
