"""What endpoints will hold before their events say so: the prefixes of prompts just sent to them.

Block keys are chained, so a prompt's keys are a path from a root, and prompts that begin alike share the path's
beginning. The paths of all predictions form one compressed tree a block size: a node is a run of keys that the same
predictions go through.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from .match import PrefixMatch, RankMatch

MAX_KEYS, MAX_PREDICTIONS = 2_000_000, 100_000
"""Distinct keys (16 MB) and predictions (some 25 MB) at once: 150 new prompts of 100,000 tokens a second for two seconds
do not reach it, nor do 50,000 requests a second. Past it those that would expire next go first."""


class _Node:
    """A run of keys that the same predictions go through; the root has none.

    Attributes:
        begin: blocks before the run.
        keys: the run.
        parent: the run before, None at the root.
        children: runs that go on from here, by their first key.
        counts: endpoint -> its predictions through here.
    """

    __slots__ = ("begin", "children", "counts", "keys", "parent")

    def __init__(self, begin: int, keys: array[int], parent: _Node | None) -> None:
        self.begin, self.keys, self.parent = begin, keys, parent
        self.children: dict[int, _Node] = {}
        self.counts: dict[str, int] = {}

    @property
    def end(self) -> int:
        """Blocks up to the end of the run."""
        return self.begin + len(self.keys)

    def common(self, keys: array[int]) -> int:
        """Blocks from block 0 on that `keys`, which go through the run's first key, have in common with the path.

        Cost: O(log n): equal keys at one place are equal at all places before it.
        """
        low, high = 1, min(len(self.keys), len(keys) - self.begin)
        while low < high:
            middle = (low + high + 1) // 2
            if self.keys[middle - 1] == keys[self.begin + middle - 1]:
                low = middle
            else:
                high = middle - 1
        return self.begin + low

    def split(self, end: int) -> _Node:
        """Cut the run before block `end`: the new node has what is before, this one what is behind."""
        assert self.parent is not None, "the root has no run"  # noqa: S101
        n_before = end - self.begin
        before = _Node(self.begin, self.keys[:n_before], self.parent)
        before.counts = self.counts.copy()
        before.children[self.keys[n_before]] = self
        self.parent.children[self.keys[0]] = before
        self.begin, self.keys, self.parent = end, self.keys[n_before:], before
        return before


@dataclass(slots=True, eq=False)
class Prediction:
    """One prompt that one endpoint is about to compute; made by `PredictedPrefixes.add`.

    Attributes:
        endpoint: its name.
        block_size: tokens a block.
        last_key: key of the prompt's last full block.
        expires_at: monotonic seconds from which it does not count.
        node: where its path ends; None once it does not count any more.
    """

    endpoint: str
    block_size: int
    last_key: int
    expires_at: float
    node: _Node | None


@dataclass(slots=True)
class PredictionCounters:
    """How predictions ended.

    Attributes:
        confirmed: events told the same.
        expired: events told nothing in time.
        withdrawn: the request failed before the endpoint computed anything.
        forgotten: the endpoint went away, began a new life, or turned out to have another block size.
        displaced: there was no room for more.
    """

    confirmed: int = 0
    expired: int = 0
    withdrawn: int = 0
    forgotten: int = 0
    displaced: int = 0


class PredictedPrefixes:
    """Predictions of all endpoints. Each counts until it is dropped, confirmed by events, or expired.

    Args:
        max_keys: distinct block keys in all of them, past which those that would expire next go.
        max_predictions: predictions at once, likewise.
    """

    def __init__(self, *, max_keys: int = MAX_KEYS, max_predictions: int = MAX_PREDICTIONS) -> None:
        self._max_keys, self._max_predictions = max_keys, max_predictions
        self._roots: dict[int, _Node] = {}
        self._by_expiry: list[tuple[float, int, Prediction]] = []
        """Heap of (expiry, number, prediction), with some that do not count any more."""
        self._numbers = itertools.count()
        self._by_endpoint: dict[str, dict[Prediction, None]] = {}
        self.counters = PredictionCounters()
        self.n_keys = 0
        """Distinct block keys in all that count."""

    def __len__(self) -> int:
        return sum(map(len, self._by_endpoint.values()))

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Block sizes of all that count."""
        return tuple(self._roots)

    def add(
        self, endpoint: str, keys: array[int], *, block_size: int, now: float, ttl_s: float
    ) -> Prediction:
        """A prompt was sent to the endpoint.

        Args:
            endpoint: its name.
            keys: chained keys of the prompt's full blocks, at least one.
            block_size: tokens a block.
            now: monotonic seconds, never less than before.
            ttl_s: how long it counts.
        Cost: O(log n) and a copy of the keys that no other prediction has; with many branches O(branches on the path).
        """
        self.expire(now=now)
        node = self._end_of_path(self._roots.setdefault(block_size, _Node(0, array("Q"), None)), keys)
        entry = Prediction(endpoint, block_size, keys[-1], now + ttl_s, node)
        above: _Node | None = node
        while above is not None:
            above.counts[endpoint] = above.counts.get(endpoint, 0) + 1
            above = above.parent
        heapq.heappush(self._by_expiry, (entry.expires_at, next(self._numbers), entry))
        self._by_endpoint.setdefault(endpoint, {})[entry] = None
        while self.n_keys > self._max_keys or len(self._by_expiry) > self._max_predictions:
            self.counters.displaced += self._drop_next()
        return entry

    def match(self, keys: array[int], *, block_size: int, now: float) -> dict[str, int]:
        """Endpoint -> leading blocks of a prompt that it is predicted to hold; endpoints without any are absent.

        Cost: O((log n + endpoints) * branches on the path).
        """
        self.expire(now=now)
        node, blocks = self._roots.get(block_size), dict[str, int]()
        while node is not None and node.end < len(keys):
            node = node.children.get(keys[node.end])
            if node is None:
                break
            common = node.common(keys)
            blocks.update(dict.fromkeys(node.counts, common))
            if common < node.end:
                break
        return blocks

    def withdraw(self, entry: Prediction) -> None:
        """The endpoint will not compute it after all. Nothing happens when it does not count any more."""
        self.counters.withdrawn += self._drop(entry)

    def confirm(self, endpoint: str, has_block: Callable[[Prediction], bool]) -> None:
        """Events of the endpoint came: drop what the index knows from them.

        Args:
            endpoint: its name.
            has_block: whether the endpoint has a prediction's last block in its fastest tier.
        Cost: one question for each prediction of the endpoint.
        """
        known = [entry for entry in self._by_endpoint.get(endpoint, ()) if has_block(entry)]
        self.counters.confirmed += sum(map(self._drop, known))

    def forget(self, endpoint: str) -> None:
        """The endpoint is gone or began a new life."""
        self.counters.forgotten += sum(map(self._drop, list(self._by_endpoint.get(endpoint, ()))))

    def resized(self, endpoint: str, block_size: int) -> None:
        """Events have shown the block size of the endpoint: drop what was predicted by another one."""
        others = [each for each in self._by_endpoint.get(endpoint, ()) if each.block_size != block_size]
        self.counters.forgotten += sum(map(self._drop, others))

    def expire(self, *, now: float) -> None:
        """Drop what does not count any more at `now`, in monotonic seconds."""
        while self._by_expiry and (self._by_expiry[0][0] <= now or self._by_expiry[0][2].node is None):
            self.counters.expired += self._drop_next()

    def _drop_next(self) -> bool:
        """Drop what would expire next; returns whether it counted until now."""
        return self._drop(heapq.heappop(self._by_expiry)[2])

    def _drop(self, entry: Prediction) -> bool:
        """Returns whether it counted until now."""
        node, entry.node = entry.node, None
        if node is None:
            return False
        others = self._by_endpoint[entry.endpoint]
        del others[entry]
        if not others:
            del self._by_endpoint[entry.endpoint]
        while node is not None:
            node = self._leave(node, entry)
        return True

    def _end_of_path(self, node: _Node, keys: array[int]) -> _Node:
        """The node in which the path of `keys` ends, made where there is none."""
        while node.end < len(keys):
            child = node.children.get(keys[node.end])
            if child is None:
                child = node.children[keys[node.end]] = _Node(node.end, keys[node.end :], node)
                self.n_keys += len(child.keys)
            else:
                common = child.common(keys)
                if common < child.end:
                    child = child.split(common)
            node = child
        return node

    def _leave(self, node: _Node, entry: Prediction) -> _Node | None:
        """Take a prediction out of a node, and the node out of the tree with its last one; returns the node above."""
        node.counts[entry.endpoint] -= 1
        if not node.counts[entry.endpoint]:
            del node.counts[entry.endpoint]
        if not node.counts:
            self.n_keys -= len(node.keys)
            if node.parent is None:
                del self._roots[entry.block_size]
            else:
                del node.parent.children[node.keys[0]]
        return node.parent


def with_predicted(match: PrefixMatch, n_blocks: int, *, n_tokens: int) -> PrefixMatch:
    """A match as it will be when the endpoint holds the first `n_blocks` of the prompt in its fastest tier.

    Args:
        match: what it holds.
        n_blocks: blocks predicted.
        n_tokens: tokens of the prompt.
    Returns:
        the match, with at least those blocks in the fastest tier, and `predicted_blocks` of them that are not there yet.
        What it holds behind a gap that the prediction would close, beyond the union prefix, does not count.
    Cost: O(runs).
    """
    held = match.held
    if n_blocks <= held.tier_blocks[0]:
        return match
    runs = _with_fastest(held.runs, n_blocks)
    fastest = runs[0][1]
    usable = min(fastest, max(0, n_tokens - 1) // match.block_size)
    figures = RankMatch.from_runs((fastest, *held.tier_blocks[1:]), runs, max(usable, held.usable_blocks))
    return msgspec.structs.replace(match, held=figures, predicted_blocks=fastest - held.tier_blocks[0])


def _with_fastest(runs: tuple[tuple[int, int], ...], n_blocks: int) -> tuple[tuple[int, int], ...]:
    """The runs of a union prefix with the first `n_blocks` in tier 0."""
    rest: list[tuple[int, int]] = []
    position = 0
    for tier, n in runs:
        position += n
        if position > n_blocks:
            rest.append((tier, min(n, position - n_blocks)))
    if rest and rest[0][0] == 0:
        n_blocks += rest.pop(0)[1]
    return ((0, n_blocks), *rest)
