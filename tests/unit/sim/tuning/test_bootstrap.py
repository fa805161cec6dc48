"""Coverage of the reported confidence intervals."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from statistics import fmean

import pytest

from kvatlas.sim.tuning.bootstrap import paired_gain


def independent(rng: Random, n: int) -> list[float]:
    return [rng.uniform(-1.0, 1.0) for _ in range(n)]


def in_bursts(rng: Random, n: int) -> list[float]:
    """Make noise that many consecutive requests share."""
    noise, level = list[float](), 0.0
    for _ in range(n):
        level = 0.9 * level + rng.uniform(-0.3, 0.3)
        noise.append(level)
    return noise


@pytest.mark.parametrize(
    ("noise", "n_requests", "at_least"),
    [pytest.param(independent, 100, 33, id="independent"), pytest.param(in_bursts, 400, 32, id="in_bursts")],
)
def test_interval_of_a_paired_gain_covers_the_truth_about_as_often_as_it_says(
    noise: Callable[[Random, int], list[float]], n_requests: int, at_least: int
) -> None:
    rng = Random(3)
    covered = 0
    for _ in range(40):
        before = [rng.uniform(4.0, 6.0) for _ in range(n_requests)]
        after = [value * 0.8 + each for value, each in zip(before, noise(rng, n_requests), strict=True)]
        gain = paired_gain(before, after, fmean, rng=rng)
        covered += gain.low <= -0.2 <= gain.high
    assert at_least <= covered < 40


def test_gain_is_of_the_figure_asked_for() -> None:
    gain = paired_gain([1.0, 1.0, 10.0], [1.0, 1.0, 5.0], max, rng=Random(1))

    assert (gain.change, gain.low, gain.high) == (-0.5, -0.5, 0.0)
