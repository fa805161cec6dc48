from __future__ import annotations

import statistics
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.one_by_one import FilterOfOne
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.core.shadow import Draws, RunningMean, ShadowTally, share_interval
from support.candidates import BLOCK_SIZE, endpoint, held, match_of
from support.decisions import Column, Rows, decided
from support.rating import decide
from support.stages import ALWAYS, server, staged

FLEET = [
    endpoint("e0", prefix=held(gpu=2, cpu=6)),
    endpoint("e1", prefix=held(gpu=8)),
    endpoint("e2"),
]


class NotFirst(FilterOfOne):
    """Drops e0."""

    type = "not-first"

    def judge_one(self, request: RequestView, candidate: Candidate) -> str | None:  # noqa: ARG002 (FilterOfOne)
        return "full" if candidate.name == "e0" else None


def decision(rows: Rows, weights: tuple[float, ...] = (1.0,)) -> Decision:
    found = decided(rows, weights, candidates=FLEET)
    return msgspec.structs.replace(found, n_tokens=160)


FIRST, SECOND, THIRD = (decision([[float(n == row)] for row in range(3)]) for n in range(3))


def test_draws_are_replayed_and_continue_with_new_ones() -> None:
    draws = Draws(Random(1).random)
    made = [draws(), draws(), draws()]
    replay, again = draws.replay(), draws.replay()

    assert [replay(), replay()] == made[:2]
    assert [again() for _ in range(3)] == made
    assert replay() == made[2]
    assert again() not in made


def test_draw_of_zero_is_replayed() -> None:
    values = iter([0.0, 0.5])
    draws = Draws(lambda: next(values))
    draws()

    assert draws.replay()() == 0.0


@given(values=st.lists(st.floats(-1e6, 1e6), max_size=30))
def test_running_mean_is_that_of_all_values(values: list[float]) -> None:
    running = RunningMean()
    for value in values:
        running.add(value)

    assert running.n == len(values)
    assert running.mean == pytest.approx(statistics.fmean(values) if values else 0.0, abs=1e-6)
    if len(values) < 2:
        assert running.margin is None
    else:
        wanted = 1.96 * statistics.stdev(values) / len(values) ** 0.5
        assert running.margin == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize(
    ("part", "whole", "interval"),
    [
        pytest.param(0, 0, (0.0, 1.0), id="nothing_known"),
        pytest.param(0, 10, (0.0, 0.2775), id="none"),
        pytest.param(10, 10, (0.7225, 1.0), id="all"),
        pytest.param(15, 50, (0.1910, 0.4375), id="some"),
    ],
)
def test_interval_of_a_share_is_wilsons(part: int, whole: int, interval: tuple[float, float]) -> None:
    assert share_interval(part, whole) == pytest.approx(interval, abs=1e-4)


def test_equal_picks_agree_and_gain_nothing() -> None:
    tally = ShadowTally()
    tally.add(FIRST, FIRST, {"e0": 0.5})

    assert (tally.agreed, tally.disagreed, tally.compared) == (1, 0, 1)
    assert tally.live_tokens == tally.shadow_tokens == {"gpu": 2 * BLOCK_SIZE, "cpu": 4 * BLOCK_SIZE}
    assert (tally.cached_gain.mean, tally.ttft_gain_s.mean, tally.terms) == (0.0, 0.0, {})


def test_other_pick_is_compared_by_tier_time_and_term() -> None:
    tally = ShadowTally()
    shadow = decision([[0.25, 1.0], [0.5, 0.5], [0.0, 0.0]], (4.0, 1.0))
    tally.add(FIRST, shadow, {"e0": 0.5, "e1": 0.2})

    assert (tally.agreed, tally.disagreed, tally.prompt_tokens) == (0, 1, 160)
    assert tally.live_tokens == {"gpu": 2 * BLOCK_SIZE, "cpu": 4 * BLOCK_SIZE}
    assert tally.shadow_tokens == {"gpu": 8 * BLOCK_SIZE}
    assert tally.cached_gain.mean == 2 * BLOCK_SIZE
    assert tally.ttft_gain_s.mean == pytest.approx(0.3)
    assert {name: term.mean for name, term in tally.terms.items()} == {"s0": 1.0, "s1": -0.5}


def test_pick_without_prefix_reuses_nothing_and_times_may_be_unknown() -> None:
    tally = ShadowTally()
    tally.add(SECOND, THIRD, {})

    assert tally.cached_gain.mean == -8 * BLOCK_SIZE
    assert (tally.shadow_tokens, tally.ttft_gain_s.n) == ({}, 0)


def test_live_pick_that_the_shadow_drops_has_no_terms() -> None:
    tally = ShadowTally()
    scorers = [("s0", Column([0.0, 1.0, 0.5]), 1.0)]
    profile = Profile(scorers, MaxScorePicker(), [("f", NotFirst())])
    shadow = decide(profile, RequestView(model="m", now=0.0, n_tokens=160), FLEET)
    tally.add(FIRST, shadow, {})

    assert (tally.disagreed, tally.terms) == (1, {})


def test_shadow_that_drops_all_is_not_compared() -> None:
    tally = ShadowTally()
    tally.add(FIRST, msgspec.structs.replace(FIRST, picked=()), {})

    assert (tally.refused, tally.compared, tally.prompt_tokens) == (1, 0, 0)


def test_usable_tokens_by_tier_end_with_the_usable_prefix() -> None:
    match = match_of(0b0011, 0b1110, n_blocks=4)
    cut, gpu_alone = (
        msgspec.structs.replace(match, held=msgspec.structs.replace(match.held, usable_blocks=n))
        for n in (3, 2)
    )

    assert match.usable_tier_tokens == {"gpu": 2 * BLOCK_SIZE, "cpu": 2 * BLOCK_SIZE}
    assert cut.usable_tier_tokens == {"gpu": 2 * BLOCK_SIZE, "cpu": BLOCK_SIZE}
    assert gpu_alone.usable_tier_tokens == {"gpu": 2 * BLOCK_SIZE}
    assert held(gpu=0, n_blocks=4).usable_tier_tokens == {}


REQUEST = RequestView(model="m", now=0.0, n_tokens=160)


def placed(*fleet: Candidate, is_apart: bool = True) -> Decision:
    """Return a decision with a prefill stage, or without."""
    deciders = {"prefill": ALWAYS} if is_apart else {}
    return decide(staged(ALWAYS, deciders=deciders).profile, REQUEST, fleet)


DECODE = server("d", "decode", cached=1)
IDLE_FIRST = (DECODE, server("p0", "prefill", cached=2), server("p1", "prefill", waiting=9, cached=5))
IDLE_LAST = (DECODE, server("p0", "prefill", waiting=9, cached=2), server("p1", "prefill", cached=5))


def test_same_server_of_every_stage_agrees() -> None:
    tally = ShadowTally()
    tally.add(placed(*IDLE_FIRST), placed(*IDLE_FIRST), {"p0": 0.5})

    assert (tally.agreed, tally.terms) == (1, {})
    assert tally.live_tokens == tally.shadow_tokens == {"gpu": 2 * BLOCK_SIZE}


def test_other_prefill_server_disagrees_and_counts_where_the_prompt_is_computed() -> None:
    tally = ShadowTally()
    tally.add(placed(*IDLE_FIRST), placed(*IDLE_LAST), {"p0": 0.5, "p1": 0.2})

    assert (tally.agreed, tally.disagreed) == (0, 1)
    assert (tally.live_tokens, tally.shadow_tokens) == ({"gpu": 2 * BLOCK_SIZE}, {"gpu": 5 * BLOCK_SIZE})
    assert tally.ttft_gain_s.mean == pytest.approx(0.3)
    assert {name: term.mean for name, term in tally.terms.items()} == {"prefill/queue-scorer": 1.0}


@pytest.mark.parametrize(("live", "shadow"), [(True, False), (False, True)])
def test_stage_that_only_one_of_both_has_apart_disagrees(live: bool, shadow: bool) -> None:
    tally = ShadowTally()
    tally.add(placed(*IDLE_FIRST, is_apart=live), placed(*IDLE_FIRST, is_apart=shadow), {})

    assert (tally.agreed, tally.disagreed) == (0, 1)
    assert tally.cached_gain.mean == (1 if shadow else -1) * BLOCK_SIZE
