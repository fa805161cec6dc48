"""`latency-cost-scorer`: cost of a request per endpoint, learning per group, the report."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import Adapters, Candidate, RequestView
from kvatlas.scorers.core.params import BuildContext
from kvatlas.scorers.errors import ParametersError
from kvatlas.scorers.latency.cost import LatencyCostScorer
from kvatlas.scorers.latency.features import ATTENTION_TOKENS, Typical, features
from kvatlas.scorers.latency.groups import MAX_GROUPS
from kvatlas.scorers.latency.lines import N_LINES, TOKENS_IN_USE
from kvatlas.scorers.latency.params import LatencyCostParams
from kvatlas.scorers.latency.ttft import ADAPTER_MS, BATCH_MS
from support.built import built
from support.candidates import TIERS, endpoint, held, load, match_of
from support.rating import rated, routed_to

REQUEST = RequestView(model="m", now=0.0, n_tokens=160)
GPU_3_CPU_TO_8 = match_of(0b111, 0b11111111, n_blocks=10)
SHORT_OF_A_CHUNK = msgspec.structs.replace(
    GPU_3_CPU_TO_8, held=msgspec.structs.replace(GPU_3_CPU_TO_8.held, usable_blocks=5)
)

PARAMS = LatencyCostParams(
    overhead_ms=10.0,
    prefill_tokens_per_second=1000.0,
    load_tokens_per_second={"cpu": 10_000.0, "storage": 2_000.0},
    scale_ms=100.0,
)
ATTENTION = 160 * 80 / ATTENTION_TOKENS
"""Milliseconds of attention of the cold request, at 1 ms per token."""


NAMES = (
    "overhead",
    "queue",
    "prefill",
    "attention",
    "batch",
    "memory",
    "adapter",
    "load_cpu",
    "load_storage",
)


def quantities(
    candidate: Candidate, request: RequestView = REQUEST, *, in_use: float = math.nan
) -> dict[str, float]:
    """Return the features of an endpoint that are not 0, by name; requests there hold `in_use` tokens of the prompt."""
    accounts = np.zeros((N_LINES, 1))
    accounts[TOKENS_IN_USE] = in_use
    columns, _, _ = features(
        request,
        Candidates.of([candidate]),
        accounts,
        n_tiers=len(TIERS),
        costs=np.full((len(NAMES), 1), 1 / 16),
        pace=1.0,
        typical=Typical(prompt_tokens=1000.0, work_tokens=300.0, residence_ms=5000.0, output_tokens=50.0),
    )
    return {name: each for name, each in zip(NAMES, columns[:, 0].tolist(), strict=True) if each}


MEMORY_OF_FULL = 5000 * (160 * 0.99 / 4000 + 0.99 - 1 + 0.99 / 5)
"""Four requests of 1000 tokens hold 99 % of the blocks; this prompt needs its own, and the first of the four must end."""


BLOCKS_OF_ONE_MORE = 5000 * (160 / 320 + 0.55 - 1 + 0.55 / 3)
"""The rest of this prompt, and the first of the two that run must end; the GPU has room for two prompts."""


def pairs(uncached: float) -> float:
    return uncached * (160 - uncached / 2) / 1e6


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        pytest.param(endpoint(), {"prefill": 160}, id="nothing_cached"),
        pytest.param(endpoint(in_flight=(3, 500)), {"queue": 500, "prefill": 160, "batch": 3}, id="queue"),
        pytest.param(endpoint(prefix=held(gpu=10)), {}, id="all_on_gpu"),
        pytest.param(endpoint(prefix=held(cpu=10)), {"load_cpu": 160}, id="all_in_cpu_memory"),
        pytest.param(
            endpoint(prefix=held(gpu=2, storage=5)), {"prefill": 80, "load_storage": 48}, id="rest_in_storage"
        ),
        pytest.param(endpoint(prefix=GPU_3_CPU_TO_8), {"prefill": 32, "load_cpu": 80}, id="gpu_then_cpu"),
        pytest.param(
            endpoint(prefix=SHORT_OF_A_CHUNK), {"prefill": 80, "load_cpu": 32}, id="usable_part_only"
        ),
        pytest.param(
            endpoint(prefix=GPU_3_CPU_TO_8, credit=0.5), {"prefill": 96, "load_cpu": 40}, id="half_trusted"
        ),
        pytest.param(
            endpoint(prefix=held(gpu=10), of=load(waiting=2, running=4), in_flight=(1, 0)),
            {"queue": 600, "batch": 4},
            id="waiting_requests_of_others",
        ),
        pytest.param(
            endpoint(prefix=held(gpu=10), of=load(waiting=2, running=4), in_flight=(6, 90)),
            {"queue": 90, "batch": 6},
            id="waiting_requests_are_our_own",
        ),
        pytest.param(
            endpoint(of=load(running=4, kv=0.99)),
            {"prefill": 160, "batch": 4, "memory": pytest.approx(MEMORY_OF_FULL)},
            id="gpu_is_full",
        ),
        pytest.param(
            endpoint(of=load(running=4, kv=0.97)), {"prefill": 160, "batch": 4}, id="gpu_is_nearly_full"
        ),
        pytest.param(
            endpoint(of=load(running=2, kv=0.55, gpu_tokens=320), in_flight=(2, 0)),
            {"prefill": 160, "batch": 2, "memory": pytest.approx(BLOCKS_OF_ONE_MORE)},
            id="engine_of_known_size_has_too_little_room",
        ),
        pytest.param(
            endpoint(of=load(running=2, kv=0.51, gpu_tokens=320), in_flight=(2, 0)),
            {"prefill": 160, "batch": 2},
            id="engine_of_known_size_is_nearly_full",
        ),
        pytest.param(
            endpoint(prefix=held(gpu=2), of=load(running=2, kv=0.55, gpu_tokens=320), in_flight=(2, 0)),
            {"prefill": 128, "batch": 2},
            id="blocks_that_are_there_take_no_new_ones",
        ),
        pytest.param(
            endpoint(prefix=held(cpu=2), of=load(running=2, kv=0.55, gpu_tokens=320), in_flight=(2, 0)),
            {
                "prefill": 128,
                "load_cpu": 32,
                "batch": 2,
                "memory": pytest.approx(BLOCKS_OF_ONE_MORE),
            },
            id="loaded_blocks_take_new_ones",
        ),
    ],
)
def test_features_are_what_delays_the_first_token(candidate: Candidate, expected: dict[str, float]) -> None:
    found = quantities(candidate)

    assert found.pop("attention", 0.0) == pytest.approx(pairs(expected.get("prefill", 0)))
    assert found == expected | {"overhead": 1}


@pytest.mark.parametrize(
    ("in_use", "missing"),
    [
        pytest.param(0, 160 / 320, id="nobody"),
        pytest.param(96, 64 / 320, id="some_of_it"),
        pytest.param(160, 0, id="all_of_it"),
        pytest.param(math.nan, 0, id="unknown"),
    ],
)
def test_cached_blocks_that_nobody_uses_take_room_as_new_ones_do(in_use: float, missing: float) -> None:
    whole = endpoint(prefix=held(gpu=10), of=load(running=1, kv=0.9, gpu_tokens=320), in_flight=(1, 0))

    found = quantities(whole, in_use=in_use)

    blocks = missing + 0.9 - 1 + 0.9 / 2 if missing else 0.0
    assert found.get("memory", 0.0) == pytest.approx(5000 * blocks)


def test_an_adapter_that_another_endpoint_has_loaded_costs_its_load() -> None:
    scorer = LatencyCostScorer(PARAMS, TIERS)
    fleet = [
        endpoint("has", of=load(adapters=Adapters(active=frozenset({"m"})))),
        endpoint("has not", of=load(adapters=Adapters())),
    ]

    here, there = (rating.raw for rating in rated(scorer, REQUEST, fleet))

    assert here is not None
    assert there is not None
    assert there - here == pytest.approx(ADAPTER_MS)
    base = msgspec.structs.replace(REQUEST, model="base")
    assert len({rating.raw for rating in rated(scorer, base, fleet)}) == 1


@pytest.mark.parametrize(
    ("candidate", "ms"),
    [
        pytest.param(endpoint(), 10 + 160 + ATTENTION, id="cold"),
        pytest.param(endpoint(in_flight=(1, 90)), 10 + 90 + 160 + ATTENTION + BATCH_MS, id="behind_a_queue"),
        pytest.param(endpoint(prefix=held(gpu=10)), 10, id="on_gpu"),
        pytest.param(endpoint(prefix=held(cpu=10)), 10 + 16, id="in_cpu_memory"),
        pytest.param(endpoint(prefix=held(storage=10)), 10 + 80, id="in_storage"),
    ],
)
def test_scorer_rates_the_expected_milliseconds(candidate: Candidate, ms: float) -> None:
    (rating,) = rated(LatencyCostScorer(PARAMS, TIERS), REQUEST, [candidate])

    assert rating.raw == pytest.approx(ms)
    assert rating.score == pytest.approx(1 / (1 + ms / 100))


def answered(candidate: Candidate, n_tokens: int = 160) -> Decision:
    return routed_to(candidate, n_tokens=n_tokens)


def teach(scorer: LatencyCostScorer, *, prefill_ms: float, load_ms: float, labels: dict[str, str]) -> None:
    """Teach the scorer with requests of many lengths, some cold, some half in CPU memory, with 10 ms overhead."""
    for number in range(1000):
        n_blocks = 1 + number % 37
        cached = n_blocks // 2 if number % 2 else 0
        candidate = endpoint(labels=labels, prefix=held(cpu=cached, n_blocks=n_blocks))
        tokens, loaded = n_blocks * 16, cached * 16
        ms = 10 + (tokens - loaded) * prefill_ms + loaded * load_ms
        scorer.answered(answered(candidate, tokens), ttft_s=ms / 1000)


def test_groups_are_learned_separately_and_reported_with_their_credits() -> None:
    params = LatencyCostParams(
        overhead_ms=10.0,
        prefill_tokens_per_second=1000.0,
        load_tokens_per_second={"cpu": 10_000.0},
        group_label="gpu",
    )
    scorer = LatencyCostScorer(params, ("gpu", "cpu"))
    teach(scorer, prefill_ms=4.0, load_ms=1.0, labels={"gpu": "old"})
    teach(scorer, prefill_ms=0.5, load_ms=0.4, labels={"gpu": "new"})

    old, new = scorer.reports()
    assert (old.group, old.is_fitted, new.group, new.is_fitted) == ("old", True, "new", True)
    assert old.costs_ms["prefill"] == pytest.approx(4.0, rel=0.1)
    assert old.costs_ms["load_cpu"] == pytest.approx(1.0, rel=0.1)
    assert old.credits == {"cpu": pytest.approx(0.75, abs=0.05)}
    assert new.credits == {"cpu": pytest.approx(0.2, abs=0.1)}
    cold_old, cold_new = rated(
        scorer, REQUEST, [endpoint("a", labels={"gpu": "old"}), endpoint("b", labels={"gpu": "new"})]
    )
    assert cold_old.score < cold_new.score


def test_a_load_that_costs_more_than_computing_has_no_credit() -> None:
    scorer = LatencyCostScorer(PARAMS, ("gpu", "cpu"))
    teach(scorer, prefill_ms=0.1, load_ms=1.0, labels={})

    assert scorer.reports()[0].credits == {"cpu": 0.0}


def test_configured_costs_stay_when_the_fit_is_off() -> None:
    params = LatencyCostParams(fit=False)
    scorer = LatencyCostScorer(params, ("gpu", "cpu"))
    teach(scorer, prefill_ms=4.0, load_ms=1.0, labels={})

    for _ in range(60):
        scorer.ended(answered(endpoint()), tpot_s=9.0)

    assert scorer.reports() == scorer.model.tpot.fits.reports() == []
    prefill = 160 / 15.928 * (1 + 80 / ATTENTION_TOKENS)
    assert rated(scorer, REQUEST, [endpoint()])[0].raw == pytest.approx(30 + prefill)


def test_speed_of_a_group_is_not_that_of_single_endpoints() -> None:
    scorer = LatencyCostScorer(LatencyCostParams(group_label="zone"), ("gpu",))
    fleet = [endpoint(name, labels={"zone": "z"}) for name in "ab"]
    for number in range(60):
        request = RequestView("m", now=100.0 * number, n_tokens=1000)
        rated(scorer, request, fleet)
        decision = routed_to(fleet[0], n_tokens=1000, at=request.now)
        scorer.picked(request, decision)
        scorer.answered(decision, ttft_s=0.5)
        scorer.ended(decision, tpot_s=None)

    found = [each.raw for each in rated(scorer, RequestView("m", now=1e6, n_tokens=1000), fleet)]
    assert found == pytest.approx([500.0, 500.0], rel=0.1)


def test_groups_are_bounded_and_further_ones_share_one() -> None:
    scorer = LatencyCostScorer(LatencyCostParams(group_label="zone"), ("gpu",))
    for number in range(MAX_GROUPS + 5):
        scorer.answered(answered(endpoint(labels={"zone": str(number)})), ttft_s=0.1)

    groups = [report.group for report in scorer.reports()]
    assert len(groups) == MAX_GROUPS + 1
    assert groups[-1] == ""
    assert scorer.reports()[-1].n_observations == pytest.approx(5, abs=0.1)


def test_groups_without_endpoints_give_way_to_others() -> None:
    scorer = LatencyCostScorer(LatencyCostParams(group_label="zone"), ("gpu",))
    fits = scorer.model.ttft.fits
    for number in range(3 * MAX_GROUPS):
        fleet = [endpoint(str(each), labels={"zone": str(each)}) for each in (0, number)]
        rated(scorer, REQUEST, fleet)
        for each in fleet:
            scorer.answered(answered(each), ttft_s=0.1)

    groups = [report.group for report in scorer.reports()]
    assert groups == ["0", *(str(each) for each in range(2 * MAX_GROUPS + 1, 3 * MAX_GROUPS))]
    assert fits.costs_of("5") == fits.costs_of("")
    assert scorer.reports()[0].n_observations > 100

    scorer.answered(answered(endpoint("5", labels={"zone": "5"})), ttft_s=0.1)
    assert [report.group for report in scorer.reports()] == [*groups, ""], (
        "a late response of one that is gone"
    )


def test_groups_with_endpoints_keep_their_place() -> None:
    scorer = LatencyCostScorer(LatencyCostParams(group_label="zone"), ("gpu",))
    fleet = [endpoint(str(each), labels={"zone": str(each)}) for each in range(MAX_GROUPS + 3)]
    rated(scorer, REQUEST, fleet)
    for each in fleet:
        scorer.answered(answered(each), ttft_s=0.1)

    groups = [report.group for report in scorer.reports()]
    assert groups == [*(str(each) for each in range(MAX_GROUPS)), ""]


def test_default_load_speeds_follow_the_position_of_the_tier() -> None:
    scorer = LatencyCostScorer(LatencyCostParams(), ("a", "b", "c", "d"))
    scorer.answered(answered(endpoint()), ttft_s=0.1)

    costs = scorer.reports()[0].costs_ms
    assert [costs[f"load_{tier}"] for tier in "bcd"] == pytest.approx([0.01, 0.05, 0.05])


def test_load_speed_of_an_unknown_tier_is_rejected() -> None:
    with pytest.raises(ParametersError, match="found 'ram', expected a configured tier"):
        built(
            builtin_registry().scorers,
            "latency-cost-scorer",
            {"loadTokensPerSecond": {"ram": 1.0}},
            BuildContext(tiers=TIERS),
        )


def test_unknown_load_scores_0_only_beside_known_ones() -> None:
    """A server that is down fails its requests at once, so that nothing ever waits there."""
    scorer = LatencyCostScorer(PARAMS, TIERS)
    down, busy = (
        endpoint("down", prefix=held(gpu=9)),
        endpoint("busy", of=load(waiting=50, running=50, kv=1.0)),
    )

    beside_known = [each.score for each in rated(scorer, REQUEST, [down, busy])]
    assert beside_known[0] == 0.0 < beside_known[1]
    both_down = [each.score for each in rated(scorer, REQUEST, [down, endpoint("new")])]
    assert both_down[0] > both_down[1] > 0.0
