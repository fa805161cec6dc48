"""How far apart uses of the same block lie, and from that the hit rate of an LRU cache of any size, in one pass.

A block's reuse distance is the number of distinct blocks used since its last use: an LRU cache of C blocks holds it if and only if
that is below C. Prompts are looked up at once, and then become the most recent, the first block above all others. Blocks are known
by chained keys, so whoever shares a block shares all before it; of the blocks that a prompt was the last to use, a later one
takes a leading part. So it is enough to know which prompt used a block last, and how many blocks each prompt is still the last
user of: a run of blocks costs as much as one.

Only blocks whose key falls below a threshold are followed. It is halved when they become too many, so that memory stays bounded
whatever comes, down to what caches of the largest size need; from there the longest unused are forgotten.

Source: Waldspurger et al., Efficient MRC construction with SHARDS, FAST 2015: fixed-size sampling. Their correction takes hits that
the sample lacks to be at distance 0; here they are at the distances of the others.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate, groupby, repeat

_SPACE = 1 << 64
_MAX_EXPONENT = 64.0
"""Half-lives after which weights are brought down, far from the largest float."""


class ReuseDistances:
    """Distances of the blocks of successive prompts.

    Args:
        max_keys: blocks followed at most; the error of a hit rate is about `1 / sqrt(max_keys)` at worst.
        max_capacity: largest cache that is of interest, in blocks; None for any, with a sample that thins out as blocks come.
        half_life_s: after this time a use counts half; None: all count alike.
    """

    def __init__(
        self, *, max_keys: int = 32_768, max_capacity: int | None = None, half_life_s: float | None = None
    ) -> None:
        self._max_keys, self._half_life_s = max_keys, half_life_s
        self._max_halvings = _halvings(max_keys, max_capacity)
        self._halvings = 0
        self._last_user: OrderedDict[int, int] = OrderedDict()
        """Followed key -> number of the prompt that used it last, the longest unused first."""
        self._users = _Tally(2 * max_keys)
        self._changes = array("d", bytes(8 * (max_keys + 2)))
        """By distance among followed blocks: what the uses at it have more than those at the distance before."""
        self._n_sampled = self._n_full = self._n_blocks = 0.0
        self._origin: float | None = None

    @property
    def rate(self) -> float:
        """Part of the blocks that is followed, 0 to 1."""
        return 0.5**self._halvings

    @property
    def n_keys(self) -> int:
        """Blocks that are followed."""
        return len(self._last_user)

    def use(self, keys: Sequence[int], *, n_blocks: float | None = None, now: float = 0.0) -> None:
        """A prompt was served.

        Args:
            keys: of its full blocks, in order.
            n_blocks: with the part of a block behind them; None: they are all.
            now: monotonic seconds, never less than before.
        Cost: O(keys), and a logarithm for each prompt that last used some of them; 0.2 us a followed key.
        """
        weight = self._weight(now)
        self._n_full += weight * len(keys)
        self._n_blocks += weight * (len(keys) if n_blocks is None else n_blocks)
        followed = self._followed(keys)
        if not followed:
            return
        weight *= 1 << self._halvings
        self._n_sampled += weight * len(followed)
        last_users = map(self._last_user.pop, followed, repeat(0))  # no line of Python for a key
        users = [(user, len(list(run))) for user, run in groupby(last_users)]
        for user, n_keys in users:
            if user:
                distance = self._users.after(user)
                self._changes[distance] += weight
                self._changes[distance + n_keys] -= weight
        self._become_recent(followed, users)

    def hits(self, capacities: Sequence[int], *, now: float = 0.0) -> list[float]:
        """Blocks that LRU caches of so many blocks would have found, those long ago counted less.

        Cost: O(max_keys), some 0.1 ms.
        """
        found = list(accumulate(accumulate(self._changes)))
        if not found[-1]:
            return [0.0] * len(capacities)
        # Chance has hot blocks, which are few, in the sample too often or too seldom. New ones are many and come once,
        # so that their part is known better: whatever else was used was found.
        n_new = self._n_sampled - found[-1]
        worth = max(0.0, self._n_full - n_new) / found[-1] / self._weight(now)
        return [
            worth * _at(found, capacity, self._halvings) if capacity > 0 else 0.0 for capacity in capacities
        ]

    def n_blocks(self, *, now: float = 0.0) -> float:
        """Blocks of all prompts, those long ago counted less."""
        return self._n_blocks / self._weight(now)

    def hit_rate(self, capacity: int, *, now: float = 0.0) -> float:
        """Part of the blocks an LRU cache of `capacity` blocks would have found, 0 to 1."""
        n_blocks = self.n_blocks(now=now)
        return self.hits([capacity], now=now)[0] / n_blocks if n_blocks else 0.0

    def _followed(self, keys: Sequence[int]) -> Sequence[int]:
        if not self._halvings:
            return keys
        threshold = _SPACE >> self._halvings
        return [key for key in keys if key < threshold]

    def _become_recent(self, followed: Sequence[int], users: Sequence[tuple[int, int]]) -> None:
        for user, n_keys in users:
            if user:
                self._users.add(user, -n_keys)
        if self._users.is_full:
            self._renumber()
        number = self._users.append(len(followed))
        self._last_user.update(dict.fromkeys(reversed(followed), number))
        while len(self._last_user) > self._max_keys:
            if self._halvings < self._max_halvings:
                self._halve()
            else:
                _, user = self._last_user.popitem(last=False)
                self._users.add(user, -1)

    def _halve(self) -> None:
        """Follow half of the blocks from now on; distances among them are half as long."""
        self._halvings += 1
        threshold = _SPACE >> self._halvings
        self._last_user = OrderedDict(each for each in self._last_user.items() if each[0] < threshold)
        self._renumber()
        uses = list(accumulate(self._changes))
        halved = [sum(uses[place : place + 2]) for place in range(0, len(uses), 2)]
        changes = [after - before for before, after in zip([0.0, *halved], halved, strict=False)]
        self._changes = array("d", changes + [0.0] * (len(uses) - len(changes)))

    def _renumber(self) -> None:
        """Number the prompts anew that are still the last users of something. Cost: O(max_keys), once in as many prompts."""
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
    """Counts in a row to which one more is appended: a Fenwick tree.

    Args:
        size: counts at most.
    """

    def __init__(self, size: int) -> None:
        self._tree = [0] * (size + 1)
        self._n_counts = self._total = 0

    @property
    def is_full(self) -> bool:
        """Whether no further count has room."""
        return self._n_counts + 1 == len(self._tree)

    def append(self, count: int) -> int:
        """One more count; its number, from 1 on."""
        self._n_counts += 1
        self.add(self._n_counts, count)
        return self._n_counts

    def add(self, number: int, change: int) -> None:
        """Change a count."""
        self._total += change
        while number < len(self._tree):
            self._tree[number] += change
            number += number & -number

    def after(self, number: int) -> int:
        """Sum of the counts behind that one."""
        upto = 0
        while number:
            upto += self._tree[number]
            number &= number - 1
        return self._total - upto


def _halvings(max_keys: int, max_capacity: int | None) -> int:
    """Halvings of the sample until it has just the blocks of the largest cache."""
    if max_capacity is None:
        return 63
    return max(0, math.ceil(math.log2(max_capacity / max_keys)))


def _at(found: Sequence[float], capacity: int, halvings: int) -> float:
    """Uses at distances below a capacity, of the followed blocks."""
    return found[min(-(-capacity >> halvings), len(found)) - 1]
