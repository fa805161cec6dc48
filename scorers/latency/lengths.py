"""Output lengths that are expected of requests, learned per model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ..core.shared import Contribution, SharedSums

N_NUMBERS = 3
"""Numbers of `FadingLengths.numbers`."""

HALF_LIFE = 500.0
"""Later responses after which a response has half its weight."""

ENOUGH = 20.0
"""Responses from which the lengths of a model count; before that, those of all requests do."""

MAX_KEYS = 1024
"""Most models; the one unused for longest is dropped first. Models are named by clients."""

PRIOR_TOKENS = 256.0
"""Length that is expected before anything is learned: that of a chat's answer."""

PRIOR_RESPONSES = 2.0
"""Responses that `PRIOR_TOKENS` counts for until enough are known. Blocks that seem to be held far longer than they are keep requests from
the endpoint that has their prefix."""

MAX_TOKENS = 1_000_000
"""Longest response that is believed."""

MOST = 64.0
"""Largest length that counts, as a multiple of the mean, or of `PRIOR_TOKENS` if that is more. Lengths count with their squares, so that one
wrong count of an engine would make those under way seem as long for thousands of responses."""

PUBLISH_S = 1.0
"""Least time between two publications; means of hundreds of responses hardly change in it."""

ALL = ""
"""In place of a model: all requests."""


class FadingLengths:
    """Sums over the lengths of responses, of which old ones fade."""

    __slots__ = ("_grown", "_squares", "_sum", "total")

    def __init__(self) -> None:
        self._grown = 1.0
        """Weight of the next length; growing it is the same as letting all others fade."""
        self._sum = self._squares = 0.0
        self.total = 0.0
        """Responses, without forgotten ones, times the weight of the last."""

    @property
    def n_observations(self) -> float:
        """Responses, without forgotten ones."""
        return self.total / self._grown

    def add(self, n_tokens: float) -> None:
        """Count a response. Cost: O(1)."""
        self._grown *= 2.0 ** (1.0 / HALF_LIFE)
        if self._grown > 1e9:
            self._rescale()
        self._sum += self._grown * n_tokens
        self._squares += self._grown * n_tokens * n_tokens
        self.total += self._grown

    @property
    def mean(self) -> float:
        """Mean length; 0 before the first."""
        return self._sum / self.total if self.total else 0.0

    @property
    def mean_under_way(self) -> float:
        """Mean tokens that a response has so far, at any time while it is generated; 0 before the first.

        A response of the length `n` is seen for a time in proportion to `n`, and then has `n / 2` on average.
        """
        return self._squares / (2.0 * self._sum) if self._sum else 0.0

    def numbers(self) -> list[float]:
        """Return the sums of the lengths and of their squares, then the number of responses; forgotten ones left out."""
        factor = 1.0 / self._grown
        return [self._sum * factor, self._squares * factor, self.total * factor]

    def take(self, numbers: Sequence[float]) -> None:
        """Add the `numbers` of other responses; malformed ones are ignored."""
        if len(numbers) != N_NUMBERS or min(numbers) < 0.0:
            return
        total, squares, n = numbers
        most = 2 * MAX_TOKENS  # more than any mean that is believed, rounding errors included
        if total > most * n or squares > most * total:
            return
        self._sum += self._grown * numbers[0]
        self._squares += self._grown * numbers[1]
        self.total += self._grown * numbers[2]

    def _rescale(self) -> None:
        factor, self._grown = 1.0 / self._grown, 1.0
        self._sum *= factor
        self._squares *= factor
        self.total *= factor


class OutputLengths:
    """Expected output lengths per model. Bounded.

    Attributes:
        shared: the sums of this process, by model. Those of siblings are added to them.
    """

    def __init__(self) -> None:
        self._own: OrderedDict[str, FadingLengths] = OrderedDict()
        self._theirs: dict[str, FadingLengths] = {}
        """Sums over all siblings."""
        self._sums: dict[str, FadingLengths] = {}
        """Cache: own and siblings' responses of a model that siblings have."""
        self.shared = SharedSums(
            self._own_numbers, self._add_up, lambda: tuple(self._own), interval_s=PUBLISH_S
        )

    def __len__(self) -> int:
        return len(self._own) - (ALL in self._own)

    def add(self, model: str, n_tokens: int) -> None:
        """Learn from a response; an impossible length is ignored. Cost: O(1)."""
        if not 0 < n_tokens <= MAX_TOKENS:
            return
        usual = PRIOR_TOKENS
        for key in dict.fromkeys((ALL, model)):
            found = self._lengths(key)
            usual = max(usual, found.mean)
            found.add(min(n_tokens, MOST * usual))
            self._sums.pop(key, None)
            self.shared.note(key)

    def mean(self, model: str) -> float:
        """Return the expected tokens of a response. Cost: O(1)."""
        found = self._best(model)
        if found is not None:
            return found.mean
        few = self._sum(ALL)
        n_tokens, n = (few.mean * few.n_observations, few.n_observations) if few is not None else (0.0, 0.0)
        return (PRIOR_TOKENS * PRIOR_RESPONSES + n_tokens) / (PRIOR_RESPONSES + n)

    def under_way(self, model: str) -> float:
        """Return the tokens that a response under way has, in the mean; half of the expected ones if too few are known. Cost: O(1)."""
        found = self._best(model)
        return found.mean_under_way if found is not None else self.mean(model) / 2.0

    def _best(self, model: str) -> FadingLengths | None:
        """Return the lengths of a model if it has enough responses, else those of all requests if there are."""
        for key in (model, ALL):
            found = self._sum(key) if self._theirs else self._own.get(key)
            if found is not None and found.n_observations >= ENOUGH:
                return found
        return None

    def _sum(self, key: str) -> FadingLengths | None:
        """Return the own and the siblings' responses. Cost: O(1)."""
        own, theirs = self._own.get(key), self._theirs.get(key)
        if theirs is None or own is None:
            return own or theirs
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = FadingLengths()
            found.take(own.numbers())
            found.take(theirs.numbers())
        return found

    def _lengths(self, key: str) -> FadingLengths:
        found = self._own.get(key)
        if found is None:
            found = self._own[key] = FadingLengths()
            if len(self) > MAX_KEYS:
                oldest = next(each for each in self._own if each != ALL)
                del self._own[oldest]
                self._sums.pop(oldest, None)
                self.shared.note(oldest)
        else:
            self._own.move_to_end(key)
        return found

    def _own_numbers(self, model: str, now: float) -> list[float] | None:  # noqa: ARG002 - nothing depends on age
        found = self._own.get(model)
        return found.numbers() if found is not None else None

    def _add_up(self, model: str, contributions: Sequence[Contribution]) -> None:
        if model not in self._theirs and len(self._theirs) > MAX_KEYS:
            return
        self._sums.pop(model, None)
        theirs = FadingLengths()
        for each in contributions:
            theirs.take(each.numbers)
        if theirs.total > 0.0:
            self._theirs[model] = theirs
        else:
            self._theirs.pop(model, None)
