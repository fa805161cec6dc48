from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from kvatlas.tokenization.encoding.cuts import WHOLE, Cuts, proven_cuts
from kvatlas.tokenization.encoding.tokenizer_fields import tokenizer_fields
from support.tokenizer_families import FAMILIES, QWEN2, TEXTS, byte_level, token


def cuts_of(tokenizer: Tokenizer) -> Cuts:
    return proven_cuts(tokenizer_fields(tokenizer))


@cache
def family_cuts(name: str) -> Cuts:
    return cuts_of(FAMILIES[name]())


@pytest.fixture(scope="module")
def cuts() -> Cuts:
    return cuts_of(byte_level(QWEN2))


@pytest.mark.parametrize(
    ("text", "size", "wanted"),
    [
        pytest.param("", 1, [], id="empty"),
        pytest.param("one two\nthree", 1, ["one", " two", "\nthree"], id="words"),
        pytest.param("one two three", 5, ["one two", " three"], id="words_from_the_size_on"),
        pytest.param("12 34 a. b", 1, ["12 34 a. b"], id="only_behind_letters"),
        pytest.param(
            "<|im_start|>a<|im_end|><|im_start|>",
            8,
            ["<|im_start|>a", "<|im_end|>", "<|im_start|>"],
            id="before_tokens",
        ),
        pytest.param(
            "x<|im_end|>\n<|im_start|>y",
            128,
            ["x<|im_end|>\n<|im_start|>y"],
            id="short_ones_stay_with_what_follows",
        ),
        pytest.param("abcdefgh<|im_end|>\n", 64, ["abcdefgh", "<|im_end|>\n"], id="an_eighth_is_enough"),
        pytest.param(
            "<|im_start|>abc def<|im_end|>",
            13,
            ["<|im_start|>abc", " def", "<|im_end|>"],
            id="both",
        ),
    ],
)
def test_text_is_cut(cuts: Cuts, text: str, size: int, wanted: list[str]) -> None:
    assert cuts.segments(text, size) == wanted
    assert cuts.segments_by_patterns(text, size) == wanted


@pytest.mark.parametrize("name", FAMILIES)
@given(text=TEXTS, size=st.integers(1, 40))
def test_native_segments_are_those_of_the_patterns_whatever_the_text(name: str, text: str, size: int) -> None:
    cuts = family_cuts(name)
    assert cuts.segments(text, size) == cuts.segments_by_patterns(text, size)


def test_text_stays_whole_when_there_is_no_cut() -> None:
    assert WHOLE.segments("one two <s> three", 1) == ["one two <s> three"]
    assert WHOLE.segments("", 1) == []


@given(text=TEXTS, more=TEXTS, size=st.integers(1, 40))
def test_common_beginning_has_the_same_segments_but_for_the_last_when_texts_differ(
    cuts: Cuts, text: str, more: str, size: int
) -> None:
    segments, longer = cuts.segments(text, size), cuts.segments(text + more, size)
    assert "".join(segments) == text
    assert "".join(longer) == text + more
    assert all(segments)
    n_common = max(0, len(segments) - 1)
    assert longer[:n_common] == segments[:n_common]


def tokens_of(*added: AddedToken) -> set[str]:
    """Return the contents of the added tokens before which texts are cut."""
    return set(cuts_of(byte_level(added=added)).tokens)


@pytest.mark.parametrize(
    "added",
    [
        pytest.param(token("<a>"), id="special"),
        pytest.param(token("[INST]"), id="brackets"),
        pytest.param(token("word"), id="word"),
        pytest.param(token(" <a> "), id="blanks"),
    ],
)
def test_texts_are_cut_before_a_token_found_wherever_it_stands(added: AddedToken) -> None:
    assert tokens_of(added) == {added.content}


@pytest.mark.parametrize(
    "added",
    [
        pytest.param(token("<a>", special=False), id="ordinary"),
        pytest.param(token("<a>", normalized=True), id="normalized"),
        pytest.param(token("<a>", lstrip=True), id="lstrip"),
        pytest.param(token("<a>", rstrip=True), id="rstrip"),
        pytest.param(token("<a>", single_word=True), id="single_word"),
    ],
)
def test_texts_are_not_cut_before_a_token_that_depends_on_what_stands_around(added: AddedToken) -> None:
    assert tokens_of(added) == set()


@pytest.mark.parametrize(
    ("other", "left"),
    [
        pytest.param("<x>", {"<a>", "</a>"}, id="apart"),
        pytest.param("<a>b", {"</a>"}, id="other_is_longer"),
        pytest.param("/", {"<a>"}, id="other_is_inside"),
        pytest.param("b<", set[str](), id="other_ends_where_it_begins"),
        pytest.param("/a>b", {"<a>"}, id="other_begins_where_it_ends"),
        pytest.param("x<a", {"</a>"}, id="other_reaches_in"),
    ],
)
def test_texts_are_not_cut_before_a_token_that_can_overlap_with_another(other: str, left: set[str]) -> None:
    assert tokens_of(token("<a>"), token("</a>"), token(other, special=False)) == left


def test_texts_are_not_cut_before_a_token_that_overlaps_with_one_left_out() -> None:
    assert tokens_of(token("<a|"), token("|b|"), token("|c>"), token("c>d", special=False)) == set()


def test_texts_are_cut_before_the_longest_when_special_tokens_overlap() -> None:
    cuts = cuts_of(byte_level(added=[token("<a>"), token("<a>b"), token("<a"), token("b<")]))
    assert cuts.segments("<a>b<a><a", 1) == ["<a>b", "<a>", "<a"]


def test_texts_are_not_cut_before_a_word_when_another_token_wants_to_stand_alone() -> None:
    assert tokens_of(token("_y"), token("<a>"), token("fox", single_word=True)) == {"<a>"}
