"""The native hash and keys beside the `xxhash` package and the Python definition."""

from __future__ import annotations

import random
from array import array

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.events.model import MultimodalKey
from kvatlas.indexer.errors import KeyInputError
from kvatlas.indexer.keys import BlockKey, prefix_keys

_native = pytest.importorskip(
    "kvatlas.indexer._native", reason="the native core was not built: install g++, and run make again"
)
native_index = pytest.importorskip("kvatlas.indexer.native_index")

SEEDS = st.sampled_from([0, 1, 2**32, 2**64 - 1]) | st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("seed", [0, 1, 0x9E3779B185EBCA87, 2**64 - 1])
def test_hash_is_xxh3_for_every_length(seed: int) -> None:
    data = random.Random(seed).randbytes(4096)
    wrong = [
        n for n in range(4097) if _native.xxh3_64(data[:n], seed) != xxhash.xxh3_64_intdigest(data[:n], seed)
    ]
    assert wrong == []


@given(st.binary(max_size=4096), SEEDS)
def test_hash_is_xxh3_for_every_input_and_seed(data: bytes, seed: int) -> None:
    assert _native.xxh3_64(data, seed) == xxhash.xxh3_64_intdigest(data, seed)


@given(
    tokens=st.lists(st.integers(0, 2**32 - 1), max_size=600).map(lambda ids: array("I", ids)),
    block_size=st.integers(1, 20) | st.sampled_from([64, 256, 1024, 2**64 - 1]),
    seed=SEEDS,
    parent=st.none() | st.integers(0, 2**64 - 1).map(BlockKey),
    lookahead=st.integers(0, 3) | st.just(2**64 - 1),
)
def test_keys_are_those_of_the_definition(
    tokens: array[int], block_size: int, seed: int, parent: BlockKey | None, lookahead: int
) -> None:
    wanted = prefix_keys(tokens, block_size, seed=seed, parent=parent, lookahead=lookahead)
    found = native_index.prefix_keys(tokens, block_size, seed=seed, parent=parent, lookahead=lookahead)
    assert found == wanted


ITEMS = st.lists(st.builds(MultimodalKey, st.text(max_size=3), st.integers(-5, 5)), min_size=1, max_size=2)


@given(
    n_tokens=st.integers(0, 60),
    block_size=st.integers(1, 7),
    extras=st.dictionaries(st.integers(0, 20), ITEMS, min_size=1),
    parent=st.none() | st.integers(0, 2**64 - 1).map(BlockKey),
    lookahead=st.integers(0, 3) | st.just(100),
)
def test_multimodal_items_enter_the_keys_of_the_blocks_that_they_touch(
    n_tokens: int,
    block_size: int,
    extras: dict[int, list[MultimodalKey]],
    parent: BlockKey | None,
    lookahead: int,
) -> None:
    tokens = array("I", range(n_tokens))
    found, wanted = (
        make(tokens, block_size, seed=1, parent=parent, extras=extras, lookahead=lookahead)
        for make in (native_index.prefix_keys, prefix_keys)
    )
    assert found == wanted


@pytest.mark.parametrize(("tokens", "block_size"), [(array("I", [1]), 0), (array("Q", [1]), 4)])
def test_impossible_input_is_refused_as_by_the_definition(tokens: array[int], block_size: int) -> None:
    with pytest.raises(KeyInputError, match=rf"'{tokens.typecode}'.*{block_size} tokens"):
        native_index.prefix_keys(tokens, block_size, seed=0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param((), TypeError, id="none"),
        pytest.param(([1], 4, 0, None, 0), TypeError, id="list"),
        pytest.param((array("Q", [1]), 4, 0, None, 0), TypeError, id="keys_for_tokens"),
        pytest.param((b"12345", 4, 0, None, 0), ValueError, id="part_of_a_token"),
        pytest.param((b"", 0, 0, None, 0), ValueError, id="block_size"),
        pytest.param((b"", 1.5, 0, None, 0), TypeError, id="float"),
        pytest.param((b"", 4, -1, None, 0), ValueError, id="seed_below"),
        pytest.param((b"", 4, 2**64, None, 0), ValueError, id="seed_above"),
        pytest.param((b"", 4, 0, 2**64, 0), ValueError, id="parent"),
        pytest.param((b"", 4, 0, None, -1), ValueError, id="lookahead"),
        pytest.param((memoryview(bytes(16))[::2], 1, 0, None, 0), BufferError, id="not_contiguous"),
    ],
)
def test_malformed_arguments_raise(arguments: tuple[object, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        _native.prefix_keys(*arguments)
