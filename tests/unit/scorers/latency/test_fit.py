"""Fit of latency costs on synthetic data: it learns, forgets, and is never worse than its priors."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.scorers.latency.fit import MIN_OBSERVATIONS, LinearFit

PRIORS = (30.0, 0.063, 0.063, 0.01, 0.05)
Features = tuple[float, ...]
Draw = Callable[[random.Random], Features]


def independent(rng: random.Random) -> Features:
    """Draw a request: sometimes a queue, a partly uncached prompt, parts in CPU memory, and rarely parts in storage."""
    queued = rng.choice((0.0, 0.0, rng.uniform(0, 60_000)))
    tokens, uncached = rng.uniform(100, 30_000), rng.random()
    storage = 0.0 if rng.random() < 0.8 else rng.uniform(0, 5_000)
    return (1.0, queued, tokens * uncached, tokens * (1 - uncached) * rng.random(), storage)


def collinear(rng: random.Random) -> Features:
    """Draw a request with half of its prompt in CPU memory and a queue of two prompts, so that costs are collinear."""
    tokens = rng.uniform(100, 30_000)
    return (1.0, 2 * tokens, tokens / 2, tokens / 2, 0.0)


def constant(_: random.Random) -> Features:
    return (1.0, 0.0, 1_000.0, 0.0, 0.0)


def predicted(costs: Sequence[float], features: Features) -> float:
    return sum(cost * feature for cost, feature in zip(costs, features, strict=True))


def error(costs: Sequence[float], truth: Sequence[float], draw: Draw) -> float:
    """Return the mean log error of the prediction over new requests without noise."""
    rng = random.Random(99)
    fresh = [draw(rng) for _ in range(200)]
    return sum(abs(math.log(predicted(costs, x) / predicted(truth, x))) for x in fresh) / len(fresh)


def taught(
    truth: Sequence[float], draw: Draw, n: int, *, seed: int = 0, noise: float = 0.2, outliers: float = 0.0
) -> LinearFit:
    """Return a fit after `n` requests with the costs `truth`, with noise and stalls of up to 200 times the time."""
    rng, fit = random.Random(seed), LinearFit(PRIORS)
    for _ in range(n):
        features = draw(rng)
        ms = predicted(truth, features) * math.exp(rng.gauss(0.0, noise))
        fit.observe(features, ms * rng.choice((20, 50, 200)) if rng.random() < outliers else ms)
    return fit


def scaled(*factors: float) -> list[float]:
    return [prior * factor for prior, factor in zip(PRIORS, factors, strict=True)]


@pytest.mark.parametrize("outliers", [0.0, 0.2], ids=["clean", "stalls"])
@pytest.mark.parametrize(
    "factors",
    [
        pytest.param((1, 3, 3, 1, 1), id="slower_prefill"),
        pytest.param((2, 0.3, 0.3, 5, 2), id="fast_prefill_slow_load"),
        pytest.param((1, 1, 1, 8, 8), id="slow_load"),
        pytest.param((10, 10, 10, 10, 10), id="all_wrong"),
    ],
)
def test_costs_are_learned_when_the_data_determine_them(factors: tuple[float, ...], outliers: float) -> None:
    truth = scaled(*factors)

    fit = taught(truth, independent, 2000, outliers=outliers)

    assert fit.state().is_fitted
    assert error(fit.coefficients, truth, independent) < 0.05
    assert fit.coefficients[1:3] == pytest.approx(truth[1:3], rel=0.05)
    # a cost with a small share of the time is less precise, but precise enough for the credit of its tier
    assert fit.coefficients[3] / fit.coefficients[2] == pytest.approx(truth[3] / truth[2], abs=0.05, rel=0.15)


def test_predictions_are_learned_when_costs_are_collinear() -> None:
    truth = scaled(2, 0.3, 0.3, 5, 2)

    fit = taught(truth, collinear, 300)

    assert error(fit.coefficients, truth, collinear) < 0.05 < error(PRIORS, truth, collinear)
    assert fit.coefficients[4] == PRIORS[4], "what was never seen stays at its prior"


FACTORS = st.lists(st.floats(0.1, 10), min_size=5, max_size=5)
DRAWS = st.sampled_from((independent, collinear, constant))


@given(
    factors=FACTORS,
    draw=DRAWS,
    n=st.integers(0, MIN_OBSERVATIONS),
    outliers=st.floats(0, 0.5),
    seed=st.integers(),
)
def test_priors_stay_in_force_when_observations_are_few(
    factors: list[float], draw: Draw, n: int, outliers: float, seed: int
) -> None:
    fit = taught(scaled(*factors), draw, n, seed=seed, outliers=outliers)

    assert fit.coefficients == PRIORS
    assert not fit.state().is_fitted


@given(
    factors=FACTORS | st.just([1.0] * 5),
    draw=DRAWS,
    n=st.integers(MIN_OBSERVATIONS + 1, 400),
    outliers=st.sampled_from((0.0, 0.1, 0.3)),
    noise=st.sampled_from((0.0, 0.2, 0.6)),
    seed=st.integers(),
)
def test_fit_is_never_worse_than_its_priors(
    factors: list[float], draw: Draw, n: int, outliers: float, noise: float, seed: int
) -> None:
    truth = scaled(*factors)

    fit = taught(truth, draw, n, seed=seed, noise=noise, outliers=outliers)

    assert error(fit.coefficients, truth, draw) <= error(PRIORS, truth, draw) + 0.02


@given(
    factors=FACTORS,
    features=st.lists(
        st.lists(st.floats(0, 1e9), min_size=4, max_size=4).map(lambda rest: (1.0, *rest)), max_size=60
    ),
    times=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=60, max_size=60),
)
def test_costs_stay_positive_finite_and_within_bounds_for_any_input(
    factors: list[float], features: list[Features], times: list[float]
) -> None:
    priors = scaled(*factors)
    fit = LinearFit(priors, max_factor=20.0)
    for x, ms in zip(features, times, strict=False):
        fit.observe(x, ms)

    for cost, prior in zip(fit.coefficients, priors, strict=True):
        assert prior / 20.01 <= cost <= prior * 20.01


@pytest.mark.parametrize("ms", [0.0, -5.0, math.nan, math.inf, 1e300])
def test_impossible_times_are_ignored(ms: float) -> None:
    fit = LinearFit(PRIORS)
    fit.observe(constant(random.Random(0)), ms)

    assert fit.state().n_observations == 0.0


def test_old_observations_are_forgotten() -> None:
    rng, fit = random.Random(1), LinearFit(PRIORS, half_life=100.0)
    for truth in (scaled(1, 5, 5, 5, 5), scaled(1, 0.5, 0.5, 2, 1)):
        for _ in range(800):
            features = independent(rng)
            fit.observe(features, predicted(truth, features))

    assert error(fit.coefficients, truth, independent) < 0.1
    assert 100 < fit.state().n_observations < 200


def test_fit_returns_to_its_priors_when_they_predict_better() -> None:
    rng, fit = random.Random(1), LinearFit(PRIORS, half_life=10_000.0)
    states: list[bool] = []
    for truth in (scaled(1, 5, 5, 5, 5), PRIORS):
        for _ in range(300):
            features = independent(rng)
            fit.observe(features, predicted(truth, features))
        states.append(fit.state().is_fitted)

    assert states == [True, False]
    assert fit.coefficients == PRIORS


def test_costs_are_clamped_to_the_bound() -> None:
    fit = taught(scaled(1.0, 1.0, 1.0, 100.0, 1.0), independent, 200)

    assert fit.coefficients[3] == pytest.approx(20 * PRIORS[3])


def test_a_cost_of_its_own_least_factor_stays_above_it_and_the_others_are_learned_beside_it() -> None:
    rng, fit = random.Random(0), LinearFit(PRIORS, lows=(0.05, 0.05, 0.05, 0.5, 0.05))
    truth = scaled(1.0, 3.0, 3.0, 0.1, 1.0)
    for _ in range(500):
        features = independent(rng)
        fit.observe(features, predicted(truth, features))

    assert fit.coefficients[3] == 0.5 * PRIORS[3]
    assert fit.coefficients[1] == pytest.approx(truth[1], rel=0.1)


def test_state_has_both_errors() -> None:
    state = taught(scaled(1, 3, 3, 1, 1), independent, 500, noise=0.0).state()

    assert state.n_observations == pytest.approx(500, rel=0.2)
    assert state.fit_error < 0.1
    assert state.prior_error > 0.5


@pytest.mark.parametrize("times", [0.01, 20.0, 300.0])
def test_an_engine_far_slower_or_faster_than_the_priors_is_learned(times: float) -> None:
    truth = [cost * times for cost in PRIORS]

    fit = taught(truth, independent, 200)

    assert fit.state().is_fitted
    assert error(fit.coefficients, truth, independent) < 0.1
    assert fit.state().identified == pytest.approx(
        taught(list(PRIORS), independent, 200).state().identified, abs=0.1
    )
