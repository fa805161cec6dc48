"""Comparison of segments with the library's encoding of the whole, for every family of tokenizers."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, processors

from kvatlas.tokenization.encoding.cuts import Cuts
from kvatlas.tokenization.encoding.probes import PATTERNS, probe_texts
from kvatlas.tokenization.encoding.segment_encoder import (
    JOINED_AT_ONCE,
    Draft,
    EncodingLimits,
    Frame,
    SegmentEncoder,
    exceeds,
)
from kvatlas.tokenization.errors import EncodeError, TextTooLongError
from support.tokenizer_families import (
    FAMILIES,
    LLAMA3,
    TEXT,
    TEXTS,
    UNKNOWN,
    byte_level,
    template,
    token,
    trained,
)

FALLS_BACK = ("text_twice", "word_level_without_unknown")
"""One adds text where others add only special tokens; the other rejects some texts."""


@cache
def family(name: str) -> Tokenizer:
    return FAMILIES[name]()


@cache
def encoder(name: str, segment_chars: int) -> SegmentEncoder:
    return SegmentEncoder(family(name), segment_chars=segment_chars)


def whole(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> array[int] | None:
    """Return the library's ids for the whole text; None if it rejects the text."""
    try:
        return array("I", tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
    except Exception:  # noqa: BLE001 - the library raises its base class
        return None


def segmented(encoder: SegmentEncoder, text: str, *, add_special_tokens: bool) -> array[int] | None:
    try:
        return encoder.tokens(text, add_special_tokens=add_special_tokens)
    except EncodeError:
        return None


@pytest.mark.parametrize("name", FAMILIES)
@given(text=TEXTS, add_special_tokens=st.booleans(), segment_chars=st.sampled_from([1, 12]))
def test_ids_are_those_of_the_whole_text_whatever_the_text(
    name: str, text: str, add_special_tokens: bool, segment_chars: int
) -> None:
    wanted = whole(family(name), text, add_special_tokens=add_special_tokens)
    for _ in ("new", "known"):
        got = segmented(encoder(name, segment_chars), text, add_special_tokens=add_special_tokens)
        assert got == wanted


@pytest.mark.parametrize("name", ["llama3", "qwen2", "o200k", "nfkc", "normalized_tokens", "ordinary_tokens"])
@given(text=TEXTS)
def test_no_text_is_too_long_for_a_context_of_as_many_tokens_as_it_has(name: str, text: str) -> None:
    ids = whole(family(name), text, add_special_tokens=False)
    assert encoder(name, 12).is_native
    if ids is not None:
        limited(name, len(ids)).check_fits(text)


@cache
def limited(name: str, context_tokens: int) -> SegmentEncoder:
    return SegmentEncoder(family(name), limits=EncodingLimits(context_tokens=context_tokens))


@pytest.mark.parametrize(
    ("name", "longest"), [pytest.param("llama3", 13, id="native"), pytest.param("llama2", None, id="library")]
)
def test_text_is_too_long_when_tokens_of_the_greatest_length_do_not_fit(
    name: str, longest: int | None
) -> None:
    assert longest is None or max(map(len, family(name).get_vocab())) == longest
    if longest is None:  # this tokenizer may stand for several characters by one unknown token
        limited(name, 10).check_fits("x" * 1000)
        return
    limited(name, 10).check_fits("x" * 10 * longest)
    with pytest.raises(
        TextTooLongError, match="more than 130 characters, which cannot fit into the model's context"
    ):
        limited(name, 10).check_fits("x" * (10 * longest + 1))


@pytest.mark.parametrize(
    ("text", "n_bytes", "is_longer"),
    [
        pytest.param("x" * 10, 10, False, id="equal"),
        pytest.param("x" * 11, 10, True, id="ascii"),
        pytest.param("\u00e9" * 5, 10, False, id="equal_in_bytes"),
        pytest.param("\u00e9" * 6, 10, True, id="longer_in_bytes"),
        pytest.param("\ud800" * 4, 10, True, id="surrogates"),
        pytest.param("", 0, False, id="empty"),
    ],
)
def test_length_is_compared_in_bytes(text: str, n_bytes: int, *, is_longer: bool) -> None:
    assert exceeds(text, n_bytes) is is_longer


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_segmented_but_those_that_cannot_be(name: str) -> None:
    assert encoder(name, 1).is_segmented is (name not in FALLS_BACK)


@pytest.mark.parametrize(
    "text", ["a\ud800", "\ud83d\ude00", "<|im_start|>\udfff<|im_end|>", "one two\ud800 three"]
)
def test_encode_error_is_raised_when_the_text_is_not_unicode(text: str) -> None:
    with pytest.raises(EncodeError, match="rejects the text"):
        encoder("qwen2", 1).tokens(text, add_special_tokens=False)


def test_only_the_bad_segment_is_left_out_when_the_tokenizer_does_not_take_it() -> None:
    fresh = SegmentEncoder(family("qwen2"), segment_chars=1)
    draft = fresh.draft("one two\ud800 three<|im_end|>", add_special_tokens=False)
    encoded = fresh.encode(draft.missing(), adds=False)
    assert draft.missing() == ["one", " two\ud800 three", "<|im_end|>"]
    assert encoded.keys() == {"one", "<|im_end|>"}
    assert fresh.draft("one<|im_end|>", add_special_tokens=False).missing() == []


def test_encode_error_is_raised_when_the_library_panics() -> None:
    # One token includes the blanks after it; another, which consists of blanks, includes those before it.
    tokenizer = byte_level(added=[token("<r>", rstrip=True), token("  ", lstrip=True)])
    careful = SegmentEncoder(tokenizer)
    assert not careful.is_segmented  # the test texts have such blanks
    with pytest.raises(EncodeError):
        careful.tokens("<r>     x", add_special_tokens=False)
    assert careful.tokens("x", add_special_tokens=True) == whole(tokenizer, "x", add_special_tokens=True)


def test_only_new_segments_are_missing_when_a_conversation_goes_on() -> None:
    fresh = SegmentEncoder(family("qwen2"))
    fresh.tokens("<|im_start|>user\nhello<|im_end|>" * 400, add_special_tokens=False)
    longer = "<|im_start|>user\nhello<|im_end|>" * 400 + "<|im_start|>bye<|im_end|>"
    draft = fresh.draft(longer, add_special_tokens=False)
    assert len(draft.missing()) == 1
    assert len(draft.missing()[0]) < 600
    assert draft.n_known > 0.9 * len(fresh.tokens(longer, add_special_tokens=False))


def test_only_the_end_is_missing_when_a_text_without_special_tokens_goes_on() -> None:
    fresh = SegmentEncoder(family("llama3"))
    fresh.tokens(TEXT * 40, add_special_tokens=True)
    draft = fresh.draft(TEXT * 40 + "And more.", add_special_tokens=True)
    (last,) = draft.missing()
    assert last.endswith("And more.")
    assert len(last) < 4096


def test_segment_is_missing_once_when_a_text_has_it_often() -> None:
    draft = SegmentEncoder(family("qwen2"), segment_chars=1).draft("one one one", add_special_tokens=False)
    assert draft.segments == ["one", " one", " one"]
    assert draft.missing() == ["one", " one"]


def test_ids_are_the_same_when_nothing_fits_the_cache() -> None:
    tiny = SegmentEncoder(family("qwen2"), cache_bytes=1, segment_chars=1)
    wanted = whole(family("qwen2"), TEXT, add_special_tokens=True)
    assert [tiny.tokens(TEXT, add_special_tokens=True) for _ in range(2)] == [wanted, wanted]
    assert tiny.cache.statistics().segments == 0


def test_ids_are_right_when_several_threads_encode() -> None:
    shared = SegmentEncoder(family("llama3"), cache_bytes=20_000, segment_chars=20)
    texts = [TEXT[n:] + TEXT[:n] for n in range(0, 400, 10)]
    wanted = [whole(family("llama3"), text, add_special_tokens=True) for text in texts]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            got = threads.map(partial(shared.tokens, add_special_tokens=True), texts)
            assert list(got) == wanted


@pytest.mark.parametrize(
    "single", ["$A", "<|im_start|> $A", "$A <|im_end|>", "<|im_end|> <|im_start|> $A <|im_start|>"]
)
@pytest.mark.parametrize("text", ["", "hello world", "<|im_start|>", "<|im_end|>hello<|im_start|>"])
def test_added_special_tokens_go_where_the_tokenizer_puts_them(single: str, text: str) -> None:
    tokenizer = byte_level(LLAMA3, frame=template(single))
    fresh = SegmentEncoder(tokenizer)
    assert fresh.is_segmented
    assert fresh.tokens(text, add_special_tokens=True) == whole(tokenizer, text, add_special_tokens=True)


def test_words_stay_together_with_one_warning_when_cutting_them_apart_fails_the_test(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenizer = family("nfkc_lowercase_strip")  # strips blanks wherever a text begins or ends
    wrong = Cuts(tokens=frozenset({"<|im_start|>"}), followers=" ")
    with caplog.at_level(logging.WARNING):
        careful = SegmentEncoder(tokenizer, segment_chars=1, cuts=wrong)
    (record,) = caplog.records
    assert record.message.startswith(
        "this tokenizer gives other ids for segments of a text than for the whole text"
    )
    assert not careful.is_segmented
    text = "one two <|im_start|> three "
    assert careful.draft(text, add_special_tokens=False).segments == ["one two ", "<|im_start|> three "]
    assert careful.tokens(text, add_special_tokens=False) == whole(tokenizer, text, add_special_tokens=False)


def only_whole_texts() -> Tokenizer:
    """Make a tokenizer that accepts only whole test texts."""
    texts = dict.fromkeys(probe_texts(Tokenizer(models.WordLevel({"": 0}))))
    return Tokenizer(models.WordLevel({text: number for number, text in enumerate(texts)}))


@pytest.mark.parametrize("make", [FAMILIES["qwen2"], only_whole_texts])
def test_texts_stay_whole_when_cutting_at_tokens_fails_the_test(make: Callable[[], Tokenizer]) -> None:
    wrong = Cuts(tokens=frozenset("o"), followers="")
    careful = SegmentEncoder(make(), segment_chars=1, cuts=wrong)
    assert not careful.is_segmented
    assert careful.draft(TEXT, add_special_tokens=False).segments == [TEXT]


def test_all_texts_go_to_the_library_with_one_warning_when_the_native_encoder_fails_the_test(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert encoder("llama3", 1).is_native
    assert not encoder("llama2", 1).is_native
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        careful = SegmentEncoder(family("text_twice"))  # the library duplicates the text
    (record,) = [record for record in caplog.records if "native" in record.message]
    assert record.message.startswith("the native encoder gives other ids for this tokenizer than the library")
    assert not careful.is_native
    assert careful.tokens("a b", add_special_tokens=False) == whole(
        family("text_twice"), "a b", add_special_tokens=False
    )


def test_special_tokens_are_left_to_the_tokenizer_when_it_is_not_clear_where_it_adds_them() -> None:
    tokenizer = Tokenizer(models.WordLevel({UNKNOWN: 0, "hello world": 1}, unk_token=UNKNOWN))
    tokenizer.post_processor = processors.TemplateProcessing(single="b $A", special_tokens=[("b", 1)])
    careful = SegmentEncoder(tokenizer)  # in "1 1" the text can be the first or the second 1
    assert not careful.is_segmented
    assert careful.tokens("x", add_special_tokens=True) == array("I", [1, 0])
    assert careful.tokens("x", add_special_tokens=False) == array("I", [0])


def test_probes_are_hard_and_hold_the_tokenizers_own_tokens() -> None:
    texts = probe_texts(family("ordinary_tokens"))
    assert len(PATTERNS) >= 50
    assert len(texts) == 2 * len(PATTERNS)
    for content in ("<|endoftext|>", "<|im_end|>", "<think>", "\n\n"):
        assert any(content in text for text in texts)
    assert probe_texts(trained(added=[]))[0] == "hello world"


def test_ids_are_the_same_when_many_segments_are_joined() -> None:
    n_segments = 2 * JOINED_AT_ONCE
    texts = [str(number) for number in range(n_segments)]
    ids = [array("I", [number]).tobytes() for number in range(n_segments)]
    frame = Frame(array("I", [7]).tobytes(), array("I", [8]).tobytes())
    draft = Draft(texts, [None, *ids[1:]], frame, adds=False, piece_bytes=100)
    assert draft.tokens({"0": ids[0]}) == array("I", [7, *range(n_segments), 8])
