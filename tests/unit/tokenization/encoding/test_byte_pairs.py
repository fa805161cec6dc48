"""Comparison of the native encoder with the library, for every family of tokenizers that it supports."""

from __future__ import annotations

import re
import sys
import unicodedata
from array import array
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from kvatlas.tokenization.encoding.byte_pairs import MAX_CLASSES, BytePairEncoder, byte_pair_encoder
from kvatlas.tokenization.encoding.characters import (
    CHARACTERS,
    NormalForm,
    all_of,
    inert,
    known,
    members,
    normalizer_of,
)
from kvatlas.tokenization.encoding.stages import classes, split_stages
from kvatlas.tokenization.encoding.tokenizer_fields import tokenizer_fields
from support.tokenizer_families import (
    CHATML,
    FAMILIES,
    LLAMA3,
    O200K,
    QWEN2,
    TEXT,
    TEXTS,
    assembled,
    byte_level,
    token,
    trained,
)

TAKEN = (
    "byte_level", "llama3", "qwen2", "qwen35", "o200k", "tekken", "gpt4", "deepseek", "deepseek_coder", "starcoder",
    "nfc", "nfkc", "normalized_tokens", "ordinary_tokens", "overlapping", "blank_inside",
)  # fmt: skip
PLAIN = st.text(st.characters(min_codepoint=9, max_codepoint=126), max_size=40)
LETTERS = st.text(st.characters(categories=("Lu", "Ll", "Lo", "Nd", "Zs", "Po", "So")), max_size=20)


def whole_words(tokenizer: Tokenizer) -> Tokenizer:
    """Make words of the vocabulary one token even without merges, as in Llama 3."""
    tokenizer.model.ignore_merges = True
    return tokenizer


MORE: dict[str, Callable[[], Tokenizer]] = {
    "whole_words": lambda: whole_words(byte_level(LLAMA3)),
    "removed": lambda: trained(
        stages=[
            pre_tokenizers.Split(Regex(QWEN2), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
    "gaps_removed": lambda: trained(
        stages=[
            pre_tokenizers.Split(Regex(r"\p{L}+| ?\p{N}+"), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
    "gaps_kept": lambda: byte_level(r"\p{N}{1,2}", r"\s?\p{L}+"),
    "digits_in_runs": lambda: trained(
        stages=[pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "two_normalized": lambda: byte_level(
        normalizer=normalizers.NFC(),
        added=[*CHATML, token("<é>", normalized=True), token("<é", normalized=True, special=False)],
    ),
}


@cache
def tokenizer(name: str) -> Tokenizer:
    return (MORE.get(name) or FAMILIES[name])()


@cache
def encoder(name: str) -> BytePairEncoder:
    made = made_of(tokenizer(name))
    assert made is not None
    return made


def made_of(tokenizer: Tokenizer) -> BytePairEncoder | None:
    return byte_pair_encoder(tokenizer_fields(tokenizer))


def ids(encoder: BytePairEncoder, text: str) -> array[int] | None:
    (found,) = encoder.encode([text])
    return None if found is None else array("I", found)


@pytest.mark.parametrize("name", [*TAKEN, *MORE])
@given(text=st.one_of(TEXTS, PLAIN, LETTERS))
@example(TEXT)
@example("IT'S I'm we'LL 'S '\u017f don'ta \t\n\r\n  x   \n  y\u3000z\u00a0 1234567 ½²Ⅷ٣")
@example("aaaa" * 60 + " " + "a" * 256 + " " + "b" * 257)
def test_ids_are_those_of_the_library_when_the_text_is_taken(name: str, text: str) -> None:
    found = ids(encoder(name), text)
    if found is not None:
        assert found.tolist() == tokenizer(name).encode(text, add_special_tokens=False).ids


ORDINARY = (
    "", "one two", "a, b! x 12", "Größe", "слово", "你好", "안녕", "שלום", "ก่อน", "क्या", "🙂\n", "<|im_start|>", f"{'a' * 256} b",
)  # fmt: skip


@pytest.mark.parametrize("name", sorted({*TAKEN, *MORE} - {"gaps_removed"}))
def test_texts_are_taken_when_they_are_ordinary(name: str) -> None:
    assert None not in encoder(name).encode(ORDINARY)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("qwen2", "e\u0301", id="composes"),
        pytest.param("qwen2", "\u1100\u1161", id="hangul_composes"),
        pytest.param("qwen2", "\u212b", id="normal_form_is_another"),
        pytest.param("nfkc", "\ufb01ne", id="compatible_form_is_another"),
        pytest.param("llama3", "a" * 257, id="long_word"),
        pytest.param("llama3", "\U00012000", id="rare_plane"),
        pytest.param("llama3", "\u0378", id="not_assigned"),
        pytest.param("llama3", "\ue000", id="private"),
        pytest.param("llama3", "a\ud800", id="half_a_pair"),
        pytest.param("gaps_removed", "a, b", id="dropped_part"),
    ],
)
def test_text_is_left_to_the_library_when_something_is_not_known(name: str, text: str) -> None:
    assert ids(encoder(name), text) is None
    assert encoder(name).encode(["x", text, "x"])[::2] == encoder(name).encode(["x", "x"])


def changed(name: str, **changes: object) -> BytePairEncoder | None:
    """Make the encoder of a family with changed fields of its model."""
    fields = tokenizer_fields(tokenizer(name))
    return byte_pair_encoder(replace(fields, model=replace(fields.model, **changes)))


def test_tokenizer_is_left_to_the_library_when_it_is_of_another_kind() -> None:
    left = {name for name in FAMILIES if name != "text_twice" and made_of(FAMILIES[name]()) is None}
    assert left == FAMILIES.keys() - {*TAKEN, "text_twice"}


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: changed("qwen2", dropout=0.1), id="chance"),
        pytest.param(lambda: changed("qwen2", end_of_word_suffix="</w>"), id="suffix"),
        pytest.param(lambda: changed("qwen2", vocab=b'{"a": 0}'), id="bytes_without_a_token"),
        pytest.param(lambda: made_of(byte_level(normalizer=normalizers.NFD())), id="other_form"),
        pytest.param(
            lambda: made_of(byte_level(normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.NFKC()]))),
            id="two_forms",
        ),
        pytest.param(lambda: made_of(byte_level(added=[token("x", lstrip=True)])), id="strips"),
        pytest.param(
            lambda: made_of(byte_level(normalizer=normalizers.NFC(), added=[token("<q\u0301>", normalized=True)])),
            id="token_that_composes",
        ),
        pytest.param(lambda: made_of(trained(stages=[pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])), id="unsplit"),
        pytest.param(lambda: made_of(trained()), id="no_pre_tokenizer"),
        pytest.param(lambda: made_of(byte_level(r"\w+|\s+")), id="unknown_alternative"),
        pytest.param(
            lambda: made_of(
                trained(
                    stages=[
                        pre_tokenizers.Split(Regex(QWEN2), "merged_with_next"),
                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                    ]
                )
            ),
            id="other_behavior",
        ),
    ],
)  # fmt: skip
def test_tokenizer_is_left_to_the_library_when_something_is_not_known(
    made: Callable[[], BytePairEncoder | None],
) -> None:
    assert made() is None


def test_words_stay_the_same_when_more_were_seen_than_are_cached() -> None:
    native, library = encoder("llama3"), tokenizer("llama3")
    texts = [f" w{number:x} {number * 7919 % 65537}q{'z' * (number % 25)}" for number in range(30_000)]
    first = native.encode(texts)
    assert native.encode(texts) == first
    for text, found in list(zip(texts, first, strict=True))[::500]:
        assert found is not None
        assert array("I", found).tolist() == library.encode(text, add_special_tokens=False).ids


ALPHABET = {char: number for number, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
"""A vocabulary in which every byte is a token."""


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_every_byte_has_its_token(ignore_merges: bool) -> None:
    model = models.BPE(ALPHABET, [], ignore_merges=ignore_merges)
    library = assembled(Tokenizer(model), stages=[pre_tokenizers.ByteLevel(add_prefix_space=False)])
    native = made_of(library)
    assert native is not None
    chars = all_of(known(None))
    for place in (*range(0, 0x900, 60), *range(0x900, len(chars), 997)):
        text = chars[place : place + 60]  # words of up to 180 bytes
        found = ids(native, text)
        assert found is not None
        assert found.tolist() == library.encode(text, add_special_tokens=False).ids


def test_sample_has_words_from_all_over_the_vocabulary() -> None:
    words = {f"Ġw{n}": 256 + n for n in range(10_000)}
    model = models.BPE({**ALPHABET, **words, "▁": 20_000}, [])
    found = made_of(assembled(Tokenizer(model), stages=[pre_tokenizers.ByteLevel(add_prefix_space=False)]))
    assert found is not None
    numbers = {int(word[1:]) for word in found.sample.split() if re.fullmatch(r"w\d+", word)}
    assert len(numbers) > 1500
    assert min(numbers) < 10
    assert max(numbers) > 9990


@pytest.mark.parametrize("name", ["qwen35", "o200k", "deepseek", "deepseek_coder", "gpt4", "byte_level"])
def test_classes_have_the_characters_that_the_library_finds(name: str) -> None:
    """Check all characters, although members() tests only samples of the ideographs and syllables."""
    text = all_of(known(None))
    assert len(text) > 50_000
    stages = split_stages(tokenizer_fields(FAMILIES[name]()).stages)
    assert stages is not None
    for characters in classes(stages):
        split = pre_tokenizers.Split(Regex(characters), "removed", invert=True)
        wanted = {char for char, _ in split.pre_tokenize_str(text)}
        assert set(all_of(members(characters))) & set(text) == wanted, characters


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_inert_characters_stay_as_they_are_in_any_order(form: NormalForm) -> None:
    text = all_of(inert(form))
    assert set(map(ord, text)) < set(CHARACTERS)
    mixed = "".join(text[place * 7919 % len(text)] for place in range(len(text)))
    assert normalizer_of(form).normalize_str(mixed) == mixed
    assert 50_000 < len(text) < len(all_of(known(None)))


def test_text_in_normal_form_is_taken_whatever_its_characters() -> None:
    native, library = encoder("qwen2"), tokenizer("qwen2")
    for text in ("ที่นี่", "कृपया फ़िर", "বাংলা ভাষা", "தமிழ்", "فَعَّلَ", "q\u0323\u0307"):
        found = ids(native, unicodedata.normalize("NFC", text))
        assert found is not None, text
        assert found.tolist() == library.encode(text).ids


def test_encoder_is_absent_when_the_native_part_was_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvatlas.tokenization.encoding._native", None)
    assert made_of(FAMILIES["qwen2"]()) is None


def test_patterns_with_the_most_classes_fit() -> None:
    stages = split_stages(tokenizer_fields(byte_level(O200K)).stages)
    assert stages is not None
    assert len(classes(stages)) <= MAX_CLASSES
