"""Assignment of requests that arrive together."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.scorers.core.bursts import BurstRules, Place, assigned

A, B, C = (array("Q", range(start, start + 4)) for start in (10, 20, 30))
LONG_A = A + array("Q", [99])
ABC = [Place(name, 0) for name in "abc"]


@pytest.mark.parametrize(
    ("prompts", "rules", "found"),
    [
        pytest.param([A, A, A], BurstRules(), "aaa", id="equal_prompts_go_together"),
        pytest.param([A, B, A, B], BurstRules(), "abab", id="groups_go_apart"),
        pytest.param([A, B, C], BurstRules(), "---", id="single_requests_are_left_alone"),
        pytest.param([A, array("Q"), A], BurstRules(), "a-a", id="no_prompt"),
        pytest.param([B, B, LONG_A, LONG_A], BurstRules(), "bbaa", id="longest_first"),
        pytest.param([A] * 5, BurstRules(2), "aabbc", id="limit_per_endpoint"),
        pytest.param([A] * 5, BurstRules(1), "abcab", id="more_than_the_limit_allows"),
        pytest.param([A, LONG_A, C, C, C], BurstRules(min_shared_blocks=2), "bbaaa", id="shared_beginning"),
        pytest.param([A, LONG_A], BurstRules(min_shared_blocks=5), "--", id="shared_beginning_too_short"),
        pytest.param([A, A, A, LONG_A], BurstRules(min_shared_blocks=2), "aaab", id="fair_share_first"),
        pytest.param([A, A, B, B, B], BurstRules(by_tokens=True), "aabbb", id="groups_by_tokens"),
        pytest.param([], BurstRules(), "", id="nothing"),
    ],
)
def test_requests_of_a_burst_are_assigned(prompts: list[array[int]], rules: BurstRules, found: str) -> None:
    assert "".join(name or "-" for name in assigned(prompts, ABC, rules)) == found


def test_tie_goes_to_the_endpoint_that_runs_less_and_then_by_name() -> None:
    places = [Place("c", 0), Place("b", 0), Place("a", 5)]
    assert assigned([A, A, B, B], places, BurstRules()) == ["b", "b", "c", "c"]


def test_tokens_weigh_long_prompts_more() -> None:
    places = ABC[:2]
    short = [B, B, C, C]
    assert assigned([LONG_A, LONG_A, *short], places, BurstRules()) == ["a", "a", "b", "b", "a", "a"]
    assert assigned([LONG_A * 2, LONG_A * 2, *short], places, BurstRules(by_tokens=True))[2:] == ["b"] * 4


def test_nobody_is_assigned_without_endpoints() -> None:
    assert assigned([A, A], [], BurstRules()) == [None, None]


@given(
    numbers=st.lists(st.integers(0, 4), max_size=20),
    most=st.none() | st.integers(1, 3),
    shared=st.integers(0, 3),
    by_tokens=st.booleans(),
)
def test_equal_prompts_are_all_assigned_and_no_endpoint_gets_more_than_the_limit_while_others_have_room(
    numbers: list[int], most: int | None, shared: int, *, by_tokens: bool
) -> None:
    prompts = [array("Q", range(number)) for number in numbers]
    found = assigned(prompts, ABC, BurstRules(most, shared, by_tokens=by_tokens))

    for number, count in Counter(numbers).items():
        places = Counter(name for prompt, name in zip(numbers, found, strict=True) if prompt == number)
        if not number:
            assert set(places) == {None}
        elif count > 1:
            assert None not in places
            if most is not None and count <= most * len(ABC):
                assert max(places.values()) <= most


if TYPE_CHECKING:
    Keys = array[int]
else:
    Keys = array


class Whole(Keys):
    """Block keys that must not be visited one by one."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("a step for each block")


def test_long_prompts_are_compared_as_a_whole() -> None:
    shared = list(range(2000))
    prompts = [Whole("Q", [*shared, *range(first, first + 40)]) for first in range(10_000, 12_560, 40)]

    found = assigned(prompts, [Place("a", 0), Place("b", 0)], BurstRules(min_shared_blocks=16))

    assert found == ["a"] * 32 + ["b"] * 32
