"""Fits of several processes, which add up."""

from __future__ import annotations

import math
from random import Random

import pytest

from kvatlas.scorers.latency.fit import LinearFit

COSTS = (40.0, 0.09)


def told_to(fit: LinearFit, fits: list[LinearFit]) -> dict[str, list[float]]:
    """Return the sums of the others by owner."""
    return {str(number): each.sums() for number, each in enumerate(fits) if each is not fit}


def observe(fits: list[LinearFit], rng: Random) -> None:
    features = (1.0, rng.uniform(100, 5000))
    ms = sum(map(float.__mul__, COSTS, features)) * rng.uniform(0.9, 1.1)
    for fit in fits:
        fit.observe(features, ms)


def test_fits_of_three_processes_know_together_what_one_would() -> None:
    one, parts = LinearFit((30.0, 0.06)), [LinearFit((30.0, 0.06)) for _ in range(3)]
    rng = Random(1)
    for number in range(300):
        observe([one, parts[number % 3]], rng)
        for part in parts:
            part.add_up(told_to(part, parts))

    assert one.state().is_fitted
    for part in parts:
        assert part.state().is_fitted
        assert part.n_observations == pytest.approx(one.n_observations, rel=0.01)
        assert part.coefficients == pytest.approx(one.coefficients, rel=0.01)
        assert part.state().identified == pytest.approx(one.state().identified, abs=0.01)


def test_fit_returns_to_its_own_observations_when_the_others_are_gone() -> None:
    fit, other = LinearFit((30.0, 0.06)), LinearFit((30.0, 0.06))
    rng = Random(1)
    for _ in range(100):
        observe([other], rng)
    fit.add_up({"other": other.sums(), "bad": [1.0, 2.0]})
    assert fit.state().is_fitted

    fit.add_up({})

    assert fit.n_observations == 0
    assert fit.coefficients == (30.0, 0.06)


def test_fit_keeps_most_of_what_it_knows_when_a_process_with_many_observations_joins() -> None:
    fit, old = LinearFit((30.0, 0.06)), LinearFit((30.0, 0.06))
    rng = Random(1)
    for _ in range(500):
        observe([old], rng)
    observe([fit], rng)
    fit.add_up({"old": old.sums()})
    assert fit.sums()[1] == 1.0


def test_fits_age_by_what_others_observe_and_not_because_one_was_silent() -> None:
    parts = [LinearFit((30.0, 0.06)) for _ in range(3)]
    rng = Random(1)
    for number in range(300):
        observe([parts[number % 3]], rng)
        for part in parts:
            part.add_up(told_to(part, parts))
    known = [part.n_observations for part in parts]

    for _ in range(8):
        for part in parts:
            part.add_up({owner: sums for owner, sums in told_to(part, parts).items() if owner != "2"})
            part.add_up(told_to(part, parts))
    assert [part.n_observations for part in parts] == pytest.approx(known, rel=0.001)

    before = parts[0].sums()[1]
    parts[0].add_up({})
    observe([parts[2]] * 100, rng)
    parts[0].add_up(told_to(parts[0], parts))
    assert parts[0].sums()[1] == pytest.approx(before * 0.5 ** (100 / 1000))


def test_fits_with_other_initial_costs_add_up_in_the_same_units() -> None:
    published, default = LinearFit((30.0, 0.5)), LinearFit((30.0, 0.06))
    rng = Random(1)
    for _ in range(300):
        n = rng.uniform(200, 4000)
        published.observe((1.0, n), (30.0 + 0.5 * n) * rng.uniform(0.95, 1.05))
    default.add_up({"published": published.sums()})

    default.start_at((30.0, 0.5))

    assert default.n_observations == published.n_observations
    own = LinearFit((30.0, 0.06))
    for _ in range(100):
        n = rng.uniform(200, 4000)
        own.observe((1.0, n), (30.0 + 0.5 * n) * rng.uniform(0.95, 1.05))
    own.add_up({"published": published.sums()})
    assert own.coefficients == pytest.approx((30.0, 0.5), rel=0.05)
    published.add_up({"own": own.sums()})
    assert published.coefficients == pytest.approx((30.0, 0.5), rel=0.05)


@pytest.mark.parametrize("place", range(12))
@pytest.mark.parametrize("number", [-5.0, 1e15, -1e15, 0.0, 1e-300])
def test_fit_survives_what_no_process_would_tell(place: int, number: float) -> None:
    fit, other = LinearFit((30.0, 0.06)), LinearFit((30.0, 0.06))
    rng = Random(1)
    for _ in range(100):
        observe([fit, other], rng)
    own = fit.coefficients
    told = other.sums()
    told[place] = number

    fit.add_up({"other": told})
    assert all(map(math.isfinite, fit.coefficients))
    for _ in range(100):  # it comes nearer to the best with each
        fit.add_up({})
    assert fit.coefficients == pytest.approx(own, rel=0.01)


def test_state_of_a_fit_is_known_though_others_told_of_far_more_than_the_priors_say() -> None:
    fit = LinearFit((30.0, 0.06))
    fit.add_up({"other": [1.0, 1.0, 0.0, 0.0, 0.0, 5e-7, 1e-9, 0.0, 0.0, 1e14, 1e14, 1e14]})
    assert fit.state().identified == pytest.approx((1.0, 1.0))
