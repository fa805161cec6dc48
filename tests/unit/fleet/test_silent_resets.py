"""Answers that contradict what a slower tier was believed to hold."""

from __future__ import annotations

import pytest

from kvatlas.fleet.audit import Audited, Verdict
from kvatlas.fleet.silent_resets import SilentResets


def answer(held: int, reused: int, *, verdict: Verdict = Verdict.UNKNOWN, from_cpu: int = 0) -> Audited:
    return Audited("e", verdict, None, {"cpu": held}, {"gpu": reused, "cpu": from_cpu}, {"cpu": held})


def emptied(*answers: Audited) -> list[str]:
    evidence = SilentResets()
    return [tier for each in answers for tier in evidence.learn(each, ("cpu",), unit_tokens=16)]


def test_two_contradictions_show_an_emptied_tier_once() -> None:
    assert emptied(answer(160, 0), answer(96, 0), answer(96, 0)) == ["cpu"]


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
