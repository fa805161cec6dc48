"""Reuse distances of blocks, and from them the hit rate of an LRU cache of any size, in one pass.

A block's reuse distance is the number of distinct blocks used since its last use. An LRU cache of C blocks holds the
block if and only if the distance is below C. A prompt is looked up as a whole and then becomes the most recent, its
first block above all others. Keys are chained, so two prompts that share a block share all blocks before it; a later
prompt takes over a leading part of the blocks that an earlier one used last. It is therefore enough to store which
prompt used a block last, and of how many blocks each prompt is still the last user: a run of blocks costs as much as one.

Only blocks whose key is below a threshold are sampled. The threshold is halved when they become too many, which bounds
memory, but not below the sample that the largest cache needs; from there the longest unused blocks are dropped.

Source: Waldspurger et al., Efficient MRC construction with SHARDS, FAST 2015: fixed-size sampling. Their correction puts
hits that the sample lacks at distance 0; here they are spread over the distances of the other hits.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate, groupby, repeat
from typing import Protocol

_SPACE = 1 << 64
_MAX_EXPONENT = 64.0
"""Half-lives after which weights are scaled down, far below the largest float."""


class ReuseDistances(Protocol):
    """Reuse distances of the blocks of successive prompts."""

    @property
    def rate(self) -> float:
        """Sampling rate, 0 to 1."""
        ...

    @property
    def n_keys(self) -> int:
        """Number of sampled blocks."""
        ...

    def use(self, keys: array[int], stride: int, n_blocks: float | None, now: float) -> None:
        """Record a served prompt.

        Args:
            keys: of its full blocks, in order; the last of every `stride` blocks stands for all of them.
            stride: blocks that count as one.
            n_blocks: number of such blocks including a partial last one; None if all are full.
            now: monotonic seconds, never less than before.
        Cost: O(keys / stride), plus a logarithm per prompt that last used some of them.
        """
        ...

    def hits(self, capacities: Sequence[int], *, now: float) -> list[float]:
        """Return the hits of LRU caches of these capacities in blocks, with old uses weighted less. Cost: O(max_keys)."""
        ...

    def n_blocks(self, *, now: float) -> float:
        """Return the blocks of all prompts, with old ones weighted less."""
        ...


class ReferenceReuseDistances:
    """`ReuseDistances` in Python.

    Args:
        max_keys: largest number of sampled blocks; the error of a hit rate is at most about `1 / sqrt(max_keys)`.
        max_capacity: largest cache of interest in blocks; None for any, with a sampling rate that falls with more blocks.
        half_life_s: time after which a use counts half; None to count all alike.
    """

    def __init__(
        self, *, max_keys: int = 32_768, max_capacity: int | None = None, half_life_s: float | None = None
    ) -> None:
        self._max_keys, self._half_life_s = max_keys, half_life_s
        self._max_halvings = halvings(max_keys, max_capacity)
        self._halvings = 0
        self._last_user: OrderedDict[int, int] = OrderedDict()
        """Sampled key -> number of the prompt that used it last, the longest unused first."""
        self._users = _Tally(2 * max_keys)
        self._changes = array("d", bytes(8 * (max_keys + 2)))
        """By distance among sampled blocks: uses at this distance minus uses at the previous one."""
        self._n_sampled = self._n_full = self._n_blocks = 0.0
        self._origin: float | None = None

    @property
    def rate(self) -> float:
        """See `ReuseDistances.rate`."""
        return 0.5**self._halvings

    @property
    def n_keys(self) -> int:
        """See `ReuseDistances.n_keys`."""
        return len(self._last_user)

    def use(self, keys: array[int], stride: int = 1, n_blocks: float | None = None, now: float = 0.0) -> None:
        """See `ReuseDistances.use`. Cost: 0.2 us per sampled key."""
        keys = keys[stride - 1 :: stride]
        weight = self._weight(now)
        self._n_full += weight * len(keys)
        self._n_blocks += weight * (len(keys) if n_blocks is None else n_blocks)
        sampled = self._sampled(keys)
        if not sampled:
            return
        weight *= 1 << self._halvings
        self._n_sampled += weight * len(sampled)
        last_users = map(self._last_user.pop, sampled, repeat(0))  # map avoids Python bytecode per key
        users = [(user, len(list(run))) for user, run in groupby(last_users)]
        for user, n_keys in users:
            if user:
                distance = self._users.after(user)
                self._changes[distance] += weight
                self._changes[distance + n_keys] -= weight
        self._become_recent(sampled, users)

    def hits(self, capacities: Sequence[int], *, now: float = 0.0) -> list[float]:
        """See `ReuseDistances.hits`. Cost: some 0.3 ms."""
        weight = self._weight(now)
        found = list(accumulate(accumulate(self._changes)))
        if not found[-1]:
            return [0.0] * len(capacities)
        # Hot blocks are few, so chance has them in the sample too often or too rarely. New blocks are many and come once,
        # so their share is more precise; all other uses are hits.
        n_new = self._n_sampled - found[-1]
        worth = max(0.0, self._n_full - n_new) / found[-1] / weight
        return [
            worth * _at(found, capacity, self._halvings) if capacity > 0 else 0.0 for capacity in capacities
        ]

    def n_blocks(self, *, now: float = 0.0) -> float:
        """See `ReuseDistances.n_blocks`."""
        weight = self._weight(now)
        return self._n_blocks / weight

    def _sampled(self, keys: Sequence[int]) -> Sequence[int]:
        if not self._halvings:
            return keys
        threshold = _SPACE >> self._halvings
        return [key for key in keys if key < threshold]

    def _become_recent(self, sampled: Sequence[int], users: Sequence[tuple[int, int]]) -> None:
        for user, n_keys in users:
            if user:
                self._users.add(user, -n_keys)
        if self._users.is_full:
            self._renumber()
        recent = dict.fromkeys(reversed(sampled), self._users.n_counts + 1)
        self._users.append(len(recent))
        self._last_user.update(recent)
        while len(self._last_user) > self._max_keys:
            if self._halvings < self._max_halvings:
                self._halve()
            else:
                _, user = self._last_user.popitem(last=False)
                self._users.add(user, -1)

    def _halve(self) -> None:
        """Halve the sampling rate; distances among sampled blocks are then half as long."""
        self._halvings += 1
        threshold = _SPACE >> self._halvings
        self._last_user = OrderedDict(each for each in self._last_user.items() if each[0] < threshold)
        self._renumber()
        uses = list(accumulate(self._changes))
        halved = [sum(uses[place : place + 2]) for place in range(0, len(uses), 2)]
        changes = [after - before for before, after in zip([0.0, *halved], halved, strict=False)]
        self._changes = array("d", changes + [0.0] * (len(uses) - len(changes)))

    def _renumber(self) -> None:
        """Renumber the prompts that are still last users. Cost: O(max_keys), once per `max_keys` prompts."""
        self._users = _Tally(2 * self._max_keys)
        numbers: dict[int, int] = {}
        for user, run in groupby(self._last_user.values()):
            numbers[user] = self._users.append(sum(1 for _ in run))
        for key, user in self._last_user.items():
            self._last_user[key] = numbers[user]

    def _weight(self, now: float) -> float:
        if self._half_life_s is None:
            return 1.0
        if self._origin is None:
            self._origin = now
        exponent = (now - self._origin) / self._half_life_s
        if exponent > _MAX_EXPONENT:
            self._scale(math.exp2(-exponent))
            self._origin, exponent = now, 0.0
        return math.exp2(exponent)

    def _scale(self, factor: float) -> None:
        self._changes = array("d", [factor * change for change in self._changes])
        self._n_sampled *= factor
        self._n_full *= factor
        self._n_blocks *= factor


class _Tally:
    """A list of counts with prefix sums (a Fenwick tree).

    Args:
        size: largest number of counts.
    """

    def __init__(self, size: int) -> None:
        self._tree = [0] * (size + 1)
        self.n_counts = self._total = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another count."""
        return self.n_counts + 1 == len(self._tree)

    def append(self, count: int) -> int:
        """Append a count; return its number, from 1 on."""
        self.n_counts += 1
        self.add(self.n_counts, count)
        return self.n_counts

    def add(self, number: int, change: int) -> None:
        """Change a count."""
        self._total += change
        while number < len(self._tree):
            self._tree[number] += change
            number += number & -number

    def after(self, number: int) -> int:
        """Return the sum of the counts after that one."""
        upto = 0
        while number:
            upto += self._tree[number]
            number &= number - 1
        return self._total - upto


def halvings(max_keys: int, max_capacity: int | None) -> int:
    """Return the most halvings of the sampling rate, after which the sample still covers the largest cache."""
    if max_capacity is None:
        return 63
    return max(0, math.ceil(math.log2(max_capacity / max_keys)))


def _at(found: Sequence[float], capacity: int, halvings: int) -> float:
    """Return the uses of sampled blocks at distances below a capacity."""
    return found[min(-(-capacity >> halvings), len(found)) - 1]
