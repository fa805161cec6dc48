"""Prompts by owner as a tree, in which prompts with the same beginning share its start.

Block keys are chained, so a prompt's keys are a path from the root. The paths of all prompts form one compressed tree: a node
is a run of keys that the same prompts pass through.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)


class PrefixNode(Generic[Owner]):
    """A run of keys that the same prompts pass through; the root has none.

    Attributes:
        begin: blocks before the run.
        keys: the run.
        parent: the run before, None at the root.
        children: runs that continue from here, by their first key.
        counts: owner -> number of its prompts through this run.
        n_prompts: the sum of these numbers.
        marks: owner -> number of its marked prompts through this run.
        derived: what a user of the tree keeps about the owners; None once these have changed.
    """

    __slots__ = ("begin", "children", "counts", "derived", "keys", "marks", "n_prompts", "parent")

    def __init__(self, begin: int, keys: array[int], parent: PrefixNode[Owner] | None) -> None:
        self.begin, self.keys, self.parent = begin, keys, parent
        self.children: dict[int, PrefixNode[Owner]] = {}
        self.counts: dict[Owner, int] = {}
        self.marks: dict[Owner, int] = {}
        self.n_prompts = 0
        self.derived: object = None

    @property
    def end(self) -> int:
        """Blocks up to the end of the run."""
        return self.begin + len(self.keys)

    def path(self) -> array[int]:
        """Return the keys from the root to the end of the run. Cost: O(blocks)."""
        keys, node = array("Q"), self.parent
        while node is not None:
            keys = node.keys + keys
            node = node.parent
        return keys + self.keys

    def common(self, keys: array[int]) -> int:
        """Return the number of leading blocks that `keys` share with the path; they contain the run's first key.

        Cost: O(log n), since keys that are equal at one position are equal at all positions before it.
        """
        low, high = 1, min(len(self.keys), len(keys) - self.begin)
        while low < high:
            middle = (low + high + 1) // 2
            if self.keys[middle - 1] == keys[self.begin + middle - 1]:
                low = middle
            else:
                high = middle - 1
        return self.begin + low

    def split(self, end: int) -> PrefixNode[Owner]:
        """Split the run before block `end`: return a new node with the first part; this one keeps the rest."""
        assert self.parent is not None, "the root has no run"  # noqa: S101
        n_before = end - self.begin
        before = PrefixNode(self.begin, self.keys[:n_before], self.parent)
        before.counts, before.n_prompts, before.derived = self.counts.copy(), self.n_prompts, self.derived
        before.marks = self.marks.copy()
        before.children[self.keys[n_before]] = self
        self.parent.children[self.keys[0]] = before
        self.begin, self.keys, self.parent = end, self.keys[n_before:], before
        return before


class PrefixTree(Generic[Owner]):
    """The prompts of all owners, at one block size. It is false without prompts.

    Attributes:
        n_keys: distinct block keys.
    """

    def __init__(self) -> None:
        self._root: PrefixNode[Owner] = PrefixNode(0, array("Q"), None)
        self._n_blocks: dict[Owner, int] = {}
        self._n_marked: dict[Owner, int] = {}
        self.n_keys = 0

    def n_blocks(self, owner: Owner) -> int:
        """Return the distinct keys of the prompts of an owner. Cost: O(1)."""
        return self._n_blocks.get(owner, 0)

    def n_marked(self, owner: Owner) -> int:
        """Return the distinct keys of its marked prompts. Cost: O(1)."""
        return self._n_marked.get(owner, 0)

    def __bool__(self) -> bool:
        return bool(self._root.counts)

    def enter(self, owner: Owner, keys: array[int]) -> PrefixNode[Owner]:
        """Add a prompt of an owner, and return the end of its path.

        Cost: O(log n), plus a copy of the keys that no other prompt has, plus O(branches on the path).
        """
        end = self._end_of_path(keys)
        node: PrefixNode[Owner] | None = end
        n_new = 0
        while node is not None:
            if owner not in node.counts:
                node.derived = None
                n_new += len(node.keys)
            node.counts[owner] = node.counts.get(owner, 0) + 1
            node.n_prompts += 1
            node = node.parent
        _add(self._n_blocks, owner, n_new)
        return end

    def mark(self, owner: Owner, end: PrefixNode[Owner]) -> None:
        """Mark a prompt of an owner, by the end of its path. Cost: O(branches on the path)."""
        node: PrefixNode[Owner] | None = end
        n_new = 0
        while node is not None:
            if owner not in node.marks:
                n_new += len(node.keys)
            node.marks[owner] = node.marks.get(owner, 0) + 1
            node = node.parent
        _add(self._n_marked, owner, n_new)

    def leave(self, owner: Owner, end: PrefixNode[Owner], *, is_marked: bool = False) -> None:
        """Remove a prompt of an owner, by the end of its path, and all runs that nobody passes through any more."""
        node: PrefixNode[Owner] | None = end
        n_left = n_unmarked = 0
        while node is not None:
            node.counts[owner] -= 1
            node.n_prompts -= 1
            if not node.counts[owner]:
                del node.counts[owner]
                node.derived = None
                n_left += len(node.keys)
            if is_marked:
                node.marks[owner] -= 1
                if not node.marks[owner]:
                    del node.marks[owner]
                    n_unmarked += len(node.keys)
            if not node.counts and node.parent is not None:
                self.n_keys -= len(node.keys)
                del node.parent.children[node.keys[0]]
            node = node.parent
        _add(self._n_blocks, owner, -n_left)
        _add(self._n_marked, owner, -n_unmarked)

    def along(self, keys: array[int]) -> Iterator[tuple[PrefixNode[Owner], int]]:
        """Yield the runs along a prompt, from its start, with the leading blocks that it shares up to there.

        Cost: O(log n * branches on the path).
        """
        node = self._root
        while node.end < len(keys):
            child = node.children.get(keys[node.end])
            if child is None:
                return
            common = child.common(keys)
            yield child, common
            if common < child.end:
                return
            node = child

    def _end_of_path(self, keys: array[int]) -> PrefixNode[Owner]:
        """Return the node at the end of the path of `keys`, creating or splitting nodes as needed."""
        node = self._root
        while node.end < len(keys):
            child = node.children.get(keys[node.end])
            if child is None:
                child = node.children[keys[node.end]] = PrefixNode(node.end, keys[node.end :], node)
                self.n_keys += len(child.keys)
            else:
                common = child.common(keys)
                if common < child.end:
                    child = child.split(common)
            node = child
        return node


def _add(numbers: dict[Owner, int], owner: Owner, more: int) -> None:
    """Add to a number that is absent if it is 0."""
    if more:
        numbers[owner] = numbers.get(owner, 0) + more
        if not numbers[owner]:
            del numbers[owner]
