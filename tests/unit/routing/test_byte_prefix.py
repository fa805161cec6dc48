"""Requests to decisions, where endpoints send no events and so are known from the picker's own decisions."""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.configs.engines import EngineCatalog
from kvatlas.configs.schema import WeightsConfig
from kvatlas.configs.scraping import MetricsScrapeConfig
from kvatlas.events.model import BlockStored, EngineHash, MultimodalKey
from kvatlas.events.options import SubscriberOptions
from kvatlas.events.stream import Trust
from kvatlas.events.subscriber import Subscriber
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.metrics import FleetMetrics
from kvatlas.fleet.scrape.loads import LoadTable
from kvatlas.fleet.scrape.report import EngineFacts
from kvatlas.fleet.scrape.schedule import Intervals
from kvatlas.fleet.scrape.scraper import Scraper
from kvatlas.fleet.scrape.target import ScrapeSettings
from kvatlas.fleet.settings import FleetSettings
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.tiers import TierSpec, TierTable
from kvatlas.routing.decision_log import DecisionLog
from kvatlas.routing.metrics import RoutingMetrics
from kvatlas.routing.picker import Picker
from kvatlas.routing.policy import Policy
from kvatlas.routing.records import Records
from kvatlas.routing.router import Route, RoutingRequest
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.weights import default_profile
from kvatlas.tokenization.encoding.tokenizer import load_tokenizer
from kvatlas.tokenization.pipeline import PromptPipeline

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
LONG = "the quick brown fox jumps over the lazy dog " * 8

MakePicker = Callable[[PromptPipeline], Picker]


def ignore(_name: str, _facts: EngineFacts) -> None:
    """Nothing is scraped here."""


@asynccontextmanager
async def fleet_without_events() -> AsyncGenerator[MakePicker]:
    """Make pickers over two endpoints, `a` and `b`, with blocks of 4 tokens."""
    core = index_core("reference")
    registry, loads = CollectorRegistry(), LoadTable(stale_after_s=2)
    subscriber = Subscriber(SubscriberOptions())
    scraper = Scraper(
        loads=loads,
        settings=ScrapeSettings(Intervals(1, 1), timeout_s=1),
        clock=time.monotonic,
        rng=lambda: 0.0,
    )
    fleet = Fleet(
        atlas=Atlas(tiers=TierTable([TierSpec(name="gpu", media=("GPU",))]), seed=0, core=core),
        subscriber=subscriber,
        scraper=scraper,
        loads=loads,
        metrics=FleetMetrics(registry),
        settings=FleetSettings(
            trust_credit=dict.fromkeys(Trust, 1.0),
            capacities=(None,),
            auto_capacity_tiers=(),
            engines=EngineCatalog(MetricsScrapeConfig()),
        ),
    )
    for number, name in enumerate("ab"):
        fleet.add(
            name,
            EndpointAddresses(HostPort(f"10.0.0.{number}", 1), None, (RankAddresses(0, None, None),)),
            {},
        )
        fleet.facts_changed(name, EngineFacts(n_engines=1, block_size=4))
    profile = default_profile(WeightsConfig(), tiers=("gpu",))
    try:
        yield lambda pipeline: Picker(
            pipeline=pipeline,
            fleet=fleet,
            policy=Policy(1, profile),
            records=Records(RoutingMetrics(registry), DecisionLog(max_count=0, max_bytes=1)),
            rng=lambda: 0.0,
        )
    finally:
        await subscriber.close()


async def routed(picker: Picker, path: str, **fields: Any) -> Decision:
    request = RoutingRequest(path=path, body=json.dumps({"model": "m", **fields}).encode())
    route = await picker.route(request)
    assert isinstance(route, Route)
    return route.decision


def matched(decision: Decision, name: str) -> tuple[int, int]:
    """Blocks of the prompt that an endpoint holds, and blocks the prompt has."""
    (found,) = [scored.candidate.prefix for scored in decision.scored if scored.candidate.name == name]
    return (0, 0) if found is None else (found.tier_blocks["gpu"], found.n_blocks)


@pytest.mark.parametrize(
    ("path", "first", "second", "salted"),
    [
        pytest.param(
            TEXT,
            {"prompt": LONG},
            {"prompt": LONG + "and again until the end"},
            {"cache_salt": "s"},
            id="text",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user", "content": LONG}]},
            {"messages": [{"role": "user", "content": LONG}, {"role": "assistant", "content": "and so on"}]},
            {"cache_salt": "s"},
            id="chat",
        ),
    ],
)
async def test_a_prompt_is_found_by_its_bytes_when_no_tokenizer_is_configured(
    path: str, first: dict[str, Any], second: dict[str, Any], salted: dict[str, Any]
) -> None:
    async with fleet_without_events() as make_picker:
        picker = make_picker(PromptPipeline(None))
        went_to = (await routed(picker, path, **first)).picked[0]
        decision = await routed(picker, path, **second)
        n_held, n_blocks = matched(decision, went_to)
        assert decision.picked == (went_to,)
        assert n_held >= len(LONG) // 16
        assert n_held < n_blocks
        assert (decision.no_prefix_reason, decision.n_tokens > 0) == ("no_tokenizer", True)
        assert matched(await routed(picker, path, **second, **salted), went_to)[0] == 0


async def test_ids_and_bytes_never_match_when_both_are_known() -> None:
    async with fleet_without_events() as make_picker:
        picker = make_picker(PromptPipeline(None))
        as_ids = list(array("I", (LONG.encode())[: len(LONG) // 4 * 4]))
        went_to = (await routed(picker, TEXT, prompt=as_ids)).picked[0]
        assert matched(await routed(picker, TEXT, prompt=LONG), went_to)[0] == 0
        assert matched(await routed(picker, TEXT, prompt=as_ids), went_to)[0] == len(as_ids) // 4


async def test_bytes_are_not_looked_at_when_every_endpoint_sends_events() -> None:
    async with fleet_without_events() as make_picker:
        picker = make_picker(PromptPipeline(None))
        for name in "ab":
            stored = BlockStored((EngineHash(1),), None, array("I", [1, 2, 3, 4]), 4)
            picker.fleet.atlas.apply(name, 0, [stored])
        decision = await routed(picker, TEXT, prompt=LONG)
        assert (decision.no_prefix_reason, decision.n_tokens) == ("no_tokenizer", -(-len(LONG) // 4))
        assert matched(decision, "a") == (0, 0)


async def test_the_part_before_an_image_is_used_and_the_answer_says_so(models: dict[str, Path]) -> None:
    async with fleet_without_events() as make_picker:
        picker = make_picker(PromptPipeline(load_tokenizer(models["vision"])))
        image = {"type": "image_url", "image_url": {"url": "data:,x"}}
        text = {"type": "text", "text": LONG}
        went_to = (await routed(picker, CHAT, messages=[{"role": "user", "content": [text]}])).picked[0]
        decision = await routed(picker, CHAT, messages=[{"role": "user", "content": [text, image, text]}])
        n_held, n_blocks = matched(decision, went_to)
    assert (decision.cut_reason, decision.no_prefix_reason) == ("media", None)
    assert n_held == n_blocks > 10


async def test_blocks_with_an_image_are_found_when_the_request_names_it() -> None:
    tokens = list(range(12))
    async with fleet_without_events() as make_picker:
        picker = make_picker(PromptPipeline(None))
        told = ((MultimodalKey("cat", 2),), (MultimodalKey("cat", -2),), None)
        hashes = (EngineHash(1), EngineHash(2), EngineHash(3))
        stored = BlockStored(hashes, None, array("I", tokens), 4, extra_keys=told)
        picker.fleet.atlas.apply("a", 0, [stored])

        async def blocks_of(name: str) -> int:
            places = {
                "mm_hashes": {"image": [name]},
                "mm_placeholders": {"image": [{"offset": 2, "length": 4}]},
            }
            decision = await routed(picker, "/inference/v1/generate", token_ids=[*tokens, 0], features=places)
            return matched(decision, "a")[0]

        assert await blocks_of("cat") == 3
        assert await blocks_of("dog") == 0
