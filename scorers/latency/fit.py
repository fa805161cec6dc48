"""Online regression of a linear cost on observed times, used only once it predicts better than its priors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul

import numpy as np

from ..core.columns import FloatArray
from .fit_sums import FadingMean, FitSums
from .operations import add_observation, solved

NOISE_SHARE = 0.18
"""Expected deviation of a time, relative to the geometric mean of it and the prediction of the priors; sets the weight of data
against priors. Relative to the prediction alone, one long time would count more than two that are as much shorter."""

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

MAX_ERROR = math.log(20.0)
"""Cap of one error: a single stall must not decide a comparison."""

MAX_RELATIVE_ERROR = 10.0
"""Cap of one relative error, for the same reason."""

MAX_MILLISECONDS = 1e9
"""Longest accepted time, twelve days; also keeps sums finite."""

MAX_FADED = 256.0
"""Most observations of other processes that age the own ones at once."""

MAX_HEARD = 64
"""Most other processes of which is remembered how many observations they had, while they are silent too."""

MAX_SCALE = 10_000.0
"""Largest factor of all costs together, and the inverse of the smallest."""

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
    and less still for outliers), old observations fade, and factors stay within `max_factor` of 1. If all times are so much
    longer or shorter than the priors say that this would not leave room for single costs, bounds and regularization move
    along, see `_scale_of_all`: a far slower engine is a far slower engine in all that was not observed yet. The factors are in
    force while they predict significantly better than the priors, measured on each observation before learning from it.

    Args:
        priors: coefficients, all above 0.
        max_factor: largest ratio between a coefficient and its prior, in both directions, above 1.
        half_life: number of later observations after which an observation has half its weight.
        lows: least ratio between each coefficient and its prior, where that is not the inverse of `max_factor`.

    Cost: O(d**2) per observation, d coefficients.
    """

    def __init__(
        self,
        priors: Sequence[float],
        *,
        max_factor: float = 20.0,
        half_life: float = 1000.0,
        lows: Sequence[float] = (),
    ) -> None:
        n = len(priors)
        self._priors = tuple(priors)
        self._lows, self._high = tuple(lows) or (1.0 / max_factor,) * n, max_factor
        self._decay = 0.5 ** (1.0 / half_life)
        self._factors = [1.0] * n
        self._squares: FloatArray = np.zeros((n, n))
        self._products: FloatArray = np.zeros(n)
        self._scale = 1.0
        self._n_observations = 0.0
        self._n_seen = 0
        """Own observations, forgotten ones included."""
        self._fit_error, self._prior_error, self._gain = FadingMean(), FadingMean(), FadingMean()
        self._mape = FadingMean()
        self._is_fitted = False
        self._in_force = self._priors
        self._others: dict[str, FitSums] = {}
        """Sums of other processes, by owner."""
        self._theirs: FitSums | None = None
        """What these add up to, None if there are none."""
        self._heard: dict[str, float] = {}
        """How many observations each owner had, those heard last at the end."""

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Return the coefficients in force."""
        return self._in_force

    @property
    def n_observations(self) -> float:
        """Return the observations in the fit, without forgotten ones."""
        return self._n_observations + (self._theirs.n_observations if self._theirs is not None else 0.0)

    @property
    def has_observed(self) -> bool:
        """Return whether there was any own observation."""
        return self._n_seen > 0

    def sums(self) -> list[float]:
        """Return the sums of the own observations, which add up over processes."""
        own = FitSums(
            float(self._n_seen),
            self._n_observations,
            self._gain,
            np.array(self._priors),
            self._products,
            self._squares,
        )
        return own.numbers()

    def add_up(self, others: Mapping[str, Sequence[float]]) -> None:
        """Fit to the own observations and those of other processes, in place of what was given before.

        The own ones age by what each of them has observed since it was heard last. One that was never heard before has
        observed at the same time, so that they do not age by that.

        Args:
            others: `sums` of each, by owner; those that have other features or make no sense are left out.
        """
        found = {owner: FitSums.of(numbers, len(self._priors)) for owner, numbers in others.items()}
        self._others = {owner: sums for owner, sums in found.items() if sums is not None}
        heard = self._heard
        n_new = 0.0
        for owner, sums in self._others.items():
            n_new += max(0.0, sums.n_seen - heard.pop(owner, math.inf))
            heard[owner] = sums.n_seen
        while len(heard) > MAX_HEARD:
            del heard[next(iter(heard))]
        self._fade(min(n_new, MAX_FADED))
        self._fit_all()

    def start_at(self, priors: Sequence[float]) -> None:
        """Take other coefficients to begin with; only before the first own observation."""
        self._priors, self._factors = tuple(priors), [1.0] * len(priors)
        self._fit_all()

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
        parts = list(map(mul, self._priors, features))
        by_priors, by_factors = sum(parts), sum(map(mul, self._factors, parts))
        self._compare(milliseconds, by_priors, by_factors)
        noise = NOISE_SHARE * math.sqrt(by_priors * milliseconds)
        weight = self._weight(abs(milliseconds - by_factors) / noise)
        self._n_seen += 1
        self._n_observations = self._n_observations * self._decay + 1.0
        add_observation(
            self._squares, self._products, parts, milliseconds, weight / (noise * noise), self._decay
        )
        self._solve()
        if self._is_fitted:
            self._in_force = self._learned()

    def state(self) -> FitState:
        """Return the state of the fit. Cost: O(d**3)."""
        squares, products = self._sums_of_all()
        scale, priors = self._scale_of_all(squares, products), np.eye(len(squares))  # each has variance 1
        # what others tell may leave nothing of the priors, and then no inverse
        variances = np.linalg.pinv(squares * (scale * scale) + priors, hermitian=True).diagonal()
        return FitState(
            coefficients=self._in_force,
            is_fitted=self._is_fitted,
            n_observations=self.n_observations,
            fit_error=self._fit_error.mean,
            prior_error=self._prior_error.mean,
            mape=self._mape.mean,
            identified=tuple((1.0 - np.clip(variances, 0.0, 1.0)).tolist()),
        )

    def _compare(self, observed: float, by_priors: float, by_factors: float) -> None:
        prior_error, fit_error = log_error(observed, by_priors), log_error(observed, by_factors)
        self._prior_error.add(prior_error)
        self._fit_error.add(fit_error)
        self._gain.add(prior_error - fit_error)
        self._judge()

    def _judge(self) -> None:
        """Decide whether the factors are in force."""
        gain = self._gain if self._theirs is None else self._gain.plus(self._theirs.gain)
        needed = 0.0 if self._is_fitted else MIN_GAIN * gain.standard_error
        is_fitted = self.n_observations >= MIN_OBSERVATIONS and gain.mean > needed
        if is_fitted is not self._is_fitted:
            self._is_fitted = is_fitted
            self._in_force = self._learned() if is_fitted else self._priors

    def _fit_all(self) -> None:
        """Fit to the own observations and those of the others."""
        self._theirs = FitSums.total(self._others.values(), self._priors)
        self._judge()
        self._solve()
        self._in_force = self._learned() if self._is_fitted else self._priors

    def _fade(self, n: float) -> None:
        """Forget as much as with `n` observations: those of other processes are later than the own ones so far."""
        part = self._decay**n
        self._n_observations *= part
        self._products *= part
        self._squares *= part
        for mean in (self._fit_error, self._prior_error, self._gain):
            mean.fade(n)

    def _learned(self) -> tuple[float, ...]:
        return tuple(map(mul, self._priors, self._factors))

    def _weight(self, deviation: float) -> float:
        """Return the weight of an observation by its deviation, in units of the expected noise."""
        is_above = deviation > MEDIAN_OF_NORMAL * self._scale
        self._scale *= math.exp(SCALE_STEP if is_above else -SCALE_STEP)
        self._scale = min(max(self._scale, 0.01), 1e6)
        deviations = deviation / self._scale
        if deviations <= HUBER:
            return 1.0
        return HUBER / deviations * min(1.0, OUTLIER / deviations)

    def _solve(self) -> None:
        """Find the best factors within the bounds."""
        squares, products = self._sums_of_all()
        scale = self._scale_of_all(squares, products)
        if scale == 1.0:
            self._factors = solved(self._factors, squares, products, self._lows, self._high, N_SWEEPS)
            return
        start = [factor / scale for factor in self._factors]
        found = solved(start, squares * (scale * scale), products * scale, self._lows, self._high, N_SWEEPS)
        self._factors = [factor * scale for factor in found]

    def _sums_of_all(self) -> tuple[FloatArray, FloatArray]:
        """Return the sums of the own observations and those of the others."""
        theirs = self._theirs
        if theirs is None:
            return self._squares, self._products
        return self._squares + theirs.squares, self._products + theirs.products

    def _scale_of_all(self, squares: FloatArray, products: FloatArray) -> float:
        """Return the factor of all priors: 1 while one factor for all costs would stay within the root of the largest one."""
        n = len(self._priors)
        one = (float(products.sum()) + n) / (float(squares.sum()) + n)
        most = math.sqrt(self._high)
        if one > most:
            return min(one / most, MAX_SCALE)
        return max(one * most, 1.0 / MAX_SCALE) if one < 1.0 / most else 1.0


def log_error(observed: float, predicted: float) -> float:
    """Return the absolute logarithm of the ratio of two numbers above 0, at most `MAX_ERROR`."""
    return min(abs(math.log(observed) - math.log(predicted)), MAX_ERROR)
