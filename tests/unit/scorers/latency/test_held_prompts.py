"""Prompts under way by endpoint: what a new prompt has in common with them, beside a list of them."""

from __future__ import annotations

import math
from array import array

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvatlas.indexer.prefix import Prefix
from kvatlas.scorers.latency.held_prompts import HeldPrompt, HeldPrompts, held_tokens

N_ROWS = 4
ROWS = st.integers(0, N_ROWS - 1)
SIZES = st.sampled_from((1, 2))
PROMPTS = st.lists(st.integers(0, 1), max_size=7).map(tuple)
"""Of two tokens, so that many begin alike."""


def prefix_of(prompt: tuple[int, ...]) -> Prefix:
    return Prefix(array("I", prompt))


def common(one: tuple[int, ...], other: tuple[int, ...], block_size: int) -> int:
    """Return the tokens in equal leading blocks."""
    n_blocks = min(len(one), len(other)) // block_size
    found = (n for n in range(n_blocks, 0, -1) if one[: n * block_size] == other[: n * block_size])
    return next(found, 0) * block_size


class HeldMachine(RuleBasedStateMachine):
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.prompts = HeldPrompts()
        self.model: list[tuple[int, tuple[int, ...], int]] = []

    @rule(target=held, row=ROWS, prompt=PROMPTS, block_size=SIZES)
    def add(
        self, row: int, prompt: tuple[int, ...], block_size: int
    ) -> tuple[HeldPrompt | None, tuple[int, tuple[int, ...], int]]:
        added = self.prompts.add(row, prefix_of(prompt), block_size)
        assert (added is None) is (len(prompt) < block_size)
        entry = row, prompt, block_size
        if added is not None:
            self.model.append(entry)
        return added, entry

    @rule(known=consumes(held))
    def remove(self, known: tuple[HeldPrompt | None, tuple[int, tuple[int, ...], int]]) -> None:
        added, entry = known
        if added is not None:
            self.prompts.remove(added)
            self.model.remove(entry)

    @rule(target=held, known=consumes(held), row=ROWS)
    def move(
        self, known: tuple[HeldPrompt | None, tuple[int, tuple[int, ...], int]], row: int
    ) -> tuple[HeldPrompt | None, tuple[int, tuple[int, ...], int]]:
        added, entry = known
        if added is None:
            return known
        self.model.remove(entry)
        entry = row, *entry[1:]
        self.model.append(entry)
        return self.prompts.move(added, row), entry

    @rule(prompt=PROMPTS)
    def ask(self, prompt: tuple[int, ...]) -> None:
        expected = np.zeros(N_ROWS)
        for row, known, block_size in self.model:
            expected[row] = max(expected[row], common(prompt, known, block_size))
        sharing = self.prompts.sharing(prefix_of(prompt))
        assert held_tokens(sharing, N_ROWS).tolist() == expected.tolist()
        assert sharing is not None
        assert [each.n_tokens for each in sharing] == sorted(each.n_tokens for each in sharing)
        for each in sharing:
            sizes = [
                size
                for size in (1, 2)
                if each.n_requests
                == sum(
                    common(prompt, known, size) >= each.n_tokens
                    for _, known, block_size in self.model
                    if block_size == size
                )
            ]
            assert sizes, f"nobody has as many requests that share {each.n_tokens} tokens"

    @invariant()
    def keeps_nothing_of_nobody(self) -> None:
        keys = {
            (prompt[: n * size], size)
            for _, prompt, size in self.model
            for n in range(1, len(prompt) // size + 1)
        }
        assert self.prompts.n_keys == len(keys)


TestHeldPrompts = HeldMachine.TestCase


def test_nothing_is_known_without_block_keys() -> None:
    prompts = HeldPrompts()
    assert prompts.add(0, None, 16) is None
    assert prompts.add(0, prefix_of((1,) * 16), 0) is None, "an endpoint whose block size is unknown"
    assert prompts.sharing(None) is None
    assert all(map(math.isnan, held_tokens(None, 3).tolist()))


def test_prompts_beyond_the_bound_are_not_followed() -> None:
    prompts = HeldPrompts(max_keys=3)
    first = prompts.add(0, prefix_of((1, 1)), 1)
    assert first is not None
    assert prompts.add(1, prefix_of((1, 1)), 1) is None
    prompts.remove(first)
    assert prompts.add(1, prefix_of((1, 1)), 1) is not None
