"""Decisions stay those that were recorded: the same picks for the same draws, the same scores, inputs and reasons."""

from __future__ import annotations

import pytest

from support.decision_stream import N_DECISIONS, N_STREAMS, RECORDED, stream


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_decisions_are_the_recorded_ones(part: int) -> None:
    recorded = RECORDED.read_text().splitlines()
    assert len(recorded) == N_STREAMS * N_DECISIONS
    for number in range(part, N_STREAMS, 4):
        assert stream(number) == recorded[number * N_DECISIONS : (number + 1) * N_DECISIONS], (
            f"stream {number}"
        )
