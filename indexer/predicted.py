"""Predicted prefixes: prompts just sent to endpoints, whose events have not arrived yet."""

from __future__ import annotations

import heapq
import itertools
import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from .prefix_tree import PrefixNode, PrefixTree

MAX_KEYS, MAX_PREDICTIONS = 2_000_000, 100_000
"""Distinct keys (16 MB) and predictions (some 25 MB) at once: 150 new prompts of 100,000 tokens per second for two
seconds stay below, and so do 50,000 requests per second. Beyond, those that would expire next are dropped."""


@dataclass(slots=True, eq=False)
class Prediction:
    """One prompt that one endpoint will compute; created by `PredictedPrefixes.add`.

    Attributes:
        endpoint: its name.
        block_size: tokens per block.
        lookahead: tokens after a block that belong to its key.
        last_key: key of the prompt's last full block.
        expires_at: monotonic seconds from which it does not count.
        node: end of its path; None once it was dropped.
        ttl_s: its lifetime.
        waits_until: monotonic seconds until which it is renewed instead of expiring, because its request may wait in the
            engine's queue; `begun` ends that.
    """

    endpoint: str
    block_size: int
    lookahead: int
    last_key: int
    expires_at: float
    node: PrefixNode[str] | None
    ttl_s: float
    waits_until: float

    @classmethod
    def dropped(cls, endpoint: str, block_size: int, lookahead: int, last_key: int) -> Prediction:
        """Return a prediction that counts nowhere."""
        never = -math.inf
        return cls(endpoint, block_size, lookahead, last_key, never, None, 0.0, never)

    def begun(self) -> None:
        """Note that the response began: the blocks are computed, so their events must come within the lifetime."""
        self.waits_until = -math.inf

    def keys(self) -> array[int]:
        """Return the keys of its path; none once it was dropped. Cost: O(blocks)."""
        return self.node.path() if self.node is not None else array("Q")


@dataclass(slots=True)
class PredictionCounters:
    """Counts of dropped predictions by reason.

    Attributes:
        confirmed: events showed the same blocks.
        expired: no events came in time after the response began, or within the longest wait.
        withdrawn: the request failed before the endpoint computed anything.
        forgotten: the endpoint was removed, started a new life, or has another block size.
        displaced: there were too many.
    """

    confirmed: int = 0
    expired: int = 0
    withdrawn: int = 0
    forgotten: int = 0
    displaced: int = 0


class PredictedPrefixes:
    """Predictions of all endpoints. Each counts until events confirm it, it expires, or it is dropped otherwise.

    Args:
        max_keys: distinct block keys at once; beyond, the predictions that would expire next are dropped.
        max_predictions: predictions at once, likewise.
    """

    def __init__(self, *, max_keys: int = MAX_KEYS, max_predictions: int = MAX_PREDICTIONS) -> None:
        self._max_keys, self._max_predictions = max_keys, max_predictions
        self._trees: dict[tuple[int, int], PrefixTree[str]] = {}
        """By block size and lookahead; none is empty."""
        self._by_expiry: list[tuple[float, int, Prediction]] = []
        """Heap of (expiry, number, prediction), including some dropped ones."""
        self._numbers = itertools.count()
        self._by_endpoint: dict[str, dict[Prediction, None]] = {}
        self.counters = PredictionCounters()

    def __len__(self) -> int:
        return sum(map(len, self._by_endpoint.values()))

    @property
    def n_keys(self) -> int:
        """Distinct block keys of all predictions."""
        return sum(tree.n_keys for tree in self._trees.values())

    @property
    def keyings(self) -> tuple[tuple[int, int], ...]:
        """Block sizes and lookaheads of all predictions."""
        return tuple(self._trees)

    def add(
        self,
        endpoint: str,
        keys: array[int],
        *,
        block_size: int,
        now: float,
        ttl_s: float,
        lookahead: int = 0,
        wait_s: float = 0.0,
    ) -> Prediction:
        """Add the prediction of a prompt that was sent to the endpoint.

        Args:
            endpoint: its name.
            keys: chained keys of the prompt's full blocks, at least one.
            block_size: tokens per block.
            now: monotonic seconds, never less than before.
            ttl_s: time until it expires.
            lookahead: tokens after a block that belong to its key.
            wait_s: time within which it is renewed instead, unless `Prediction.begun` was called.
        Cost: O(log n), plus a copy of the keys that no other prediction has, plus O(branches on the path).
        """
        self.expire(now=now)
        tree = self._trees.get((block_size, lookahead))
        if tree is None:
            tree = self._trees[block_size, lookahead] = PrefixTree()
        node = tree.enter(endpoint, keys)
        entry = Prediction(endpoint, block_size, lookahead, keys[-1], now + ttl_s, node, ttl_s, now + wait_s)
        self._push(entry)
        self._by_endpoint.setdefault(endpoint, {})[entry] = None
        while self.n_keys > self._max_keys or len(self._by_expiry) > self._max_predictions:
            self.counters.displaced += self._drop_next()
        return entry

    def match(self, keys: array[int], *, block_size: int, now: float, lookahead: int = 0) -> dict[str, int]:
        """Return endpoint -> leading blocks of a prompt that it is predicted to hold; endpoints without any are absent.

        Cost: O((log n + endpoints) * branches on the path).
        """
        self.expire(now=now)
        tree, blocks = self._trees.get((block_size, lookahead)), dict[str, int]()
        for node, common in tree.along(keys) if tree is not None else ():
            blocks.update(dict.fromkeys(node.counts, common))
        return blocks

    def withdraw(self, entry: Prediction) -> None:
        """Drop a prediction that the endpoint will not compute after all; a dropped one is ignored."""
        self.counters.withdrawn += self._drop(entry)

    def has(self, endpoint: str) -> bool:
        """Return whether predictions of the endpoint are open."""
        return endpoint in self._by_endpoint

    def confirm(self, endpoint: str, has_block: Callable[[Prediction], bool]) -> None:
        """Drop the predictions of an endpoint that its events have made true.

        Args:
            endpoint: its name.
            has_block: returns whether the endpoint has a prediction's last block in its fastest tier.
        Cost: one call of `has_block` per prediction of the endpoint.
        """
        known = [entry for entry in self._by_endpoint.get(endpoint, ()) if has_block(entry)]
        self.counters.confirmed += sum(map(self._drop, known))

    def forget(self, endpoint: str) -> None:
        """Drop all predictions of an endpoint that was removed or started a new life."""
        self.counters.forgotten += sum(map(self._drop, list(self._by_endpoint.get(endpoint, ()))))

    def resized(self, endpoint: str, block_size: int) -> None:
        """Drop predictions with another block size than the one that events have shown."""
        others = [each for each in self._by_endpoint.get(endpoint, ()) if each.block_size != block_size]
        self.counters.forgotten += sum(map(self._drop, others))

    def expire(self, *, now: float) -> None:
        """Drop the predictions that have expired at `now`, in monotonic seconds."""
        while self._by_expiry and (self._by_expiry[0][0] <= now or self._by_expiry[0][2].node is None):
            entry = self._by_expiry[0][2]
            if entry.node is not None and entry.waits_until > now:
                heapq.heappop(self._by_expiry)
                entry.expires_at = max(now + entry.ttl_s, math.nextafter(now, math.inf))
                self._push(entry)
            else:
                self.counters.expired += self._drop_next()

    def _push(self, entry: Prediction) -> None:
        heapq.heappush(self._by_expiry, (entry.expires_at, next(self._numbers), entry))

    def _drop_next(self) -> bool:
        """Drop the prediction that would expire next; return whether it still counted."""
        return self._drop(heapq.heappop(self._by_expiry)[2])

    def _drop(self, entry: Prediction) -> bool:
        """Drop a prediction; return whether it still counted."""
        node, entry.node = entry.node, None
        if node is None:
            return False
        others = self._by_endpoint[entry.endpoint]
        del others[entry]
        if not others:
            del self._by_endpoint[entry.endpoint]
        keying = entry.block_size, entry.lookahead
        tree = self._trees[keying]
        tree.leave(entry.endpoint, node)
        if not tree:
            del self._trees[keying]
        return True
