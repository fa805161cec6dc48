"""Answers that contradict what a slower tier was believed to hold."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvatlas.fleet.audit import Audited, Verdict
from kvatlas.fleet.silent_resets import SilentResets


def answer(held: int, reused: int, *, verdict: Verdict = Verdict.UNKNOWN, from_cpu: int = 0) -> Audited:
    return Audited("e", verdict, None, {"cpu": held}, {"gpu": reused, "cpu": from_cpu}, {"cpu": held})


def emptied(*answers: Audited, clears: Sequence[int] = ()) -> list[str]:
    """Return the tiers found empty after these answers, with the resets of the GPU so far at each; none by default."""
    evidence, n_clears = SilentResets(), [*clears, *[0] * len(answers)]
    return [
        tier
        for each, n in zip(answers, n_clears, strict=False)
        for tier in evidence.learn(each, ("cpu",), unit_tokens=16, n_clears=n)
    ]


def test_two_contradictions_show_an_emptied_tier_once() -> None:
    assert emptied(answer(160, 0), answer(96, 0), answer(96, 0)) == ["cpu"]


def test_one_contradiction_is_enough_after_a_reset_of_the_fastest_tier() -> None:
    good = answer(160, 160, verdict=Verdict.GOOD)
    assert emptied(good, answer(160, 0), clears=[0, 1]) == ["cpu"]
    assert emptied(answer(160, 0), answer(0, 64), clears=[1, 1]) == ["cpu"]
    assert emptied(good, answer(160, 0), clears=[1, 1]) == []
    assert emptied(good, answer(160, 0, from_cpu=16), answer(160, 0), clears=[0, 1, 1]) == []


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(answer(160, 0, from_cpu=16), id="the_tier_gave_something"),
        pytest.param(answer(160, 144), id="a_block_less"),
        pytest.param(answer(160, 160, verdict=Verdict.GOOD), id="right"),
        pytest.param(answer(160, 0, verdict=Verdict.TOKENIZER), id="another_prompt"),
        pytest.param(answer(160, 0, verdict=Verdict.TOO_EARLY), id="predicted_blocks"),
        pytest.param(answer(160, 0, verdict=Verdict.STALE), id="lost_events"),
    ],
)
def test_other_answers_show_none(other: Audited) -> None:
    assert emptied(answer(160, 0), other) == []


def test_answers_between_them_that_concern_other_tiers_do_not_count() -> None:
    assert emptied(answer(160, 0), answer(0, 64), answer(160, 0)) == ["cpu"]
