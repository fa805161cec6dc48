"""Prefix scorers: share of the prompt, length of the match, credits of tiers, trust, prompts without keys."""

from __future__ import annotations

import pytest

from kvatlas.indexer.match import PrefixMatch
from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.model import Candidate, Rating, RequestView
from kvatlas.scorers.core.params import BuildContext
from kvatlas.scorers.core.prefix_columns import PrefixColumns
from kvatlas.scorers.core.prefix_source import OneTier, PrefixSource, TierCredits
from kvatlas.scorers.errors import ParametersError
from kvatlas.scorers.prefix_cache import PrefixCacheScorer
from kvatlas.scorers.tiered_prefix_cache import TieredPrefixCacheScorer
from support.built import built
from support.candidates import endpoint, held, match_of
from support.rating import rated

REQUEST = RequestView(model="m", now=0.0, n_tokens=160)
CONTEXT = BuildContext(tiers=("gpu", "cpu", "storage"), sources={"cpu-lru": OneTier("cpu")})


@pytest.mark.parametrize(
    ("tier", "candidate", "rating"),
    [
        pytest.param("gpu", endpoint(prefix=held(gpu=5, cpu=9)), Rating(raw=5.0, score=0.5), id="gpu_share"),
        pytest.param("cpu", endpoint(prefix=held(gpu=5, cpu=9)), Rating(raw=9.0, score=0.9), id="cpu_share"),
        pytest.param("gpu", endpoint(prefix=held(gpu=10)), Rating(raw=10.0, score=1.0), id="whole_prompt"),
        pytest.param("gpu", endpoint(prefix=held()), Rating(raw=0.0, score=0.0), id="nothing_held"),
        pytest.param(
            "gpu",
            endpoint(prefix=held(gpu=5), credit=0.5),
            Rating(raw=5.0, score=0.25),
            id="credit_multiplies",
        ),
        pytest.param(
            "gpu", endpoint(prefix=held(gpu=5), credit=0.0), Rating(raw=5.0, score=0.0), id="no_credit"
        ),
        pytest.param(
            "gpu",
            endpoint(prefix=held(gpu=12)),
            Rating(raw=12.0, score=1.0),
            id="more_than_the_prompt_is_clamped",
        ),
        pytest.param(
            "gpu",
            endpoint(prefix=held(gpu=5), credit=-1.0),
            Rating(raw=5.0, score=0.0),
            id="negative_credit_is_clamped",
        ),
        pytest.param(
            "gpu", endpoint(prefix=held(n_blocks=0)), Rating(raw=0.0, score=0.0), id="prompt_below_one_block"
        ),
        pytest.param("gpu", endpoint(), Rating(raw=None, score=0.0), id="request_without_keys"),
        pytest.param(
            "disk", endpoint(prefix=held(gpu=5)), Rating(raw=0.0, score=0.0), id="tier_not_in_the_match"
        ),
        pytest.param(
            None, endpoint(prefix=held(gpu=5)), Rating(raw=0.0, score=0.0), id="fleet_without_the_tier"
        ),
    ],
)
def test_prefix_scorer_rates_the_share_of_the_prompt(
    tier: str | None, candidate: Candidate, rating: Rating
) -> None:
    assert list(rated(PrefixCacheScorer(OneTier(tier)), REQUEST, [candidate])) == [rating]


@pytest.mark.parametrize(
    ("matched", "n_blocks", "score"),
    [
        pytest.param(5, 10, 0.25125, id="short_match"),
        pytest.param(50, 100, 0.375, id="longer_match_of_the_same_share"),
        pytest.param(200, 400, 0.75, id="length_is_full"),
    ],
)
def test_prefix_scorer_rates_the_length_of_the_match_when_weighted(
    matched: int, n_blocks: int, score: float
) -> None:
    scorer = PrefixCacheScorer(OneTier("gpu"), length_weight=0.5, length_scale_tokens=100)
    match = match_of((1 << matched) - 1, n_blocks=n_blocks, block_size=1)

    assert rated(scorer, REQUEST, [endpoint(prefix=match)])[0].score == pytest.approx(score)


GPU_TO_3_AND_CPU_TO_8 = match_of(0b111, 0b11111111, n_blocks=10)
HOLE_IN_GPU = match_of(0b11011, 0b00100, n_blocks=10)


@pytest.mark.parametrize(
    ("prefix", "worths", "blocks"),
    [
        pytest.param(GPU_TO_3_AND_CPU_TO_8, (1.0, 0.8), 3 + 5 * 0.8, id="union_of_two_tiers"),
        pytest.param(GPU_TO_3_AND_CPU_TO_8, (1.0,), 3.0, id="tier_without_credit_is_worth_nothing"),
        pytest.param(HOLE_IN_GPU, (1.0, 0.5), 4.5, id="hole_filled_by_a_slower_tier"),
        pytest.param(held(cpu=1), (1.0, 0.8), 0.8, id="one_cpu_block_is_not_rounded_away"),
        pytest.param(held(storage=10), (1.0, 0.8, 0.4), 4.0, id="storage"),
    ],
)
def test_tiered_scorer_gives_each_block_the_credit_of_its_fastest_tier(
    prefix: PrefixMatch, worths: tuple[float, ...], blocks: float
) -> None:
    (rating,) = rated(TieredPrefixCacheScorer(worths), REQUEST, [endpoint(prefix=prefix, credit=0.5)])

    assert rating.raw == pytest.approx(blocks)
    assert rating.score == pytest.approx(0.5 * blocks / 10)


@pytest.mark.parametrize(
    ("plugin_type", "parameters", "context", "score"),
    [
        pytest.param("prefix-cache-scorer", {}, CONTEXT, 0.3, id="fastest_tier"),
        pytest.param("prefix-cache-scorer", {"tier": "cpu"}, CONTEXT, 0.8, id="named_tier"),
        pytest.param(
            "prefix-cache-scorer",
            {"prefixMatchInfoProducerName": "cpu-lru"},
            CONTEXT,
            0.8,
            id="tier_of_a_producer",
        ),
        pytest.param(
            "prefix-cache-scorer",
            {"lruCapacityPerServer": 9},
            BuildContext(tiers=("gpu", "cpu"), own=OneTier("cpu")),
            0.8,
            id="tier_of_its_own_index",
        ),
        pytest.param(
            "precise-prefix-cache-scorer",
            {},
            BuildContext(tiers=("gpu", "cpu"), own=TierCredits((1.0, 0.8))),
            0.7,
            id="credits_of_its_own_producer",
        ),
        pytest.param("tiered-prefix-cache-scorer", {}, CONTEXT, 0.7, id="default_credits"),
        pytest.param("tiered-prefix-cache-scorer", {"credits": {"cpu": 0.5}}, CONTEXT, 0.55, id="one_credit"),
        pytest.param("prefix-cache-scorer", {}, BuildContext(), 0.0, id="no_tiers_at_all"),
    ],
)
def test_prefix_scorers_read_what_their_parameters_name(
    plugin_type: str, parameters: dict[str, object], context: BuildContext, score: float
) -> None:
    scorer = built(builtin_registry().scorers, plugin_type, parameters, context)

    (rating,) = rated(scorer, REQUEST, [endpoint(prefix=GPU_TO_3_AND_CPU_TO_8)])
    assert scorer.type == plugin_type
    assert rating.score == pytest.approx(score)


@pytest.mark.parametrize(
    ("plugin_type", "parameters", "message"),
    [
        pytest.param(
            "prefix-cache-scorer",
            {"tier": "gpus"},
            "found 'gpus', expected a configured tier; known: gpu, cpu, storage",
            id="tier",
        ),
        pytest.param(
            "prefix-cache-scorer",
            {"prefixMatchInfoProducerName": "cpu"},
            "found 'cpu', expected the name of a prefix cache producer; known: cpu-lru",
            id="producer",
        ),
        pytest.param(
            "tiered-prefix-cache-scorer",
            {"credits": {"ram": 1.0}},
            "found 'ram', expected a configured tier; known: gpu, cpu, storage",
            id="credit",
        ),
        pytest.param("tiered-prefix-cache-scorer", {"credits": {"cpu": 1.5}}, "<= 1", id="credit_above_one"),
    ],
)
def test_prefix_scorers_reject_unconfigured_tiers_and_producers(
    plugin_type: str, parameters: dict[str, object], message: str
) -> None:
    with pytest.raises(ParametersError) as raised:
        built(builtin_registry().scorers, plugin_type, parameters, CONTEXT)

    assert message in str(raised.value)


@pytest.mark.parametrize("source", [OneTier("gpu"), TierCredits((1.0,))], ids=["one_tier", "credits"])
def test_a_source_never_counts_more_than_the_prompt(source: PrefixSource) -> None:
    prefixes = PrefixColumns.of([held(gpu=10), held(gpu=3)])

    assert prefixes is not None
    assert source.blocks(prefixes).tolist() == [10.0, 3.0]


@pytest.mark.parametrize(("whole", "expected"), [(False, [3.4, 0.8]), (True, [3.0, 0.0])])
def test_credited_blocks_are_cut_down_to_whole_ones_on_request(whole: bool, expected: list[float]) -> None:
    prefixes = PrefixColumns.of([held(gpu=1, cpu=4), held(cpu=1)])

    assert prefixes is not None
    assert TierCredits((1.0, 0.8), whole).blocks(prefixes).tolist() == pytest.approx(expected)
