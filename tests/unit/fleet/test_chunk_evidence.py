"""Chunk sizes of slower tiers that answers show."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kvatlas.fleet.audit import Audited, Verdict
from kvatlas.fleet.chunk_evidence import ChunkEvidence

BLOCK = 16


def answer(end: int, *, expected: int, in_gpu: int = 1, verdict: Verdict = Verdict.UNKNOWN) -> Audited:
    """Return an answer that reused blocks up to `end`, of which up to `expected` were expected."""
    return Audited(
        "e",
        verdict,
        "cpu",
        {"gpu": in_gpu * BLOCK, "cpu": (expected - in_gpu) * BLOCK},
        {"gpu": in_gpu * BLOCK, "cpu": (end - in_gpu) * BLOCK},
        {"gpu": in_gpu * BLOCK, "cpu": expected * BLOCK},
    )


def shown_by(answers: Iterable[Audited], *, in_use: int) -> int | None:
    evidence = ChunkEvidence(in_use)
    for each in answers:
        evidence.learn(each, block_size=BLOCK)
    return evidence.shown


@pytest.mark.parametrize(
    ("in_use", "ends", "shown"),
    [
        pytest.param(4, [(6, 4), (10, 8), (2, 1), (14, 12)], 2, id="too_large"),
        pytest.param(4, [(6, 4), (10, 8), (2, 1)], None, id="too_few"),
        pytest.param(4, [(8, 8)] * 9 + [(6, 4)] * 4, None, id="most_fit"),
    ],
)
def test_size_is_shown_by_the_ends_of_reuse(
    in_use: int, ends: list[tuple[int, int]], shown: int | None
) -> None:
    answers = (answer(end, expected=expected) for end, expected in ends)
    assert shown_by(answers, in_use=in_use) == shown


@pytest.mark.parametrize(
    "useless",
    [
        pytest.param(answer(3, expected=8, in_gpu=3), id="gpu_alone"),
        pytest.param(answer(6, expected=8, verdict=Verdict.STALE), id="events_missing"),
    ],
)
def test_answers_that_say_nothing_of_chunks_are_left_out(useless: Audited) -> None:
    assert shown_by([useless] * 9, in_use=4) is None
