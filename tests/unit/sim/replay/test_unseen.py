"""What counts as cached when a request arrives: blocks of requests that can arrive before it, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvatlas.sim.replay.unseen import Arrival, cachable_tokens
from kvatlas.sim.traces.trace import Trace, TraceRequest
from support.traces import BLOCK


def request(at_s: float, *ids: int, after: int | None = None) -> TraceRequest:
    return TraceRequest(at_s, BLOCK * len(ids), 1, ids, after=after)


def cachable(trace: Trace, *arrivals: tuple[float, bool]) -> list[int]:
    known = [Arrival(at_s, is_fixed=is_fixed) for at_s, is_fixed in arrivals]
    return [n_tokens // BLOCK for n_tokens in cachable_tokens(trace, known, block_size=BLOCK)]


OPEN = Trace("open", BLOCK, [request(5, 1, 2, 3), request(1, 1, 2), request(9, 1, 2, 3, 4), request(1, 1)])
CHAIN = Trace(
    "chain",
    BLOCK,
    [
        request(0, 1, 2),
        request(1, 1, 2, 3, after=0),
        request(1, 1, 2, 3, 4, after=1),
        request(4, 1, 9),
        request(1, 1, 9, 8, after=3),
    ],
)


@pytest.mark.parametrize(
    ("trace", "arrivals", "blocks"),
    [
        pytest.param(OPEN, [(5, True), (1, True), (9, True), (1, True)], [2, 0, 3, 1], id="by_arrival"),
        pytest.param(
            CHAIN,
            [(0, True), (1, False), (2, False), (4, True), (5, False)],
            [0, 2, 3, 1, 2],
            id="by_what_waits_for_it",
        ),
        pytest.param(
            replace(OPEN, concurrency=1),
            [(0, True), (0, False), (0, False), (0, False)],
            [0, 2, 3, 1],
            id="by_number_at_constant_concurrency",
        ),
    ],
)
def test_blocks_of_requests_that_can_arrive_before_count_as_cached(
    trace: Trace, arrivals: list[tuple[float, bool]], blocks: list[int]
) -> None:
    assert cachable(trace, *arrivals) == blocks


def test_other_conversations_count_as_earlier_when_arrivals_depend_on_the_answers() -> None:
    both = Trace(
        "two", BLOCK, [request(0, 7), request(0, 8), request(1, 7, 5, after=0), request(1, 7, 5, after=1)]
    )

    assert cachable(both, (0, True), (0, True), (1, False), (1, False)) == [0, 0, 2, 2]
