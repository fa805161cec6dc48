"""Online regression of a linear cost on observed times, used only once it predicts better than its priors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NOISE_SHARE = 0.25
"""Expected deviation of a time, relative to the prediction of the priors; sets the weight of data against priors."""

HUBER = 1.345
"""Robust standard deviations up to which an observation has full weight (95 % efficiency for a normal distribution)."""

OUTLIER = 4.0
"""Robust standard deviations above which the influence of an observation shrinks: a stall is not a cost."""

MEDIAN_OF_NORMAL = 0.6745
"""Median of the absolute value of a standard normal variable."""

SCALE_STEP = 0.1
"""Step of the running median of the deviations per observation, as the logarithm of a factor."""

MIN_OBSERVATIONS = 30
"""Least observations, without forgotten ones, before a fit may replace the priors."""

MIN_GAIN = 3.0
"""Standard errors by which a fit must predict better to replace the priors; priors return once it predicts worse.
The test is repeated at each observation, so it needs more than the usual two."""

ERROR_HALF_LIFE = 100.0
"""Number of later observations after which an error has half its weight in the comparison."""

MAX_ERROR = math.log(20.0)
"""Cap of one error: a single stall must not decide a comparison."""

MAX_RELATIVE_ERROR = 10.0
"""Cap of one relative error, for the same reason."""

MAX_MILLISECONDS = 1e9
"""Longest accepted time, twelve days; also keeps sums finite."""

N_SWEEPS = 3
"""Passes of the solver per observation; it starts from the last solution, which one observation hardly changes."""


@dataclass(frozen=True, slots=True)
class FitState:
    """State of a fit.

    Attributes:
        coefficients: coefficients in force, in the order of the features.
        is_fitted: whether they are learned; otherwise they are the priors.
        n_observations: observations in the fit, without forgotten ones.
        fit_error: mean of `abs(log(observed / predicted))` with learned coefficients, measured before learning.
        prior_error: the same with the priors.
        mape: mean of `abs(predicted / observed - 1)` of what was predicted when the requests were sent.
        identified: by coefficient, the part of it that is known from observations and not from its prior, 0 to 1: what they
            take off its variance. Quantities that only come together share what is known of their sum.
    """

    coefficients: tuple[float, ...]
    is_fitted: bool
    n_observations: float
    fit_error: float
    prior_error: float
    mape: float
    identified: tuple[float, ...]


class LinearFit:
    """Robust recursive regression of times on features, with priors, bounds and forgetting.

    Least squares in units of the priors: each coefficient is its prior times a factor. Factors start at 1 and are
    regularized to 1, so that a coefficient without evidence keeps its prior. Large deviations have less weight (Huber,
    and less still for outliers), old observations fade, and factors stay within `max_factor` of 1. The factors are in
    force while they predict significantly better than the priors, measured on each observation before learning from it.

    Args:
        priors: coefficients, all above 0.
        max_factor: largest ratio between a coefficient and its prior, in both directions, above 1.
        half_life: number of later observations after which an observation has half its weight.

    Cost: O(d**2) per observation, d coefficients.
    """

    def __init__(
        self, priors: Sequence[float], *, max_factor: float = 20.0, half_life: float = 1000.0
    ) -> None:
        n = len(priors)
        self._priors = tuple(priors)
        self._low, self._high = 1.0 / max_factor, max_factor
        self._decay = 0.5 ** (1.0 / half_life)
        self._factors = [1.0] * n
        self._squares = [[0.0] * n for _ in range(n)]
        self._products = [0.0] * n
        self._scale = 1.0
        self._n_observations = 0.0
        self._fit_error, self._prior_error, self._gain = _FadingMean(), _FadingMean(), _FadingMean()
        self._mape = _FadingMean()
        self._is_fitted = False
        self._in_force = self._priors

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Return the coefficients in force."""
        return self._in_force

    @property
    def n_observations(self) -> float:
        """Return the observations in the fit, without forgotten ones."""
        return self._n_observations

    def observe(
        self, features: Sequence[float], milliseconds: float, *, expected_ms: float = math.nan
    ) -> None:
        """Learn from one observed time; what is no time or no quantity is ignored.

        Args:
            features: at least 0 each, finite, one of them above 0.
            milliseconds: the time, above 0 and at most `MAX_MILLISECONDS`.
            expected_ms: what was predicted, NaN if nothing was.
        """
        if not 0 < milliseconds <= MAX_MILLISECONDS or not all(0 <= each < math.inf for each in features):
            return
        if expected_ms == expected_ms:  # noqa: PLR0124 - false for NaN
            self._mape.add(min(abs(expected_ms / milliseconds - 1.0), MAX_RELATIVE_ERROR))
        parts = [prior * feature for prior, feature in zip(self._priors, features, strict=True)]
        by_priors = sum(parts)
        by_factors = sum(factor * part for factor, part in zip(self._factors, parts, strict=True))
        self._compare(milliseconds, by_priors, by_factors)
        noise = NOISE_SHARE * by_priors
        weight = self._weight(abs(milliseconds - by_factors) / noise)
        self._n_observations = self._n_observations * self._decay + 1.0
        self._add(parts, milliseconds, weight / (noise * noise))
        self._solve()
        if self._is_fitted:
            self._in_force = self._learned()

    def state(self) -> FitState:
        """Return the state of the fit. Cost: O(d**3)."""
        squares = np.array(self._squares)
        variances = np.linalg.inv(squares + np.eye(len(squares))).diagonal()  # each prior has variance 1
        return FitState(
            coefficients=self._in_force,
            is_fitted=self._is_fitted,
            n_observations=self._n_observations,
            fit_error=self._fit_error.mean,
            prior_error=self._prior_error.mean,
            mape=self._mape.mean,
            identified=tuple((1.0 - np.clip(variances, 0.0, 1.0)).tolist()),
        )

    def _compare(self, observed: float, by_priors: float, by_factors: float) -> None:
        prior_error, fit_error = _log_error(observed, by_priors), _log_error(observed, by_factors)
        self._prior_error.add(prior_error)
        self._fit_error.add(fit_error)
        self._gain.add(prior_error - fit_error)
        needed = 0.0 if self._is_fitted else MIN_GAIN * self._gain.standard_error
        is_fitted = self._n_observations >= MIN_OBSERVATIONS and self._gain.mean > needed
        if is_fitted is not self._is_fitted:
            self._is_fitted = is_fitted
            self._in_force = self._learned() if is_fitted else self._priors

    def _learned(self) -> tuple[float, ...]:
        return tuple(prior * factor for prior, factor in zip(self._priors, self._factors, strict=True))

    def _weight(self, deviation: float) -> float:
        """Return the weight of an observation by its deviation, in units of the expected noise."""
        is_above = deviation > MEDIAN_OF_NORMAL * self._scale
        self._scale *= math.exp(SCALE_STEP if is_above else -SCALE_STEP)
        self._scale = min(max(self._scale, 0.01), 1e6)
        deviations = deviation / self._scale
        if deviations <= HUBER:
            return 1.0
        return HUBER / deviations * min(1.0, OUTLIER / deviations)

    def _add(self, parts: Sequence[float], observed: float, weight: float) -> None:
        decay = self._decay
        for row, (squares, part) in enumerate(zip(self._squares, parts, strict=True)):
            weighted = weight * part
            for column, other in enumerate(parts):
                squares[column] = decay * squares[column] + weighted * other
            self._products[row] = decay * self._products[row] + weighted * observed

    def _solve(self) -> None:
        """Find the best factors within the bounds by coordinate descent; each is regularized to 1 with weight 1."""
        factors = self._factors
        for _ in range(N_SWEEPS):
            for row, squares in enumerate(self._squares):
                others = sum(map(float.__mul__, squares, factors)) - squares[row] * factors[row]
                best = (self._products[row] + 1.0 - others) / (squares[row] + 1.0)
                factors[row] = min(max(best, self._low), self._high)


class _FadingMean:
    """Mean with exponentially fading weights."""

    def __init__(self) -> None:
        self._decay = 0.5 ** (1.0 / ERROR_HALF_LIFE)
        self._sum = self._squares = self._weight = 0.0

    def add(self, number: float) -> None:
        self._sum = self._sum * self._decay + number
        self._squares = self._squares * self._decay + number * number
        self._weight = self._weight * self._decay + 1.0

    @property
    def mean(self) -> float:
        """Return the mean, 0 before the first number."""
        return self._sum / self._weight if self._weight else 0.0

    @property
    def standard_error(self) -> float:
        """Return the standard error of the mean; only valid after the first number."""
        variance = max(0.0, self._squares / self._weight - self.mean**2)
        return math.sqrt(variance / self._weight)


def _log_error(observed: float, predicted: float) -> float:
    return min(abs(math.log(observed) - math.log(predicted)), MAX_ERROR)
