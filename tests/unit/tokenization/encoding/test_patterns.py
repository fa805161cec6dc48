from __future__ import annotations

import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from kvatlas.tokenization.encoding.patterns import (
    UNBOUNDED,
    CharacterSet,
    Element,
    NotAhead,
    OneOf,
    alternatives,
    elements,
)
from kvatlas.tokenization.encoding.word_cuts import ALTERNATIVES
from support.tokenizer_families import DEEPSEEK, O200K


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        pytest.param("a|b", ["a", "b"], id="two"),
        pytest.param("(?i:'s|'t)|b", ["(?i:'s|'t)", "b"], id="group"),
        pytest.param(r"[|\]|]|b", [r"[|\]|]", "b"], id="class"),
        pytest.param(r"\|b", [r"\|b"], id="escaped"),
        pytest.param("[\r\n]+|b", [r"[\r\n]+", "b"], id="line_ends_as_they_are"),
    ],
)
def test_pattern_is_cut_into_its_alternatives(pattern: str, wanted: list[str]) -> None:
    assert alternatives(pattern) == wanted


@pytest.mark.parametrize(
    ("alternative", "wanted"),
    [
        pytest.param(
            r" ?\p{L}+", [CharacterSet(" ", 0, 1), CharacterSet(r"\p{L}", 1, UNBOUNDED)], id="counts"
        ),
        pytest.param(r"\p{N}{1,3}", [CharacterSet(r"\p{N}", 1, 3)], id="range"),
        pytest.param(r"\p{N}{2}", [CharacterSet(r"\p{N}", 2, 2)], id="number"),
        pytest.param(r"[^\]]*+", [CharacterSet(r"[^\]]", 0, UNBOUNDED, is_possessive=True)], id="possessive"),
        pytest.param(r"\s+(?!\S)", [CharacterSet(r"\s", 1, UNBOUNDED), NotAhead(r"\S")], id="not_ahead"),
        pytest.param(
            "x(?i:'s|ll)?",
            [CharacterSet("x"), OneOf((("(?i:')", "(?i:s)"), ("(?i:l)", "(?i:l)")), is_optional=True)],
            id="choice",
        ),
    ],
)
def test_alternative_has_its_elements(alternative: str, wanted: list[Element]) -> None:
    assert elements(alternative) == wanted


@pytest.mark.parametrize(
    "alternative", ["(?=a)", "(a|b)", "a{,3}", r"\p{L}+?x(", "(?<=a)b", "^", "a.", r"\bx"]
)
def test_value_error_is_raised_when_an_element_is_not_known(alternative: str) -> None:
    with pytest.raises(ValueError, match="an unsupported element at"):
        elements(alternative)


def test_all_known_alternatives_can_be_taken_apart() -> None:
    assert all(elements(alternative) for alternative in ALTERNATIVES)
    for pattern in (O200K, *DEEPSEEK):
        assert set(alternatives(pattern)) <= ALTERNATIVES.keys()


def test_classes_match_one_character_each() -> None:
    found = {
        element.characters
        for each in ALTERNATIVES
        for element in elements(each)
        if not isinstance(element, OneOf)
    }
    for characters in found:
        pieces = Split(Regex(characters), "removed", invert=True).pre_tokenize_str("aA1 \r\n/.!é漢'")
        assert all(end - begin == 1 for _, (begin, end) in pieces), characters
