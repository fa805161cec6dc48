"""A picker with its real parts, in this process."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from prometheus_client import CollectorRegistry

from kvatlas.configs.endpoints import endpoint_addresses
from kvatlas.configs.engines import EngineCatalog
from kvatlas.configs.schema import AdmissionConfig, EventsConfig, StaticEndpoint, WeightsConfig
from kvatlas.configs.scraping import MetricsScrapeConfig
from kvatlas.configs.units import Duration
from kvatlas.events.subscriber import Subscriber
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.metrics import FleetMetrics
from kvatlas.fleet.replicas.knowledge import Knowledge
from kvatlas.fleet.scrape.loads import LoadTable
from kvatlas.fleet.scrape.report import EngineFacts
from kvatlas.fleet.scrape.schedule import Intervals
from kvatlas.fleet.scrape.scraper import Scraper
from kvatlas.fleet.scrape.target import ScrapeSettings
from kvatlas.fleet.settings import FleetSettings
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.tiers import TierSpec, TierTable
from kvatlas.routing.admission import Admission
from kvatlas.routing.decision_log import DecisionLog
from kvatlas.routing.metrics import RoutingMetrics
from kvatlas.routing.model_rewrite import ModelRules
from kvatlas.routing.picker import Picker, PickerOptions
from kvatlas.routing.policy import Policy, RequestPolicy
from kvatlas.routing.records import Records
from kvatlas.scorers.core.model import Load
from kvatlas.scorers.weights import default_profile
from kvatlas.tokenization.pipeline import PromptPipeline


class Catalog:
    """Lists of models that a test writes."""

    def __init__(self) -> None:
        self.list: bytes | None = None
        self.addresses: dict[str, frozenset[str]] = {}

    def merged(self) -> bytes | None:
        """See `ModelCatalog`."""
        return self.list

    def addresses_of(self, model: str) -> frozenset[str] | None:
        """See `ModelCatalog`."""
        return self.addresses.get(model)


class PickerParts:
    """A picker over endpoints `a`, `b`, ... with the given queues, none of which has events or is scraped."""

    def __init__(
        self,
        queues: dict[str, int],
        n_fallbacks: int,
        rng: Callable[[], float],
        endpoint_labels: Callable[[str], dict[str, str]] | None,
        rules: ModelRules | None,
        labels: dict[str, str] | None = None,
        knowledge: Knowledge | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self._loads = LoadTable(stale_after_s=60)
        self._subscriber = Subscriber()
        self.models = Catalog()
        self.labels = labels or {}
        tiers = TierTable([TierSpec(name="gpu", media=("GPU",)), TierSpec(name="cpu", media=("CPU",))])
        self.fleet = self._make_fleet(tiers, rng)
        for name in queues:
            self._add(name)
        self.queue(queues)
        self.picker = Picker(
            pipeline=PromptPipeline(None),
            fleet=self.fleet,
            policy=Policy(
                1,
                default_profile(WeightsConfig(), tiers=tiers.names),
                Admission(
                    AdmissionConfig(objectives={"batch": -2}, metrics_staleness_threshold=Duration(60))
                ),
            ),
            records=Records(RoutingMetrics(self.registry), DecisionLog(max_count=0, max_bytes=1)),
            rng=rng,
            options=PickerOptions(n_fallbacks, rules, endpoint_labels, self.models, knowledge),
        )

    def _make_fleet(self, tiers: TierTable, rng: Callable[[], float]) -> Fleet:
        return Fleet(
            atlas=Atlas(tiers=tiers, seed=0, core=index_core("reference")),
            subscriber=self._subscriber,
            scraper=Scraper(
                loads=self._loads,
                settings=ScrapeSettings(Intervals(1, 1), timeout_s=1),
                clock=time.monotonic,
                rng=rng,
            ),
            loads=self._loads,
            metrics=FleetMetrics(self.registry),
            settings=FleetSettings(
                trust_credit={},
                capacities=(None, None),
                auto_capacity_tiers=(),
                engines=EngineCatalog(MetricsScrapeConfig()),
            ),
        )

    def act_on_requests(self, requests: RequestPolicy) -> None:
        """Have requests read and answered by that policy from now on."""
        self.picker.use(replace(self.picker.policy, requests=requests))

    def queue(self, queues: dict[str, int]) -> None:
        """Set the number of requests that wait at each endpoint."""
        for name, waiting in queues.items():
            self._loads.put(name, Load(waiting, running=0, kv_utilization=0, updated_at=time.monotonic()))

    def picks(self, reason: str) -> float | None:
        """Return how often a request was routed without prefix for that reason."""
        return self.registry.get_sample_value("kvatlas_prompts_without_prefix_total", {"reason": reason})

    async def close(self) -> None:
        await self._subscriber.close()

    def _add(self, name: str) -> None:
        endpoint = StaticEndpoint(name=name, address=f"{name}:80", events="", metrics="")
        self.fleet.add(name, endpoint_addresses(endpoint, EventsConfig()), self.labels)
        self.fleet.facts_changed(name, EngineFacts(n_engines=1, block_size=16))


@asynccontextmanager
async def picker_parts(
    queues: dict[str, int],
    *,
    n_fallbacks: int = 0,
    endpoint_labels: Callable[[str], dict[str, str]] | None = None,
    rules: ModelRules | None = None,
    labels: dict[str, str] | None = None,
    knowledge: Knowledge | None = None,
) -> AsyncGenerator[PickerParts]:
    made = PickerParts(
        queues, n_fallbacks, random.Random(1).random, endpoint_labels, rules, labels, knowledge
    )
    try:
        yield made
    finally:
        await made.close()
