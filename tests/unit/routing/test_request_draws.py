"""Draws that follow from a request's id."""

from __future__ import annotations

from kvatlas.routing.request_draws import RequestDraws


def test_draws_are_equal_when_the_request_is_the_same() -> None:
    one, other = RequestDraws("3f2a"), RequestDraws("3f2a")
    assert [one() for _ in range(50)] == [other() for _ in range(50)]


def test_draws_are_uniform_over_requests_and_within_one() -> None:
    first = [RequestDraws(str(number))() for number in range(2000)]
    many = RequestDraws("x")
    for draws in (first, [many() for _ in range(2000)]):
        assert all(0 <= draw < 1 for draw in draws)
        assert 0.47 < sum(draws) / len(draws) < 0.53
        assert len(set(draws)) == len(draws)
