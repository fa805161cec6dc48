"""Engines that compute the last matched block again: what answers teach about them."""

from __future__ import annotations

import pytest

from kvatlas.fleet.audit import Audited, Verdict
from kvatlas.fleet.drafters import ENOUGH, LABEL, DroppedBlock


def answer(expected: int, reused: int, verdict: Verdict = Verdict.UNKNOWN) -> Audited:
    return Audited("e", verdict, None, {"gpu": expected} if expected else {}, {"gpu": reused})


def taught(drafter: DroppedBlock, *answers: tuple[int, int]) -> list[bool]:
    return [
        drafter.learn(answer(*each), dropped=drafter.n_blocks, block_size=16, chunk_blocks=2)
        for each in answers
    ]


def test_answers_a_block_or_a_chunk_too_high_in_a_row_show_a_drafter() -> None:
    drafter = DroppedBlock({})
    assert taught(drafter, (64, 48), (32, 16), (64, 32), (16, 0)) == [False, False, False, True]
    assert (drafter.n_blocks, ENOUGH) == (1, 4)


def test_one_right_answer_between_them_shows_none() -> None:
    drafter = DroppedBlock({})
    assert not any(taught(drafter, *[(64, 48)] * 3, (32, 32), *[(64, 48)] * 3))


@pytest.mark.parametrize("other", [(64, 0), (0, 0), (64, 56)])
def test_answers_that_tell_nothing_do_not_count(other: tuple[int, int]) -> None:
    drafter = DroppedBlock({})
    assert taught(drafter, *[(64, 48)] * 3, other, (64, 48))[-1]


def test_prompts_of_another_tokenizer_do_not_count() -> None:
    drafter = DroppedBlock({})
    found = answer(64, 48, Verdict.TOKENIZER)
    assert not any(drafter.learn(found, dropped=0, block_size=16, chunk_blocks=1) for _ in range(ENOUGH))


def test_a_rule_that_turns_wrong_is_taken_back() -> None:
    drafter = DroppedBlock({})
    taught(drafter, *[(64, 48)] * ENOUGH)
    assert taught(drafter, *[(48, 64)] * ENOUGH)[-1]
    assert drafter.n_blocks == 0


@pytest.mark.parametrize(("said", "n_blocks"), [("true", 1), ("false", 0)])
def test_a_label_decides_for_good(said: str, n_blocks: int) -> None:
    drafter = DroppedBlock({LABEL: said})
    assert not any(taught(drafter, *[(64, 48), (48, 64)] * ENOUGH))
    assert drafter.n_blocks == n_blocks


def test_metrics_make_a_guess_that_answers_outweigh() -> None:
    drafter = DroppedBlock({})
    drafter.expect(drafts=True)
    assert drafter.n_blocks == 1
    taught(drafter, *[(48, 64)] * ENOUGH)
    drafter.expect(drafts=True)
    assert drafter.n_blocks == 0


def test_label_outweighs_metrics() -> None:
    drafter = DroppedBlock({LABEL: "false"})
    drafter.expect(drafts=True)
    assert drafter.n_blocks == 0
