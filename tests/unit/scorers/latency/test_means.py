"""Running means that several processes learn together."""

from __future__ import annotations

from random import Random

import pytest

from kvatlas.scorers.core.shared import Contribution
from kvatlas.scorers.latency.means import RunningMean, SharedMeans


def test_mean_without_a_start_takes_the_first_observation() -> None:
    mean = RunningMean(0.1, start=None)
    assert not mean.is_known

    mean.add(100.0)
    assert (mean.is_known, mean.value) == (True, 100.0)
    mean.add(200.0)
    assert mean.value == pytest.approx(110.0)


@pytest.mark.parametrize("start", [None, 0.0, 50.0])
def test_three_processes_that_hear_each_other_at_once_know_what_one_would(start: float | None) -> None:
    one = RunningMean(0.05, start=start)
    parts = [RunningMean(0.05, start=start) for _ in range(3)]
    shares = [SharedMeans({"tokens": each}) for each in parts]
    rng = Random(1)
    for _ in range(100):
        observed, owner = rng.uniform(10, 1000), rng.randrange(3)
        one.add(observed)
        shares[owner].add("tokens", observed)
        for number, share in enumerate(shares):
            if number != owner:
                numbers = shares[owner].shared.own("tokens", 0.0)
                share.shared.take(f"p{owner}", "tokens", numbers, now=0.0)

        assert [each.value for each in parts] == pytest.approx([one.value] * 3)


def test_observations_of_a_sibling_count_once_also_if_some_messages_are_lost() -> None:
    one, own, other = RunningMean(0.1), RunningMean(0.1), RunningMean(0.1)
    for observed in (100.0, 100.0, 100.0, 100.0):
        one.add(observed)
        other.add(observed)
        if other.numbers()[2] != 2.0:  # type: ignore[index]
            for _ in range(2):
                own.learn([Contribution("x", 0.0, other.numbers() or ())])

    assert own.value == pytest.approx(one.value)


def test_new_sibling_that_knows_less_changes_nothing() -> None:
    own, other = RunningMean(0.1), RunningMean(0.1)
    other.add(1000.0)
    for _ in range(5):
        own.add(10.0)
    before = own.value

    own.learn([Contribution("x", 0.0, other.numbers() or ()), Contribution("y", 0.0, [1.0])])
    assert own.value == before
    own.learn([])
    assert own.value == before
    assert RunningMean(0.1).numbers() is None


def test_part_of_an_observation_of_a_sibling_is_none() -> None:
    own = RunningMean(0.1)
    own.add(10.0)
    for n, total in ((0.0, 0.0), (1e-300, 1e15)):
        own.learn([Contribution("x", 0.0, (10.0, 1.0, n, total))])
    assert own.value == pytest.approx(1.0)


def test_sibling_whose_sum_falls_makes_no_negative_mean() -> None:
    own = RunningMean(0.1)
    own.learn([Contribution("x", 0.0, (200_000.0, 1.0, 1.0, 200_000.0))])

    own.learn([Contribution("x", 0.0, (100.0, 2.0, 2.0, 200.0))])

    assert own.value >= 0.0
