"""Costs of groups of endpoints, each with a fit of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.model import Candidate
from .fit import MIN_OBSERVATIONS, LinearFit

MAX_GROUPS = 64
"""Most groups with their own coefficients; all further groups share one set."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """Costs of one group of endpoints.

    Attributes:
        group: value of the group label, empty without one.
        is_fitted: whether the costs are learned; otherwise they are configured.
        n_observations: observations in the fit, without forgotten ones.
        costs_ms: feature -> milliseconds per unit.
        fit_error: mean of `abs(log(observed / predicted))` with learned costs.
        prior_error: the same with configured costs.
        credits: slower tier -> credit of a block there relative to the fastest tier, 0 to 1: the share of its compute
            time that loading saves. Empty if the costs are not those of tokens to load.
    """

    group: str
    is_fitted: bool
    n_observations: float
    costs_ms: Mapping[str, float]
    fit_error: float
    prior_error: float
    credits: Mapping[str, float] = field(default_factory=dict[str, float])


class GroupedFits:
    """Fits of one linear cost, one per group of endpoints. Groups without observations have the priors.

    Args:
        priors: feature -> coefficient above 0, in the order of the features.
        label: label whose value groups endpoints; empty: all endpoints are one group.
        max_factor: see `LinearFit`.
        half_life: see `LinearFit`.
    """

    def __init__(
        self,
        priors: Mapping[str, float],
        *,
        label: str = "",
        max_factor: float = 20.0,
        half_life: float = 1000.0,
    ) -> None:
        self._names, self._priors, self._label = tuple(priors), tuple(priors.values()), label
        self._max_factor, self._half_life = max_factor, half_life
        self._fits: dict[str, LinearFit] = {}

    def reports(self) -> list[FitReport]:
        """Return the costs of each group seen so far, in order of appearance."""
        return [self._report(group, fit) for group, fit in self._fits.items()]

    def expected_ms(self, candidates: Candidates, features: Sequence[FloatArray]) -> FloatArray:
        """Return the product of costs and features by endpoint, in milliseconds."""
        expected = np.zeros(len(candidates))
        for cost, quantity in zip(self._costs(candidates), features, strict=True):
            expected += cost * quantity
        return expected

    def terms_ms(self, candidates: Candidates, features: Sequence[FloatArray]) -> list[FloatArray]:
        """Return the products one by one, in the order of the features."""
        return [cost * quantity for cost, quantity in zip(self._costs(candidates), features, strict=True)]

    @property
    def has_learned(self) -> bool:
        """Whether any group has at least `MIN_OBSERVATIONS`."""
        return any(fit.n_observations >= MIN_OBSERVATIONS for fit in self._fits.values())

    def learned_ms(self, candidates: Candidates, features: Sequence[FloatArray]) -> FloatArray:
        """Return the same, NaN for groups with fewer than `MIN_OBSERVATIONS`."""
        expected = self.expected_ms(candidates, features)
        if not self._label:
            return expected
        is_learned = candidates.labelled(self._label).where(self._is_learned)
        return np.where(is_learned, expected, np.nan)

    def observe(self, candidate: Candidate, features: Sequence[FloatArray], milliseconds: float) -> None:
        """Learn from one observed time.

        Args:
            candidate: the endpoint as it was at the pick.
            features: columns of one row.
            milliseconds: the time.
        """
        group = self._group(candidate.labels.get(self._label, ""))
        fit = self._fits.get(group)
        if fit is None:
            fit = self._fits[group] = LinearFit(
                self._priors, max_factor=self._max_factor, half_life=self._half_life
            )
        fit.observe([float(each[0]) for each in features], milliseconds)

    def _costs(self, candidates: Candidates) -> Iterable[FloatArray | float]:
        """Return the cost of each feature: one number, or one by endpoint if there are groups."""
        if not self._label:
            return self._costs_of("")
        labels = candidates.labelled(self._label)
        costs = np.array([self._costs_of(value or "") for value in labels.values])
        return costs.reshape(len(labels.values), len(self._priors))[labels.codes].T

    def _costs_of(self, label: str) -> Sequence[float]:
        fit = self._fits.get(self._group(label))
        return fit.coefficients if fit is not None else self._priors

    def _is_learned(self, label: str | None) -> bool:
        fit = self._fits.get(self._group(label or ""))
        return fit is not None and fit.n_observations >= MIN_OBSERVATIONS

    def _group(self, label: str) -> str:
        group = label if self._label else ""
        return group if group in self._fits or len(self._fits) < MAX_GROUPS else ""

    def _report(self, group: str, fit: LinearFit) -> FitReport:
        state = fit.state()
        return FitReport(
            group=group,
            is_fitted=state.is_fitted,
            n_observations=state.n_observations,
            costs_ms=dict(zip(self._names, state.coefficients, strict=True)),
            fit_error=state.fit_error,
            prior_error=state.prior_error,
        )
