"""What a fit knows from observations, as processes tell each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.columns import FloatArray

ERROR_HALF_LIFE = 100.0
"""Number of later observations after which an error has half its weight in the comparison."""

LEAST_PRIOR, LARGEST_PRIOR = 1e-9, 1e9
"""Between these a coefficient of another process lies before it has learned."""


class FadingMean:
    """Mean with exponentially fading weights."""

    def __init__(self) -> None:
        self._decay = 0.5 ** (1.0 / ERROR_HALF_LIFE)
        self._sum = self._squares = self._weight = 0.0

    def add(self, number: float) -> None:
        """Count a number."""
        self._sum = self._sum * self._decay + number
        self._squares = self._squares * self._decay + number * number
        self._weight = self._weight * self._decay + 1.0

    def fade(self, n: float) -> None:
        """Give what is known the weight that it has after `n` further numbers."""
        part = self._decay**n
        self._sum, self._squares, self._weight = self._sum * part, self._squares * part, self._weight * part

    @property
    def sums(self) -> tuple[float, float, float]:
        """Return the weighted sums of the numbers, of their squares, and of the weights."""
        return self._sum, self._squares, self._weight

    @classmethod
    def of(cls, sums: Sequence[float]) -> FadingMean:
        """Return the mean with these `sums`."""
        mean = cls()
        mean._sum, mean._squares, mean._weight = sums
        return mean

    def plus(self, other: FadingMean) -> FadingMean:
        """Return the mean of the numbers of both."""
        return FadingMean.of(list(map(float.__add__, self.sums, other.sums)))

    @property
    def is_known(self) -> bool:
        """Return whether any number was counted."""
        return self._weight > 0.0

    @property
    def mean(self) -> float:
        """Return the mean, 0 before the first number."""
        return self._sum / self._weight if self._weight else 0.0

    @property
    def standard_error(self) -> float:
        """Return the standard error of the mean, 0 before the first number."""
        if not self._weight:
            return 0.0
        variance = max(0.0, self._squares / self._weight - self.mean * self.mean)
        return math.sqrt(variance / self._weight)


@dataclass(frozen=True, slots=True)
class FitSums:
    """Sums of the observations of one process, or of several.

    Attributes:
        n_seen: observations, forgotten ones included.
        n_observations: observations, without forgotten ones.
        gain: by how much the errors of the priors are larger.
        priors: coefficients of which `products` and `squares` are in units.
        products: sums of products of parts and observations, see `add_observation`.
        squares: sums of products of parts.
    """

    n_seen: float
    n_observations: float
    gain: FadingMean
    priors: FloatArray
    products: FloatArray
    squares: FloatArray

    def numbers(self) -> list[float]:
        """Return it as numbers."""
        triangle = self.squares[np.triu_indices(len(self.priors))]
        arrays = np.concatenate([self.priors, self.products, triangle]).tolist()
        return [self.n_seen, self.n_observations, *self.gain.sums, *arrays]

    @classmethod
    def of(cls, numbers: Sequence[float], n: int) -> FitSums | None:
        """Return the sums of `n` features with these `numbers`; None if they have other features or make no sense."""
        if len(numbers) != 5 + 2 * n + n * (n + 1) // 2:
            return None
        given = np.array(numbers)
        priors, products = given[5 : 5 + n], given[5 + n : 5 + 2 * n]
        squares, upper = np.zeros((n, n)), np.triu_indices(n)
        squares[upper] = squares.T[upper] = given[5 + 2 * n :]
        counts = (numbers[0], numbers[1], numbers[3], numbers[4])
        if min(*counts, *squares.diagonal().tolist()) < 0.0:
            return None
        if not np.all((priors >= LEAST_PRIOR) & (priors <= LARGEST_PRIOR)):
            return None
        return cls(numbers[0], numbers[1], FadingMean.of(numbers[2:5]), priors, products, squares)

    @classmethod
    def total(cls, several: Iterable[FitSums], priors: Sequence[float]) -> FitSums | None:
        """Return the sum of several, in units of these coefficients; None of none."""
        found = [each.in_units_of(np.array(priors)) for each in several]
        if not found:
            return None
        gain = found[0].gain
        for each in found[1:]:
            gain = gain.plus(each.gain)
        return cls(
            sum(each.n_seen for each in found),
            sum(each.n_observations for each in found),
            gain,
            found[0].priors,
            np.add.reduce([each.products for each in found], axis=0),
            np.add.reduce([each.squares for each in found], axis=0),
        )

    def in_units_of(self, priors: FloatArray) -> FitSums:
        """Return the same in units of these coefficients."""
        ratios = priors / self.priors
        return FitSums(
            self.n_seen,
            self.n_observations,
            self.gain,
            priors,
            self.products * ratios,
            self.squares * ratios * ratios[:, np.newaxis],
        )
