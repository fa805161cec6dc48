from __future__ import annotations

from math import inf
from random import Random

import pytest

from kvatlas.sim.traces.arrivals import Arrivals
from kvatlas.sim.traces.trace import Trace, TraceRequest


def make_arrivals(
    *times: float, concurrency: int | None = None, after: dict[int, int] | None = None, **how: float
) -> Arrivals:
    requests = [
        TraceRequest(at, 4, 1, (0,), after=(after or {}).get(number)) for number, at in enumerate(times)
    ]
    return Arrivals(Trace("made", 4, requests, concurrency), rng=Random(1), **how)


def test_requests_come_at_their_times_whatever_the_speed() -> None:
    arrivals = make_arrivals(4.0, 1.0, 2.0, speed=2.0)

    came = [(arrivals.next_at(0.0), arrivals.take()) for _ in "abc"]

    assert came == [(0.5, 1), (1.0, 2), (2.0, 0)]
    assert arrivals.next_at(2.0) == inf
    with pytest.raises(IndexError):
        arrivals.take()


def test_jitter_delays_each_by_less_than_its_bound() -> None:
    arrivals = make_arrivals(*[0.0] * 50, jitter_s=3.0)

    delays = [(arrivals.next_at(0.0), arrivals.take())[0] for _ in range(50)]

    assert delays == sorted(delays)
    assert 0 <= delays[0] < 0.5
    assert 2.5 < delays[-1] < 3.0


def test_closed_loop_keeps_its_concurrency() -> None:
    arrivals = make_arrivals(0.0, 0.0, 0.0, concurrency=2)
    assert [arrivals.take(), arrivals.take()] == [0, 1]

    assert arrivals.next_at(5.0) == inf
    arrivals.ended(1, 7.0)
    assert (arrivals.next_at(7.0), arrivals.take()) == (7.0, 2)


def test_follower_comes_when_the_one_before_has_ended() -> None:
    arrivals = make_arrivals(1.0, 3.0, after={1: 0}, speed=2.0)
    assert (arrivals.next_at(0.0), arrivals.take(), arrivals.next_at(0.5)) == (0.5, 0, inf)

    arrivals.ended(0, 10.0)

    assert (arrivals.next_at(10.0), arrivals.take()) == (11.5, 1)


@pytest.mark.parametrize(
    ("times", "grain"),
    [
        pytest.param((0.0, 0.0, 0.0, 3.0, 3.0, 9.0), 3.0, id="coarse"),
        pytest.param((0.0, 0.1, 0.7, 0.7), 0.0, id="fine"),
        pytest.param((1.0,), 0.0, id="single"),
        pytest.param((2.0, 2.0, 2.0), 0.0, id="all_at_once"),
    ],
)
def test_grain_of_a_coarse_clock_is_seen(times: tuple[float, ...], grain: float) -> None:
    trace = Trace("made", 4, [TraceRequest(at, 4, 1, (0,)) for at in times])

    assert trace.clock_grain_s() == grain
