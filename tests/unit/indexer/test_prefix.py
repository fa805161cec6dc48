from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.events.model import MultimodalKey
from kvatlas.indexer.keys import Namespace, prefix_keys, root_key
from kvatlas.indexer.prefix import MediaSpan, Prefix, TextLimits, media_keys, words_of

TOKENS = array("I", range(10))


@pytest.mark.parametrize(
    ("media", "block_size", "keys"),
    [
        pytest.param([], 4, {}, id="none"),
        pytest.param([MediaSpan("a", 1, 2)], 4, {0: [("a", 1)]}, id="inside_a_block"),
        pytest.param([MediaSpan("a", 0, 4)], 4, {0: [("a", 0)]}, id="a_whole_block"),
        pytest.param(
            [MediaSpan("a", 3, 6)], 4, {0: [("a", 3)], 1: [("a", -1)], 2: [("a", -5)]}, id="over_three"
        ),
        pytest.param(
            [MediaSpan("a", 1, 1), MediaSpan("b", 2, 3)],
            4,
            {0: [("a", 1), ("b", 2)], 1: [("b", -2)]},
            id="two_in_a_block",
        ),
        pytest.param([MediaSpan("a", 4, 0)], 4, {}, id="empty_between_blocks"),
    ],
)
def test_items_are_keyed_with_every_block_they_touch(
    media: list[MediaSpan], block_size: int, keys: dict[int, list[tuple[str, int]]]
) -> None:
    wanted = {block: [MultimodalKey(*item) for item in items] for block, items in keys.items()}
    assert media_keys(media, block_size) == wanted


SPANS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=5)


@given(gaps=SPANS, block_size=st.integers(1, 8))
def test_items_are_keyed_as_an_engine_does_it(gaps: list[tuple[int, int]], block_size: int) -> None:
    media: list[MediaSpan] = []
    end = 0
    for number, (gap, n_tokens) in enumerate(gaps):
        media.append(MediaSpan(str(number), end + gap, n_tokens))
        end = media[-1].offset + n_tokens
    wanted = {
        block: touching
        for block in range(end // block_size + 1)
        if (
            touching := [
                MultimodalKey(item.identifier, item.offset - block * block_size)
                for item in media
                if item.offset < (block + 1) * block_size and item.offset + item.n_tokens > block * block_size
            ]
        )
    }
    assert media_keys(media, block_size) == wanted


def test_keys_are_those_of_the_engines_events_when_a_prompt_has_media() -> None:
    prefix = Prefix(TOKENS, media=(MediaSpan("a", 3, 3),))
    extras = {0: [MultimodalKey("a", 3)], 1: [MultimodalKey("a", -1)]}
    assert prefix.keys(4) == prefix_keys(TOKENS, 4, seed=0, extras=extras)
    assert prefix.keys(4)[:1] != Prefix(TOKENS).keys(4)[:1]


@pytest.mark.parametrize(("more", "n_tokens"), [(False, 10), (True, 11)])
def test_last_block_counts_as_usable_when_the_prompt_goes_on(more: bool, n_tokens: int) -> None:
    assert Prefix(TOKENS, more=more).n_tokens == n_tokens


@pytest.mark.parametrize(
    ("lora", "salt"), [(None, None), ("a", None), (None, "s"), ("a", "s"), ("bytes", None), (None, "bytes")]
)
def test_no_key_is_shared_when_one_prompt_is_keyed_by_bytes(lora: str | None, salt: str | None) -> None:
    by_tokens = Prefix(TOKENS, lora=lora, salt=salt).keys(2)
    by_bytes = Prefix(TOKENS, lora=lora, salt=salt, namespace=Namespace.BYTES).keys(2)
    assert not set(by_tokens) & set(by_bytes)


def test_roots_differ_by_every_part() -> None:
    parts = [(lora, salt, space) for lora in (None, "x") for salt in (None, "x") for space in Namespace]
    roots = {root_key(lora=lora, salt=salt, seed=0, namespace=space) for lora, salt, space in parts}
    assert len(roots) == len(parts)
    assert None in roots


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(b"", [], id="empty"),
        pytest.param(b"\x03\x02\x01", [0x00010203], id="short"),
        pytest.param(
            b"\x07\x07\x07\x07\x02\x02\x02\x02x", [0x07070707, 0x02020202, 0x78], id="two_and_a_rest"
        ),
    ],
)
def test_bytes_are_taken_four_at_a_time(text: bytes, words: list[int]) -> None:
    assert words_of(text) == array("I", words)


@pytest.mark.parametrize(
    ("limits", "n_blocks"),
    [
        pytest.param(TextLimits(), 3, id="none"),
        pytest.param(TextLimits(max_tokens=9), 2, id="tokens_in_whole_blocks"),
        pytest.param(TextLimits(max_blocks=1), 1, id="blocks"),
        pytest.param(TextLimits(max_tokens=4, max_blocks=2), 1, id="tokens_before_blocks"),
        pytest.param(TextLimits(max_tokens=100), 3, id="longer_than_the_prompt"),
    ],
)
def test_last_block_of_a_text_has_a_key_up_to_the_limit(limits: TextLimits, n_blocks: int) -> None:
    prefix = Prefix(TOKENS, limits=limits)
    assert prefix.keys(4) == Prefix(TOKENS).covering_keys(4)[:n_blocks]
    assert prefix.covering_keys(4) == Prefix(TOKENS).covering_keys(4)
    assert prefix.n_tokens == len(TOKENS)


TOKEN_LISTS = st.lists(st.integers(0, 3), max_size=30)


@given(first=TOKEN_LISTS, second=TOKEN_LISTS, block_size=st.integers(1, 7))
def test_covering_keys_are_equal_where_all_tokens_up_to_there_are(
    first: list[int], second: list[int], block_size: int
) -> None:
    one, other = (Prefix(array("I", tokens)) for tokens in (first, second))
    covering = [each.covering_keys(block_size) for each in (one, other)]

    for tokens, keys in zip((first, second), covering, strict=True):
        assert len(keys) == -(-len(tokens) // block_size)
    for block, (key, another) in enumerate(zip(*covering, strict=False)):
        end = (block + 1) * block_size
        assert (key == another) == (first[:end] == second[:end])
    assert covering[0][: len(first) // block_size] == one.keys(block_size)


def test_covering_key_of_the_rest_tells_media_apart() -> None:
    tokens = array("I", range(6))

    one, other = (Prefix(tokens, media=[MediaSpan(name, 4, 2)]) for name in "ab")
    assert one.covering_keys(4)[0] == other.covering_keys(4)[0]
    assert one.covering_keys(4)[1] != other.covering_keys(4)[1]
