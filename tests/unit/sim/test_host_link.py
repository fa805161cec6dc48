"""Copies take the right time, in order, regardless of how often the link is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.sim.host_link import Copy, Direction, HostLink

Begun = list[tuple[float, Direction, float]]
"""Start, direction and duration of each copy."""


def ends_of(begun: Begun, *, speed: float, looks: tuple[float, ...] = ()) -> list[float]:
    """Return when each copy completes if the link is also read at the times `looks`."""
    link, ends, now = HostLink(speed_both_ways=speed), dict[int, float](), 0.0
    due = sorted([(at, place) for place, (at, _way, _s) in enumerate(begun)] + [(at, -1) for at in looks])
    copies = dict[int, Copy]()
    while due or link.next_at() is not None:
        next_at = link.next_at()
        if due and (next_at is None or due[0][0] < next_at):
            now, place = due.pop(0)
            link.advance(now)
            if place >= 0:
                copies[place] = link.begin(begun[place][1], begun[place][2], now=now)
        elif next_at is not None:
            now = next_at
            link.advance(now)
        for place, copy in copies.items():
            if copy.is_done:
                ends.setdefault(place, now)
    return [ends[place] for place in range(len(begun))]


@pytest.mark.parametrize(
    ("begun", "ends"),
    [
        pytest.param([(1.0, Direction.TO_GPU, 3.0)], [4.0], id="alone"),
        pytest.param([(1.0, Direction.TO_GPU, 3.0), (2.0, Direction.TO_GPU, 1.0)], [4.0, 5.0], id="one_after_the_other"),
        pytest.param([(0.0, Direction.TO_GPU, 2.0), (9.0, Direction.TO_GPU, 1.0)], [2.0, 10.0], id="after_a_pause"),
        pytest.param([(0.0, Direction.TO_GPU, 3.0), (0.0, Direction.TO_CPU, 3.0)], [4.0, 4.0], id="both_ways"),
        pytest.param([(0.0, Direction.TO_GPU, 6.0), (1.0, Direction.TO_CPU, 3.0)], [7.0, 5.0], id="both_ways_for_a_while"),
        pytest.param(
            [(0.0, Direction.TO_GPU, 3.0), (0.0, Direction.TO_CPU, 1.5), (0.0, Direction.TO_CPU, 1.5)],
            [4.0, 2.0, 4.0],
            id="two_beside_one",
        ),
        pytest.param(
            [(1.0, Direction.TO_CPU, 0.0), (1.0, Direction.TO_CPU, 2.0), (1.0, Direction.TO_CPU, 0.0)],
            [1.0, 3.0, 3.0],
            id="nothing_waits_for_those_before_it",
        ),
    ],
)  # fmt: skip
def test_copy_is_done_when_the_link_had_time_for_it(begun: Begun, ends: list[float]) -> None:
    assert ends_of(begun, speed=0.75) == pytest.approx(ends)


def test_time_never_goes_back() -> None:
    link = HostLink(speed_both_ways=1.0)
    link.advance(5.0)
    copy = link.begin(Direction.TO_GPU, 2.0, now=1.0)

    assert (copy.is_done, link.next_at()) == (False, 7.0)


eighths = st.integers(0, 40).map(lambda n: n / 8)


@given(
    begun=st.lists(st.tuples(eighths, st.sampled_from(Direction), eighths), min_size=1, max_size=8),
    looks=st.lists(eighths, max_size=8).map(tuple),
    speed=st.sampled_from([0.5, 1.0]),
)
def test_link_is_never_idle_with_a_copy_waiting_and_looking_changes_nothing(
    begun: Begun, looks: tuple[float, ...], speed: float
) -> None:
    begun = sorted(begun, key=lambda each: each[0])

    ends = ends_of(begun, speed=speed, looks=looks)

    assert ends == ends_of(begun, speed=speed)
    for way in Direction:
        free_at = latest = 0.0
        for (at, _way, seconds), end in zip(begun, ends, strict=True):
            if _way is way:
                free_at, latest = max(free_at, at) + seconds, max(latest, at) + seconds / speed
                assert free_at <= end <= latest
