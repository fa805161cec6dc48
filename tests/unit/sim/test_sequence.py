from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.sim.sequence import Lora, TokenSequence

BLOCK = 4
LORA = Lora("adapter", 1)


def make_sequence(n_tokens: int, **identity: object) -> TokenSequence:
    return TokenSequence(array("I", range(n_tokens)), block_size=BLOCK, **identity)  # type: ignore[arg-type]


@pytest.mark.parametrize(("n_tokens", "n_blocks"), [(1, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_only_full_blocks_have_hashes(n_tokens: int, n_blocks: int) -> None:
    assert len(make_sequence(n_tokens).hashes) == n_blocks


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.lists(st.integers(0, 3), max_size=20))
def test_hashes_do_not_tell_prompt_from_generated_tokens(prompt: list[int], generated: list[int]) -> None:
    grown = TokenSequence(array("I", prompt), block_size=BLOCK)
    for token in generated:
        grown.extend([token])

    assert grown.hashes == TokenSequence(array("I", prompt + generated), block_size=BLOCK).hashes
    assert grown.n_prompt == len(prompt)


def test_a_block_hash_stands_for_everything_before_it() -> None:
    one, other = array("I", [1, 1, 1, 1, 5, 5, 5, 5]), array("I", [2, 1, 1, 1, 5, 5, 5, 5])

    hashes = [TokenSequence(prompt, block_size=BLOCK).hashes[1] for prompt in (one, other)]

    assert hashes[0] != hashes[1]


def test_adapter_and_salt_separate_equal_tokens() -> None:
    sequences = [
        make_sequence(8),
        make_sequence(8, salt="a"),
        make_sequence(8, salt="b"),
        make_sequence(8, lora=LORA),
        make_sequence(8, lora=LORA, salt="a"),
        make_sequence(8, lora=Lora("a", 2)),
    ]

    assert len({key for sequence in sequences for key in sequence.hashes}) == 2 * len(sequences)


def test_extra_keys_follow_vllm_when_adapter_and_salt_are_set() -> None:
    sequence = make_sequence(8, lora=LORA, salt="secret")

    assert [sequence.extra_keys(block) for block in range(2)] == [("adapter", "secret"), ("adapter",)]
    assert make_sequence(8).extra_keys(0) is None


def test_hashes_use_all_64_bits() -> None:
    hashes = make_sequence(400).hashes

    assert any(key > 2**63 for key in hashes)
    assert all(0 <= key < 2**64 for key in hashes)
