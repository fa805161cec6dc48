"""Prefix producers in a plan: which tiers they stand for, how these are known and bounded, and what they are worth."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvatlas.configs.approximate import ApproximateConfig
from kvatlas.configs.decisions import PredictionsConfig
from kvatlas.configs.schema import EventsConfig, TierConfig
from kvatlas.configs.units import Duration
from kvatlas.routing.errors import SchedulingError
from kvatlas.routing.plan.plan import Plan
from support.plans import FLEET, approx, planned, scores

PRECISE = "precise-prefix-cache-producer"


def reads(producer: str) -> dict[str, Any]:
    return {
        "type": "prefix-cache-scorer",
        "name": f"of-{producer}",
        "parameters": {"prefixMatchInfoProducerName": producer},
    }


def tiers_of(plan: Plan) -> list[tuple[str, str, int | str]]:
    return [(tier.name, tier.source, tier.lru_capacity_per_server) for tier in plan.config.tiers]


GPU_ROUTED, CPU_AUTO = ("gpu", "routing", "auto"), ("cpu", "auto", "auto")
STORAGE_AUTO = ("storage", "auto", "auto")
BY_EVENTS = [("gpu", "events", "auto"), ("cpu", "events", "auto"), ("storage", "events", "auto")]


@pytest.mark.parametrize(
    ("plugins", "tiers", "score_of_a"),
    [
        pytest.param(
            [approx("x"), reads("x")], [GPU_ROUTED, CPU_AUTO, STORAGE_AUTO], [0.3], id="engine_size"
        ),
        pytest.param(
            [approx("x", autoTune=False, lruCapacityPerServer=7), reads("x")],
            [("gpu", "routing", 7), CPU_AUTO, STORAGE_AUTO],
            [0.3],
            id="given_size_alone",
        ),
        pytest.param(
            [approx("c", autoTune=False, lruCapacityPerServer=7), approx("g"), reads("g"), reads("c")],
            [GPU_ROUTED, ("cpu", "inferred", 7), STORAGE_AUTO],
            [0.3, 0.8],
            id="given_size_beside_engine_size",
        ),
        pytest.param(
            [
                approx("g", autoTune=False, lruCapacityPerServer=5),
                approx("c", autoTune=False, lruCapacityPerServer=7),
                approx("s", autoTune=False),
                *map(reads, "gcs"),
            ],
            [("gpu", "routing", 5), ("cpu", "inferred", 7), ("storage", "inferred", 31250)],
            [0.3, 0.8, 0.0],
            id="three_given_sizes",
        ),
        pytest.param(
            [
                {"type": "prefix-cache-scorer", "name": "g", "parameters": {"autoTune": True}},
                {
                    "type": "prefix-cache-scorer",
                    "name": "c",
                    "parameters": {"lruCapacityPerServer": 7, "autoTune": False},
                },
            ],
            [GPU_ROUTED, ("cpu", "inferred", 7), STORAGE_AUTO],
            [0.3, 0.8],
            id="scorers_that_are_their_own_producers",
        ),
        pytest.param([PRECISE, reads(PRECISE)], BY_EVENTS, [0.3 + 0.5 * 0.8], id="precise"),
        pytest.param(["precise-prefix-cache-scorer"], BY_EVENTS, [0.3 + 0.5 * 0.8], id="precise_scorer"),
        pytest.param(
            [
                PRECISE,
                approx("g"),
                approx("c", autoTune=False, lruCapacityPerServer=7),
                reads(PRECISE),
                reads("c"),
            ],
            [("gpu", "events", "auto"), ("cpu", "inferred", 7), ("storage", "events", "auto")],
            [0.7, 0.8],
            id="precise_beside_approx",
        ),
        pytest.param(
            [
                "prefix-cache-scorer",
                {"type": "prefix-cache-scorer", "name": "c", "parameters": {"tier": "cpu"}},
            ],
            [("gpu", "auto", "auto"), CPU_AUTO, STORAGE_AUTO],
            [0.3, 0.8],
            id="no_producer_leaves_the_tiers_alone",
        ),
    ],
)
def test_producers_select_tiers_their_sources_and_their_bounds(
    plugins: list[str | dict[str, Any]], tiers: list[tuple[str, str, int | str]], score_of_a: list[float]
) -> None:
    plan = planned(*plugins)

    assert tiers_of(plan) == tiers
    assert [score for _, _, score in scores(plan)[0]] == pytest.approx(score_of_a)


def test_what_the_configuration_says_of_a_tier_itself_stays() -> None:
    own = [
        {"name": "gpu", "media": ["GPU"], "source": "events", "lruCapacityPerServer": 3},
        {"name": "cpu", "media": ["CPU"], "lruCapacityPerServer": "unlimited"},
    ]
    plan = planned(approx("g"), approx("c", autoTune=False, lruCapacityPerServer=7), tiers=own)

    assert tiers_of(plan) == [("gpu", "events", 3), ("cpu", "inferred", "unlimited")]


def test_producer_without_a_tier_left_rates_zero() -> None:
    one_tier = [msgspec.to_builtins(TierConfig(name="gpu", media=("GPU",)))]
    plan = planned(approx("g"), approx("c", autoTune=False), reads("g"), reads("c"), tiers=one_tier)

    assert [score for _, _, score in scores(plan)[0]] == [0.3, 0.0]


@pytest.mark.parametrize(
    ("backends", "score"),
    [
        pytest.param([("gpu", 1.0), ("cpu", 0.4)], 0.3 + 0.5 * 0.4, id="by_medium"),
        pytest.param([("ram", 0.6), ("CPU_PINNED", 0.2)], 0.5 * 0.6, id="largest_of_name_and_media"),
        pytest.param([("gpu", 1.0)], 0.3, id="unnamed_tier_is_worth_nothing"),
    ],
)
def test_credits_of_a_precise_producer_go_by_the_words_of_the_engines(
    backends: list[tuple[str, float]], score: float
) -> None:
    producer = {
        "type": PRECISE,
        "parameters": {
            "indexerConfig": {"kvCacheBackendConfigs": [{"name": n, "weight": w} for n, w in backends]}
        },
    }
    tiers = [{"name": "gpu", "media": ["GPU"]}, {"name": "RAM", "media": ["cpu", "cpu_pinned"]}]
    plan = planned(producer, reads(PRECISE), tiers=tiers)

    (((_, _, found),),) = scores(plan, FLEET[0])

    assert found == pytest.approx(score)


@pytest.mark.parametrize(
    ("parameters", "own", "predictions"),
    [
        pytest.param({}, {}, PredictionsConfig(enabled=True, ttl=Duration(2)), id="default"),
        pytest.param({"speculativeIndexing": False}, {}, PredictionsConfig(enabled=False), id="switched_off"),
        pytest.param({"speculativeTTL": "500ms"}, {}, PredictionsConfig(ttl=Duration(0.5)), id="own_ttl"),
        pytest.param(
            {"speculativeIndexing": False},
            {"ttl": Duration(3)},
            PredictionsConfig(ttl=Duration(3)),
            id="own_section_wins",
        ),
    ],
)
def test_precise_producer_says_whether_what_was_routed_counts(
    parameters: dict[str, Any], own: dict[str, Any], predictions: PredictionsConfig
) -> None:
    producer = {"type": PRECISE, "parameters": parameters}

    assert planned(producer, predictions=own).config.predictions == predictions


@pytest.mark.parametrize("ttl", ["0s", "2", "1m30s", ""])
def test_precise_producer_refuses_impossible_lifetimes(ttl: str) -> None:
    with pytest.raises(SchedulingError, match="speculativeTTL"):
        planned({"type": PRECISE, "parameters": {"speculativeTTL": ttl}})


KV_EVENTS = {"topicFilter": "kv@", "podDiscoveryConfig": {"socketPort": 5556, "replaySocketPort": 5560}}


@pytest.mark.parametrize(
    ("kv_events", "own", "events"),
    [
        pytest.param(
            KV_EVENTS, {}, EventsConfig(port=5556, replay_port=5560, topic_prefix="kv@"), id="ports_and_topic"
        ),
        pytest.param(
            {"discoverPods": False, "zmqEndpoint": "tcp://*:5557"},
            {},
            EventsConfig(mode="bind", bind="tcp://*:5557"),
            id="bound",
        ),
        pytest.param(KV_EVENTS, {"port": 7}, EventsConfig(port=7), id="own_section_wins"),
        pytest.param({}, {}, EventsConfig(), id="nothing_said"),
    ],
)
def test_precise_producer_says_where_events_come_from(
    kv_events: dict[str, Any], own: dict[str, Any], events: EventsConfig
) -> None:
    producer = {"type": PRECISE, "parameters": {"kvEventsConfig": kv_events}}

    assert planned(producer, events=own).config.events == events


@pytest.mark.parametrize(
    ("plugins", "sections", "found"),
    [
        pytest.param(["queue-scorer"], {}, ApproximateConfig(), id="no_producer"),
        pytest.param(
            [approx("x")],
            {},
            ApproximateConfig(min_block_size_tokens=64, max_prefix_tokens_to_match=131_072, max_prefix_blocks_to_match=2048),
            id="defaults_of_the_reference",
        ),
        pytest.param(
            [approx("x", lruCapacityPerServer=5, maxPrefixTokensToMatch=0, maxPrefixBlocksToMatch=3)],
            {"model": {"tokenizer": "folder"}},
            ApproximateConfig(lru_capacity_per_server=5, max_prefix_blocks_to_match=3),
            id="with_a_tokenizer",
        ),
        pytest.param(
            [approx("c", autoTune=False, blockSizeTokens=128), approx("g", blockSizeTokens=32)],
            {"model": {"remoteTokenizer": {"url": "endpoints"}}},
            ApproximateConfig(block_size_tokens=32, max_prefix_tokens_to_match=131_072, max_prefix_blocks_to_match=2048),
            id="fastest_tier",
        ),
        pytest.param(
            [approx("c", autoTune=False, blockSizeTokens=128)],
            {"approximate": {"blockSizeTokens": 8}},
            ApproximateConfig(block_size_tokens=8),
            id="own_section_wins",
        ),
        pytest.param(
            [{"type": "prefix-cache-scorer", "parameters": {"autoTune": False, "lruCapacityPerServer": 7}}],
            {},
            ApproximateConfig(
                auto_tune=False, lru_capacity_per_server=7, max_prefix_tokens_to_match=131_072, max_prefix_blocks_to_match=2048
            ),
            id="older_scorer_without_a_minimum",
        ),
    ],
)  # fmt: skip
def test_approximate_producer_gives_the_sizes_of_its_blocks(
    plugins: list[Any], sections: dict[str, Any], found: ApproximateConfig
) -> None:
    assert planned(*plugins, **sections).config.approximate == found


def test_load_media_and_bursts_of_a_plan_are_those_of_its_producers() -> None:
    plan = planned(
        "queue-scorer",
        {"type": "inflight-load-producer", "parameters": {"addEstimatedOutputTokens": True}},
        {"type": "burst-prefix-cache-producer", "parameters": {"windowDurationMs": 50}},
        "mm-embeddings-cache-producer",
        "mm-embeddings-cache-scorer",
        reads("burst-prefix-cache-producer"),
    )

    assert plan.load is not None
    assert plan.burst is not None
    assert (plan.load.output_tokens(10, asked=None), plan.burst.window_s) == (15, 0.05)
    assert plan.profile.reads_media

    without = planned("queue-scorer", "inflight-load-producer")
    assert (without.load, without.burst, without.profile.reads_media) == (None, None, False)


@pytest.mark.parametrize("key", ["maxPerReplica", "maxBatchSize"])
def test_burst_of_nobody_is_refused(key: str) -> None:
    with pytest.raises(SchedulingError, match=f"{key}: found 0, expected -1"):
        planned({"type": "burst-prefix-cache-producer", "parameters": {key: 0}}, "queue-scorer")


def test_capacity_that_the_index_cannot_hold_is_refused() -> None:
    with pytest.raises(
        SchedulingError, match=f"lruCapacityPerServer: found {10**30}, which is too large, expected"
    ):
        planned(approx("g", lruCapacityPerServer=10**30, autoTune=False), reads("g"))
