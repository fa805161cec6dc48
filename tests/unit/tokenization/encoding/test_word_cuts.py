from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tokenizers import Regex, Tokenizer, normalizers
from tokenizers.pre_tokenizers import Split

from kvatlas.tokenization.encoding.tokenizer_fields import tokenizer_fields
from kvatlas.tokenization.encoding.word_cuts import ALTERNATIVES, LETTERS, UNICODE_FORMS, followers
from support.tokenizer_families import FAMILIES, PIECES, byte_level, token, trained

LETTER = re.compile(f"[{LETTERS}]")
CASES = {"upper": ("Lu", "Lt"), "other": ("Ll", "Lm", "Lo")}


def letters() -> Iterator[str]:
    return (char for char in map(chr, range(sys.maxunicode)) if LETTER.match(char))


def proven(tokenizer: Tokenizer) -> str:
    """Return the characters with which a segment may begin."""
    return followers(tokenizer_fields(tokenizer))


def test_letters_are_letters_to_the_library_and_in_every_form() -> None:
    text = "".join(letters())
    assert len(text) > 30_000
    assert Split(Regex(r"\p{L}"), "removed").pre_tokenize_str(text) == []
    for form in UNICODE_FORMS:
        normalize = getattr(normalizers, form)().normalize_str
        assert all(unicodedata.category(normalize(char)[-1]).startswith("L") for char in text)


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@given(pieces=st.lists(st.sampled_from([*PIECES, "a", "B", " ", "\n", "/"]), max_size=12))
def test_alternative_never_matches_a_letter_with_a_blank_behind_it(
    alternative: str, pieces: list[str]
) -> None:
    text = "".join(pieces)
    split = Split(Regex(alternative), "removed", invert=True)
    matches = [text[begin:end] for _, (begin, end) in split.pre_tokenize_str(text)]
    assert not any(re.search(f"[{LETTERS}][ \n]", match) for match in matches)


@pytest.mark.parametrize("alternative", [name for name, matched in ALTERNATIVES.items() if matched])
def test_alternative_matches_its_letters_whatever_stands_around(alternative: str) -> None:
    wanted = {category for case in ALTERNATIVES[alternative] for category in CASES[case]}
    chars = [char for char in letters() if unicodedata.category(char) in wanted]
    split = Split(Regex(alternative), "removed")  # keeps unmatched text
    for char in chars[:: len(chars) // 30]:
        for before, after in (
            ("", ""),
            ("x", ""),
            ("", "x"),
            (" ", " "),
            (".", "."),
            ("1", "\n"),
            ("Q", "Q"),
        ):
            left = [piece for piece, _ in split.pre_tokenize_str(f"{before}{char}{after}")]
            assert not any(char in piece for piece in left)


@pytest.mark.parametrize(
    ("family", "wanted"),
    [
        *(
            pytest.param(name, " \n", id=name)
            for name in (
                "byte_level", "llama3", "qwen2", "qwen35", "o200k", "tekken", "gpt4", "deepseek", "deepseek_coder",
                "starcoder", "falcon", "nfc", "nfkc", "gemma", "normalized_tokens", "strips", "overlapping",
            )
        ),
        *(
            pytest.param(name, " ", id=name)
            for name in (
                "byte_level_prefix", "metaspace_always", "metaspace_never", "metaspace_first", "metaspace_always_split",
                "metaspace_first_split", "unigram",
            )
        ),
        *(
            pytest.param(name, "", id=name)
            for name in (
                "unknown_pattern", "nfkc_lowercase_strip", "llama2", "spaces_inside_tokens", "word_piece",
                "strips_behind_letters", "single_words", "blank_inside",
            )
        ),
    ],
)  # fmt: skip
def test_words_are_cut_apart_where_it_is_proven(family: str, wanted: str) -> None:
    assert proven(FAMILIES[family]()) == wanted


@pytest.mark.parametrize(
    "tokenizer",
    [
        pytest.param(lambda: byte_level("[a-z]+|[^a-z]+"), id="unknown_alternatives"),
        pytest.param(lambda: byte_level(r"\p{N}|\s+"), id="letters_left_over"),
        pytest.param(lambda: byte_level(r"(?:'s| ?\p{L}+)|\s+"), id="alternatives_in_a_group"),
        pytest.param(lambda: trained(stages=[Split(Regex(r" ?\p{L}+|\s+"), "merged_with_next")]), id="merged"),
        pytest.param(lambda: trained(stages=[Split(Regex(r" ?\p{L}+|\s+"), "removed")]), id="removed"),
        pytest.param(lambda: trained(stages=[Split(" ", "isolated")]), id="string"),
        pytest.param(lambda: byte_level(added=[token("\u00bdx y")]), id="blank_in_a_token"),
        pytest.param(lambda: byte_level(added=[token("x\u00a0y", normalized=True)]), id="no_break_space_in_a_token"),
    ],
)  # fmt: skip
def test_words_are_left_together_when_something_is_not_known(tokenizer: Callable[[], Tokenizer]) -> None:
    assert not proven(tokenizer())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"end_of_word_suffix": "</w>"}, id="suffix"),
        pytest.param({"continuing_subword_prefix": "##"}, id="prefix"),
        pytest.param({"ignore_merges": True}, id="words_of_the_vocabulary_first"),
        pytest.param({"dropout": 0.1}, id="chance"),
        pytest.param({"type": "Unigram"}, id="other_model"),
    ],
)
def test_words_are_left_together_when_the_model_looks_at_more_than_pairs(change: dict[str, object]) -> None:
    tokenizer = FAMILIES["metaspace_first"]()
    fields = tokenizer_fields(tokenizer)
    assert followers(fields)
    other = replace(fields, model=replace(fields.model, **change))
    assert not followers(other)
