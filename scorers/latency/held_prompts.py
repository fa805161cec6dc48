"""Prompts of own requests under way, by endpoint: what their blocks on a GPU have in common with a new prompt."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from ...indexer.prefix import Prefix
from ...indexer.prefix_tree import PrefixNode, PrefixTree
from ..core.columns import FloatArray, RowArray

MAX_KEYS = 4_000_000
"""Distinct block keys at once, 32 MB: 600 prompts of 100,000 tokens that share nothing. Further prompts are not followed."""


class HeldPrompt(NamedTuple):
    """A prompt whose blocks a request holds.

    Attributes:
        row: of its endpoint.
        n_tokens: tokens that count for it if its blocks are not followed.
        block_size: tokens per block.
        end: of its path in the tree of this block size, None if its blocks are not followed.
    """

    row: int
    n_tokens: float
    block_size: int
    end: PrefixNode[int] | None


class Sharing(NamedTuple):
    """Requests that share the leading tokens of a prompt.

    Attributes:
        rows: of their endpoints, each once.
        n_requests: number of them.
        n_tokens: tokens that they share.
    """

    rows: RowArray
    n_requests: int
    n_tokens: int


class HeldPrompts:
    """Prompts that requests hold on each endpoint. Bounded.

    Args:
        max_keys: distinct block keys at once.
    """

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._trees: dict[int, PrefixTree[int]] = {}
        """By block size; none is empty."""
        self._apart: dict[int, tuple[float, float]] = {}
        """By row, the tokens of prompts whose blocks are not followed, and of those whose response has begun."""

    @property
    def n_keys(self) -> int:
        """Distinct block keys of all prompts."""
        return sum(tree.n_keys for tree in self._trees.values())

    def add(self, row: int, prefix: Prefix | None, block_size: int, *, n_tokens: float = 0.0) -> HeldPrompt:
        """Note that a request holds its prompt.

        Args:
            row: of its endpoint.
            prefix: block keys of the prompt, None if they are unknown. Its blocks are not followed then, nor without a full
                block, nor if too many are followed.
            block_size: tokens per block, 0 if that is unknown.
            n_tokens: tokens that count for it if its blocks are not followed.
        Cost: see `PrefixTree.enter`.
        """
        keys = prefix.keys(block_size) if prefix is not None and block_size else array("Q")
        return self._entered(row, keys, block_size, n_tokens)

    def begun(self, prompt: HeldPrompt) -> None:
        """Note that a response began. Cost: see `PrefixTree.mark`."""
        row, n_tokens, block_size, end = prompt
        if end is None:
            self._count(row, 0.0, n_tokens)
        else:
            self._trees[block_size].mark(row, end)

    def move(self, prompt: HeldPrompt, row: int, *, has_begun: bool) -> HeldPrompt:
        """Give a prompt to another row. Cost: O(blocks)."""
        keys = prompt.end.path() if prompt.end is not None else array("Q")
        self.remove(prompt, has_begun=has_begun)
        moved = self._entered(row, keys, prompt.block_size, prompt.n_tokens)
        if has_begun:
            self.begun(moved)
        return moved

    def remove(self, prompt: HeldPrompt, *, has_begun: bool) -> None:
        """Note that a request gave its blocks back, after or before its response has begun."""
        row, n_tokens, block_size, end = prompt
        if end is None:
            self._count(row, -n_tokens, -n_tokens if has_begun else 0.0)
            return
        tree = self._trees[block_size]
        tree.leave(row, end, is_marked=has_begun)
        if not tree:
            del self._trees[block_size]

    def n_tokens(self, row: int) -> tuple[float, float]:
        """Return the tokens of all prompts on an endpoint, and of those whose response has begun, of shared blocks once.

        Cost: O(block sizes).
        """
        total, begun = self._apart.get(row, (0.0, 0.0))
        for block_size, tree in self._trees.items():
            total += tree.n_blocks(row) * block_size
            begun += tree.n_marked(row) * block_size
        return total, begun

    def sharing(self, prefix: Prefix | None) -> list[Sharing] | None:
        """Return which requests share leading tokens of a prompt, by ascending tokens; None if its blocks are unknown.

        Cost: see `PrefixTree.along`; O(rows) for each branch that has changed.
        """
        if prefix is None:
            return None
        found = [
            Sharing(_rows(node), node.n_prompts, n_blocks * block_size)
            for block_size, tree in self._trees.items()
            for node, n_blocks in tree.along(prefix.keys(block_size))
        ]
        if len(self._trees) > 1:
            found.sort(key=_tokens_of)
        return found

    def _entered(self, row: int, keys: array[int], block_size: int, n_tokens: float) -> HeldPrompt:
        if not keys or self.n_keys + len(keys) > self._max_keys:
            n_tokens = float(round(n_tokens))  # a part of a token may be doubtful
            self._count(row, n_tokens, 0.0)
            return HeldPrompt(row, n_tokens, block_size, None)
        tree = self._trees.get(block_size)
        if tree is None:
            tree = self._trees[block_size] = PrefixTree()
        return HeldPrompt(row, n_tokens, block_size, tree.enter(row, keys))

    def _count(self, row: int, n_tokens: float, n_begun: float) -> None:
        """Add tokens of prompts that are not followed: whole numbers, which add up without rounding errors."""
        total, begun = self._apart.get(row, (0.0, 0.0))
        if total + n_tokens:
            self._apart[row] = total + n_tokens, begun + n_begun
        else:
            self._apart.pop(row, None)


def held_tokens(sharing: Sequence[Sharing] | None, n_rows: int) -> FloatArray:
    """Return the leading tokens of a prompt whose blocks requests hold, by row; NaN if its blocks are unknown."""
    if sharing is None:
        return np.full(n_rows, math.nan)
    tokens = np.zeros(n_rows)
    for rows, _, n_tokens in sharing:
        tokens[rows] = n_tokens
    return tokens


def _rows(node: PrefixNode[int]) -> RowArray:
    """Return the rows whose prompts pass through a node. Cost: O(1) until they change."""
    if node.derived is None:
        node.derived = np.fromiter(node.counts, np.intp, len(node.counts))
    return cast("RowArray", node.derived)


def _tokens_of(sharing: Sharing) -> int:
    return sharing.n_tokens
