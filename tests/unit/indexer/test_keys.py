"""Block keys: the public chained form, and the separation of prompts."""

from __future__ import annotations

import struct
from array import array

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.events.model import MultimodalKey
from kvatlas.indexer.errors import KeyInputError
from kvatlas.indexer.keys import BlockKey, chain_keys, prefix_keys, root_key
from kvatlas.indexer.local_hashes import chain_hashes

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=80).map(lambda ids: array("I", ids))


def by_definition(tokens: array[int], block_size: int, seed: int) -> list[int]:
    """Compute the keys block by block by the public definition, as any client can."""
    keys: list[int] = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        local = xxhash.xxh3_64_intdigest(
            struct.pack(f"<{block_size}I", *tokens[start : start + block_size]), seed
        )
        chained = struct.pack("<QQ", keys[-1], local) if keys else None
        keys.append(xxhash.xxh3_64_intdigest(chained, seed) if chained else local)
    return keys


@given(TOKENS, st.integers(1, 20), st.integers(0, 2**64 - 1))
def test_keys_are_the_public_chained_form(tokens: array[int], block_size: int, seed: int) -> None:
    keys = prefix_keys(tokens, block_size, seed=seed)
    assert list(keys) == by_definition(tokens, block_size, seed)


def test_keys_of_known_tokens_do_not_change() -> None:
    keys = prefix_keys(array("I", range(32)), 16, seed=0)
    assert list(keys) == [8773583392624668237, 14571380008329203442]


@given(TOKENS, st.integers(1, 20), st.integers(0, 5))
def test_keys_continue_from_a_parent(tokens: array[int], block_size: int, n_before: int) -> None:
    whole = prefix_keys(tokens, block_size, seed=0)
    n_before = min(n_before, len(whole))
    parent = BlockKey(whole[n_before - 1]) if n_before else None
    assert prefix_keys(tokens[n_before * block_size :], block_size, seed=0, parent=parent) == whole[n_before:]


@given(TOKENS)
def test_local_hashes_chain_to_the_same_keys(tokens: array[int]) -> None:
    local = [prefix_keys(tokens[i : i + 8], 8, seed=3)[0] for i in range(0, len(tokens) - 7, 8)]
    keys = prefix_keys(tokens, 8, seed=3)
    assert chain_keys(local, seed=3) == keys
    assert chain_hashes(array("Q", local), seed=3) == keys


def test_adapter_and_salt_separate_prompts() -> None:
    pairs = [(None, None), ("a", None), (None, "a"), ("a", "b"), ("ab", None), ("", "ab")]
    roots = [root_key(lora=lora, salt=salt, seed=0) for lora, salt in pairs]
    assert roots[0] is None
    assert len(set(roots)) == len(roots)
    assert root_key(lora="a", salt=None, seed=1) != roots[1]


def test_multimodal_items_separate_their_block_and_all_behind_it() -> None:
    tokens = array("I", range(12))
    plain = prefix_keys(tokens, 4, seed=0)
    image = prefix_keys(tokens, 4, seed=0, extras={1: [MultimodalKey("image", 0)]})
    moved = prefix_keys(tokens, 4, seed=0, extras={1: [MultimodalKey("image", 1)]})
    assert plain[0] == image[0] == moved[0]
    assert len({plain[1], image[1], moved[1]}) == len({plain[2], image[2], moved[2]}) == 3


@pytest.mark.parametrize(("tokens", "block_size"), [(array("I", [1]), 0), (array("Q", [1]), 4)])
def test_impossible_input_is_refused_with_its_value(tokens: array[int], block_size: int) -> None:
    with pytest.raises(KeyInputError, match=rf"'{tokens.typecode}'.*{block_size} tokens"):
        prefix_keys(tokens, block_size, seed=0)
