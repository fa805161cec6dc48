"""Prompts under way by endpoint: what a new prompt has in common with them, beside a list of them."""

from __future__ import annotations

import math
from array import array
from typing import TypeAlias

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


Known: TypeAlias = tuple[HeldPrompt, tuple[int, tuple[int, ...], int]]
"""What `HeldPrompts` gave for a prompt, and its row, tokens and block size."""

ALONE = 100.0
"""Tokens that count for a prompt without a block."""


class HeldMachine(RuleBasedStateMachine):
    waiting, begun = Bundle("waiting"), Bundle("begun")

    def __init__(self) -> None:
        super().__init__()
        self.prompts = HeldPrompts()
        self.model: list[tuple[int, tuple[int, ...], int]] = []
        self.model_begun: list[tuple[int, tuple[int, ...], int]] = []

    @rule(target=waiting, row=ROWS, prompt=PROMPTS, block_size=SIZES)
    def add(self, row: int, prompt: tuple[int, ...], block_size: int) -> Known:
        added = self.prompts.add(row, prefix_of(prompt), block_size, n_tokens=ALONE)
        assert (added.end is None) is (len(prompt) < block_size)
        entry = row, prompt, block_size
        self.model.append(entry)
        return added, entry

    @rule(target=begun, known=consumes(waiting))
    def begin(self, known: Known) -> Known:
        added, entry = known
        self.prompts.begun(added)
        self.model_begun.append(entry)
        return known

    @rule(known=consumes(waiting))
    def remove(self, known: Known) -> None:
        self.prompts.remove(known[0], has_begun=False)
        self.model.remove(known[1])

    @rule(known=consumes(begun))
    def end(self, known: Known) -> None:
        self.prompts.remove(known[0], has_begun=True)
        self.model.remove(known[1])
        self.model_begun.remove(known[1])

    @rule(target=waiting, known=consumes(waiting), row=ROWS)
    def move(self, known: Known, row: int) -> Known:
        return self.moved(known, row, has_begun=False)

    @rule(target=begun, known=consumes(begun), row=ROWS)
    def move_begun(self, known: Known, row: int) -> Known:
        return self.moved(known, row, has_begun=True)

    def moved(self, known: Known, row: int, *, has_begun: bool) -> Known:
        added, entry = known
        moved = row, *entry[1:]
        for entries in (self.model, self.model_begun)[: 1 + has_begun]:
            entries.remove(entry)
            entries.append(moved)
        return self.prompts.move(added, row, has_begun=has_begun), moved

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

    @invariant()
    def counts_shared_blocks_once(self) -> None:
        for row in range(N_ROWS):
            expected = tokens_of(self.model, row), tokens_of(self.model_begun, row)
            assert self.prompts.n_tokens(row) == expected


def tokens_of(entries: list[tuple[int, tuple[int, ...], int]], row: int) -> float:
    own = [(prompt, size) for at, prompt, size in entries if at == row]
    blocks = {(prompt[: n * size], size) for prompt, size in own for n in range(1, len(prompt) // size + 1)}
    return sum(size for _, size in blocks) + ALONE * sum(len(prompt) < size for prompt, size in own)


TestHeldPrompts = HeldMachine.TestCase


def test_nothing_is_known_without_block_keys() -> None:
    prompts = HeldPrompts()
    assert prompts.add(0, None, 16).end is None
    assert prompts.add(0, prefix_of((1,) * 16), 0).end is None, "an endpoint whose block size is unknown"
    assert prompts.sharing(None) is None
    assert all(map(math.isnan, held_tokens(None, 3).tolist()))


def test_prompts_beyond_the_bound_are_not_followed() -> None:
    prompts = HeldPrompts(max_keys=3)
    first = prompts.add(0, prefix_of((1, 1)), 1)
    assert prompts.add(1, prefix_of((1, 1)), 1, n_tokens=2.0).end is None
    assert prompts.n_tokens(1) == (2.0, 0.0)
    prompts.remove(first, has_begun=False)
    assert prompts.add(1, prefix_of((1, 1)), 1).end is not None


def test_parts_of_tokens_leave_nothing_behind() -> None:
    prompts = HeldPrompts(max_keys=0)
    added = [prompts.add(0, prefix_of((1, 1)), 1, n_tokens=n_tokens) for n_tokens in (60.1, 13.3, 2.7)]
    prompts.begun(added[0])
    for each in added:
        prompts.remove(each, has_begun=each is added[0])
    assert prompts.n_tokens(0) == (0.0, 0.0)
