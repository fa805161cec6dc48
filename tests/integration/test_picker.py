"""The picker with its real parts: who is let in, who is picked, and what stays of the request."""

from __future__ import annotations

import json
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from kvatlas.api.admission import SHED, Admission
from kvatlas.api.decisions import DecisionLog
from kvatlas.api.fleet import Fleet
from kvatlas.api.metrics import Metrics
from kvatlas.api.picker import NO_CANDIDATES, NOT_CACHED, NOT_REWRITTEN, Picker
from kvatlas.api.routing import Overload, Refusal, Route, RoutingRequest
from kvatlas.api.scrape.loads import LoadTable
from kvatlas.api.scrape.report import EngineFacts
from kvatlas.api.scrape.schedule import Rhythm
from kvatlas.api.scrape.scraper import Scraper
from kvatlas.api.scrape.target import ScrapeSettings
from kvatlas.api.tokenization.pipeline import PromptPipeline
from kvatlas.configs.endpoints import endpoint_addresses
from kvatlas.configs.engines import EngineCatalog
from kvatlas.configs.schema import (
    AdmissionConfig,
    EventsConfig,
    MetricsScrapeConfig,
    StaticEndpoint,
    WeightsConfig,
)
from kvatlas.configs.units import Duration
from kvatlas.events.subscriber import Subscriber
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.tiers import TierSpec, TierTable
from kvatlas.scorers.decision import Origin
from kvatlas.scorers.model import Load
from kvatlas.scorers.weights import default_profile

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CHAT = RoutingRequest("/v1/chat/completions", b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}')
TOKENS = RoutingRequest("/v1/completions", json.dumps({"model": "m", "prompt": list(range(64))}).encode())
BATCH = {"x-llm-d-inference-objective": "batch"}
REWRITE = {"x-llm-d-model-name-rewrite": "lora"}


class Parts:
    """A picker over endpoints `a`, `b`, ... with the given queues, none of which has events or is scraped."""

    def __init__(self, queues: dict[str, int], n_fallbacks: int, rng: Callable[[], float]) -> None:
        self.metrics = Metrics()
        self._loads = LoadTable(stale_after_s=60)
        self._subscriber = Subscriber()
        tiers = TierTable([TierSpec(name="gpu", media=("GPU",)), TierSpec(name="cpu", media=("CPU",))])
        self.fleet = Fleet(
            atlas=Atlas(tiers=tiers, seed=0, core=index_core("reference")),
            subscriber=self._subscriber,
            scraper=Scraper(
                loads=self._loads,
                on_facts=lambda _name, _facts: None,
                settings=ScrapeSettings(Rhythm(1, 1), timeout_s=1),
                clock=time.monotonic,
                rng=rng,
            ),
            loads=self._loads,
            metrics=self.metrics,
            auto_capacity_tiers=(),
            trust_credit={},
            engines=EngineCatalog(MetricsScrapeConfig()),
        )
        for name in queues:
            self._add(name)
        self.queue(queues)
        self.picker = Picker(
            pipeline=PromptPipeline(None),
            fleet=self.fleet,
            profile=default_profile(WeightsConfig(), tiers=tiers.names),
            admission=Admission(
                AdmissionConfig(objectives={"batch": -2}, metrics_staleness_threshold=Duration(60))
            ),
            metrics=self.metrics,
            decisions=DecisionLog(max_count=0, max_bytes=1),
            rng=rng,
            n_fallbacks=n_fallbacks,
        )

    def queue(self, queues: dict[str, int]) -> None:
        """Requests that wait at each endpoint."""
        for name, waiting in queues.items():
            self._loads.put(name, Load(waiting, running=0, kv_utilization=0, updated_at=time.monotonic()))

    def picks(self, reason: str) -> float | None:
        """How often a request was routed without prefix for that reason."""
        return self.metrics.registry.get_sample_value(
            "kvatlas_prompts_without_prefix_total", {"reason": reason}
        )

    async def close(self) -> None:
        await self._subscriber.close()

    def _add(self, name: str) -> None:
        endpoint = StaticEndpoint(name=name, address=f"{name}:80", events="", metrics="")
        self.fleet.add(name, endpoint_addresses(endpoint, EventsConfig()), {})
        self.fleet.facts_changed(name, EngineFacts(n_engines=1, block_size=16))


@asynccontextmanager
async def parts(queues: dict[str, int], *, n_fallbacks: int = 0) -> AsyncGenerator[Parts]:
    made = Parts(queues, n_fallbacks, random.Random(1).random)
    try:
        yield made
    finally:
        await made.close()


async def routed(parts: Parts, request: RoutingRequest) -> Route:
    answer = await parts.picker.route(request)
    assert isinstance(answer, Route), answer
    return answer


@pytest.mark.parametrize(
    ("n_fallbacks", "addresses"),
    [
        pytest.param(0, ("b:80",), id="none"),
        pytest.param(2, ("b:80", "d:80", "c:80"), id="next_best_first"),
        pytest.param(9, ("b:80", "d:80", "c:80", "a:80"), id="more_than_there_are"),
    ],
)
async def test_fallbacks_follow_the_picked_endpoint(n_fallbacks: int, addresses: tuple[str, ...]) -> None:
    async with parts({"a": 9, "b": 0, "c": 5, "d": 1}, n_fallbacks=n_fallbacks) as made:
        assert (await routed(made, CHAT)).addresses == addresses  # R4


async def test_equal_fallbacks_come_in_any_order() -> None:
    async with parts({"a": 0, "b": 5, "c": 5, "d": 5}, n_fallbacks=1) as made:
        seconds = {(await routed(made, CHAT)).addresses[1] for _ in range(50)}

        assert seconds == {"b:80", "c:80", "d:80"}


async def test_decision_keeps_whose_request_it_was() -> None:
    headers = BATCH | {"x-gateway-inference-fairness-id": "team-a", "traceparent": TRACE}
    async with parts({"a": 0}) as made:
        route = await routed(made, replace(CHAT, headers=headers, request_id="id-1"))

        assert route.decision.origin == Origin("id-1", TRACE, "batch", -2, "team-a")


async def test_decision_keeps_defaults_for_a_request_that_says_nothing() -> None:
    async with parts({"a": 0}) as made:
        assert (await routed(made, CHAT)).decision.origin == Origin("", "", "", 0, "default-flow")  # R17, R18


async def test_negative_priority_is_shed_while_the_fleet_is_saturated() -> None:
    async with parts({"a": 9, "b": 9}) as made:
        assert await made.picker.route(replace(CHAT, headers=BATCH)) is SHED  # E1
        assert isinstance(await made.picker.route(CHAT), Route)  # E4

        made.queue({"b": 0})
        assert isinstance(await made.picker.route(replace(CHAT, headers=BATCH)), Route)


@pytest.mark.parametrize("headers", [{}, BATCH])
async def test_fleet_without_endpoints_is_unavailable_to_everyone(headers: dict[str, str]) -> None:
    async with parts({}) as made:
        assert await made.picker.route(replace(CHAT, headers=headers)) is NO_CANDIDATES  # E3


async def test_request_for_a_cached_prefix_is_refused_until_one_is_cached() -> None:
    wish = replace(TOKENS, headers={"prefer": "if-available"})
    async with parts({"a": 0, "b": 0}) as made:
        assert await made.picker.route(wish) is NOT_CACHED  # R25
        first = await routed(made, TOKENS)

        assert (await routed(made, wish)).addresses == first.addresses
        assert await made.picker.route(replace(CHAT, headers=wish.headers)) is NOT_CACHED


async def test_request_past_a_limit_is_routed_by_load_without_its_body() -> None:
    async with parts({"a": 3, "b": 0}) as made:
        request = replace(CHAT, body=b"", overload=Overload.HELD_BYTES)

        assert (await routed(made, request)).addresses == ("b:80",)
        assert made.picks("overload_bytes") == 1


async def test_request_past_a_limit_never_goes_to_a_model_it_does_not_want() -> None:
    async with parts({"a": 0}) as made:
        request = replace(CHAT, body=b"", headers=REWRITE, overload=Overload.PENDING_REQUESTS)

        assert await made.picker.route(request) is NOT_REWRITTEN


async def test_rewritten_request_is_decided_as_the_model_it_goes_to() -> None:
    async with parts({"a": 0}) as made:
        route = await routed(made, replace(CHAT, headers=REWRITE))

        assert route.rewrite is not None
        assert json.loads(route.rewrite.body) == json.loads(CHAT.body) | {"model": "lora"}  # R15
        assert (route.rewrite.asked_for, route.decision.model) == ("m", "lora")


async def test_request_to_rewrite_that_is_no_json_is_refused_as_ever() -> None:
    async with parts({"a": 0}) as made:
        answer = await made.picker.route(replace(CHAT, body=b"{", headers=REWRITE))

        assert isinstance(answer, Refusal)
        assert answer.message.startswith("error unmarshaling request bodyMap: ")
