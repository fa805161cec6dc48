"""How far apart uses of the same block lie, and from that the hit rate of an LRU cache of any size, in one pass.

A block's reuse distance is the number of distinct blocks used since its last use: an LRU cache of C blocks holds it if and only if
that is below C. Only blocks whose hash falls below a threshold are followed, and the threshold falls as they become
too many, so that memory stays bounded whatever comes.

Source: Waldspurger et al., Efficient MRC construction with SHARDS, FAST 2015: fixed-size sampling, with the count of sampled
uses corrected to the expected one.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence

_SPACE = 1 << 64
_MIX = 0x9E3779B97F4A7C15
"""Odd, so that multiplying by it permutes 64-bit numbers; spreads keys that are not uniform."""


class ReuseDistances:
    """Distances of the blocks of successive prompts.

    Args:
        max_keys: blocks followed at most; the error of a hit rate is about `1 / sqrt(max_keys)` at worst.
    """

    def __init__(self, *, max_keys: int = 32_768) -> None:
        self._max_keys = max_keys
        self._threshold = _SPACE
        self._stack = _RecencyStack()
        self._sampled: list[tuple[int, int]] = []
        """(-mix, key) of the followed blocks, the highest mix first."""
        self._hits: defaultdict[int, float] = defaultdict(float)
        """Distance -> uses, both of all blocks as the sample has them."""
        self._n_uses = 0
        self._n_sampled = 0.0

    @property
    def rate(self) -> float:
        """Part of the blocks that is followed, 0 to 1."""
        return self._threshold / _SPACE

    def use(self, keys: Sequence[int]) -> None:
        """A prompt with these block keys was served; they become the most recent, the first above all others.

        Distances are those at the lookup, before any block moves: a cache looks a whole prompt up at once. Cost: O(blocks), and
        O(log max_keys) for each that is followed.
        """
        self._n_uses += len(keys)
        followed = [key for key in keys if _mix(key) < self._threshold]
        weight = 1 / self.rate
        self._n_sampled += len(followed) * weight
        for key in followed:
            distance = self._stack.depth(key)
            if distance is not None:
                self._hits[round(distance * weight)] += weight
        for key in reversed(followed):
            if self._stack.push(key):
                heapq.heappush(self._sampled, (-_mix(key), key))
        while len(self._sampled) > self._max_keys:
            self._lower_threshold()

    def hit_rate(self, capacity: int) -> float:
        """Part of the blocks an LRU cache of `capacity` blocks would have found, 0 to 1."""
        if not self._n_uses or capacity <= 0:
            return 0.0
        found = sum(uses for distance, uses in self._hits.items() if distance < capacity)
        surplus = (
            self._n_uses - self._n_sampled
        )  # uses that chance left out of the sample: taken as hits, as hot blocks are
        return min(1.0, max(0.0, (found + surplus) / self._n_uses))

    def _lower_threshold(self) -> None:
        """Follow no block any more whose mix is as high as the highest."""
        negative_mix, key = heapq.heappop(self._sampled)
        self._threshold = -negative_mix
        self._stack.remove(key)


class _RecencyStack:
    """Keys by time of last use, with the number of keys above each: a Fenwick tree over times."""

    def __init__(self) -> None:
        self._time_of: dict[int, int] = {}
        self._tree = [0] * 1025
        self._now = 0

    def depth(self, key: int) -> int | None:
        """Keys used after `key`, None when it was never used."""
        time = self._time_of.get(key)
        return None if time is None else len(self._time_of) - self._count(time)

    def push(self, key: int) -> bool:
        """Make `key` the most recent; returns whether it is new."""
        is_new = not self.remove(key)
        if self._now + 1 == len(self._tree):
            self._renumber()
        self._now += 1
        self._time_of[key] = self._now
        self._add(self._now, 1)
        return is_new

    def remove(self, key: int) -> bool:
        """Forget `key`; returns whether it was there."""
        time = self._time_of.pop(key, None)
        if time is not None:
            self._add(time, -1)
        return time is not None

    def _renumber(self) -> None:
        """Close the gaps that moved keys left behind. Cost: O(keys log keys), once in as many pushes."""
        ordered = sorted(self._time_of, key=self._time_of.__getitem__)
        self._tree = [0] * (2 * len(ordered) + 1025)
        self._now = len(ordered)
        self._time_of = {key: place for place, key in enumerate(ordered, start=1)}
        for time in range(1, self._now + 1):
            self._add(time, 1)

    def _count(self, time: int) -> int:
        """Keys used up to `time`."""
        found = 0
        while time:
            found += self._tree[time]
            time &= time - 1
        return found

    def _add(self, time: int, change: int) -> None:
        while time < len(self._tree):
            self._tree[time] += change
            time += time & -time


def _mix(key: int) -> int:
    return key * _MIX % _SPACE
