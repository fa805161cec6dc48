from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.tokenization.encoding.truncation import n_common, prompt_of, shortened, texts_of
from kvatlas.tokenization.errors import EncodeError
from kvatlas.tokenization.model import NoPrefixReason, TextPrompt, TokenPrompt, Truncation

IDS = st.lists(st.integers(0, 2), max_size=40).map(lambda ids: array("I", ids))


@pytest.mark.parametrize(
    ("truncation", "ids"),
    [
        pytest.param(None, [1, 2, 3, 4], id="none"),
        pytest.param(Truncation(9, "left"), [1, 2, 3, 4], id="longer"),
        pytest.param(Truncation(4, "left"), [1, 2, 3, 4], id="as_long"),
        pytest.param(Truncation(3, "left"), [2, 3, 4], id="left"),
        pytest.param(Truncation(3, "right"), [1, 2, 3], id="right"),
        pytest.param(Truncation(0, "left"), [], id="nothing_left"),
        pytest.param(Truncation(0, "right"), [], id="nothing_right"),
    ],
)
def test_ids_are_cut_where_the_truncation_says(truncation: Truncation | None, ids: list[int]) -> None:
    assert shortened(array("I", [1, 2, 3, 4]), truncation) == array("I", ids)


@given(common=IDS, one=IDS, other=IDS)
def test_common_ids_end_at_the_first_difference(
    common: array[int], one: array[int], other: array[int]
) -> None:
    left, right = common + one, common + other
    n = n_common(left, right)
    assert left[:n] == right[:n]
    assert n == min(len(left), len(right)) or left[n] != right[n]


def encoded(*ids: list[int]) -> list[array[int]]:
    return [array("I", each) for each in ids]


def test_ids_end_where_the_fork_differs_when_there_is_media() -> None:
    prompt = TextPrompt("abc", add_special_tokens=True, fork="abd")
    assert texts_of(prompt) == (("abc", True), ("abd", True))
    found = prompt_of(prompt, encoded([0, 1, 2, 3], [0, 1, 5, 3]))
    assert found == TokenPrompt(array("I", [0, 1]), cut=NoPrefixReason.MEDIA)


@pytest.mark.parametrize(
    ("truncation", "ids"),
    [
        pytest.param(Truncation(9, "left", spares_added=True), [90, 1, 2, 3, 91], id="longer"),
        pytest.param(Truncation(4, "left", spares_added=True), [90, 2, 3, 91], id="left"),
        pytest.param(Truncation(4, "right", spares_added=True), [90, 1, 2, 91], id="right"),
        pytest.param(Truncation(2, "left", spares_added=True), [90, 91], id="added_alone"),
    ],
)
def test_special_tokens_stay_when_the_truncation_spares_them(truncation: Truncation, ids: list[int]) -> None:
    prompt = TextPrompt("abc", add_special_tokens=True, truncation=truncation)
    assert texts_of(prompt) == (("abc", True), ("abc", False))
    assert prompt_of(prompt, encoded([90, 1, 2, 3, 91], [1, 2, 3])).tokens == array("I", ids)


def test_one_text_is_encoded_when_the_tokenizer_adds_nothing() -> None:
    prompt = TextPrompt("abc", add_special_tokens=False, truncation=Truncation(2, "left", spares_added=True))
    assert texts_of(prompt) == (("abc", False),)
    assert prompt_of(prompt, encoded([1, 2, 3])).tokens == array("I", [2, 3])


@pytest.mark.parametrize(
    ("n_tokens", "whole", "bare"),
    [
        pytest.param(1, [90, 1, 2, 91], [1, 2], id="no_room_for_what_is_added"),
        pytest.param(3, [90, 1, 7, 91], [1, 2], id="text_is_not_inside"),
        pytest.param(0, [1], [1, 2], id="text_is_longer_by_itself"),
    ],
)
def test_encode_error_is_raised_when_the_text_cannot_be_shortened_inside(
    n_tokens: int, whole: list[int], bare: list[int]
) -> None:
    truncation = Truncation(n_tokens, "left", spares_added=True)
    prompt = TextPrompt("abc", add_special_tokens=True, truncation=truncation)
    with pytest.raises(EncodeError, match="no room"):
        prompt_of(prompt, encoded(whole, bare))
