"""Output lengths that are expected of requests, learned per model and tenant."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from itertools import accumulate

N_BUCKETS = 40
"""Buckets of a histogram; each is `STEP` times as wide as the one before, so that the last begins at 740,000 tokens."""

STEP = math.sqrt(2.0)
"""Ratio of successive limits: an estimate is within 19 % of the length."""

HALF_LIFE = 500.0
"""Later responses after which a response has half its weight."""

ENOUGH = 20.0
"""Responses from which a histogram is used; before that, that of the model, then that of all requests."""

MAX_KEYS = 1024
"""Most histograms; the one unused for longest is dropped first. Models and tenants are named by clients."""

PRIOR_TOKENS = 256.0
"""Length that is expected before anything is learned: that of a chat's answer."""

MAX_TOKENS = 10_000_000
"""Longest response that is believed."""


class Histogram:
    """Histogram of lengths on a logarithmic scale, whose old entries fade."""

    __slots__ = ("_counts", "_grown", "_sum", "total")

    def __init__(self) -> None:
        self._counts = [0.0] * N_BUCKETS
        self._grown = 1.0
        """Weight of the next length; growing it is the same as letting all others fade."""
        self._sum = 0.0
        self.total = 0.0
        """Responses, without forgotten ones, times the weight of the last."""

    @property
    def n_observations(self) -> float:
        """Responses, without forgotten ones."""
        return self.total / self._grown

    def add(self, n_tokens: int) -> None:
        """Count a response. Cost: O(1)."""
        self._grown *= 2.0 ** (1.0 / HALF_LIFE)
        if self._grown > 1e9:
            self._rescale()
        bucket = min(N_BUCKETS - 1, math.ceil(math.log(n_tokens, STEP)))
        self._counts[bucket] += self._grown
        self._sum += self._grown * n_tokens
        self.total += self._grown

    @property
    def mean(self) -> float:
        """Mean length; only valid after the first."""
        return self._sum / self.total

    def quantile(self, part: float) -> float:
        """Return the length that a fraction `part` of the responses does not exceed; only valid after the first. Cost: O(40)."""
        sums = list(accumulate(self._counts))
        bucket = min(N_BUCKETS - 1, bisect_left(sums, part * sums[-1]))
        return STEP ** (bucket - 0.5) if bucket else 1.0

    def _rescale(self) -> None:
        factor, self._grown = 1.0 / self._grown, 1.0
        self._counts = [count * factor for count in self._counts]
        self._sum *= factor
        self.total *= factor


class OutputLengths:
    """Expected output lengths per (model, tenant); the tenant is the fairness id, empty if there is none. Bounded."""

    def __init__(self) -> None:
        self._all = Histogram()
        self._by_key: OrderedDict[tuple[str, str], Histogram] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, model: str, tenant: str, n_tokens: int) -> None:
        """Learn from a response; an impossible length is ignored. Cost: O(1)."""
        if not 0 < n_tokens <= MAX_TOKENS:
            return
        self._all.add(n_tokens)
        self._histogram((model, "")).add(n_tokens)
        if tenant:
            self._histogram((model, tenant)).add(n_tokens)

    def mean(self, model: str, tenant: str = "") -> float:
        """Return the expected tokens of a response. Cost: O(1)."""
        found = self._best(model, tenant)
        return found.mean if found is not None else PRIOR_TOKENS

    def quantile(self, model: str, tenant: str = "", *, part: float) -> float:
        """Return the tokens that a fraction `part` of the responses does not exceed. Cost: O(40)."""
        found = self._best(model, tenant)
        return found.quantile(part) if found is not None else PRIOR_TOKENS

    def _best(self, model: str, tenant: str) -> Histogram | None:
        """Return the most specific histogram with enough responses."""
        for key in ((model, tenant), (model, "")) if tenant else ((model, ""),):
            found = self._by_key.get(key)
            if found is not None and found.n_observations >= ENOUGH:
                return found
        return self._all if self._all.n_observations >= ENOUGH else None

    def _histogram(self, key: tuple[str, str]) -> Histogram:
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = Histogram()
            if len(self._by_key) > MAX_KEYS:
                self._by_key.popitem(last=False)
        else:
            self._by_key.move_to_end(key)
        return found
