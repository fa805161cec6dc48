"""Costs of groups of endpoints, each with a fit of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from ..core.candidates import Candidates, Directory
from ..core.columns import FloatArray
from ..core.model import Candidate
from ..core.shared import Contribution, SharedSums
from .fit import MIN_OBSERVATIONS, LinearFit

MAX_GROUPS = 64
"""Most groups with their own coefficients; all further groups share one set. A group without endpoints gives way to one with some."""

NO_BOUNDS: Mapping[str, float] = MappingProxyType({})

PUBLISH_S = 0.2
"""Least time between two publications of the sums: one observation hardly changes costs."""


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
        mape: mean of `abs(predicted / observed - 1)` of what was predicted at the picks, the pace of endpoints included.
        identified: feature -> part of its cost that is known from observations, see `FitState`.
        credits: slower tier -> credit of a block there relative to the fastest tier, 0 to 1: the share of its compute
            time that loading saves. Empty if the costs are not those of tokens to load.
    """

    group: str
    is_fitted: bool
    n_observations: float
    costs_ms: Mapping[str, float]
    fit_error: float
    prior_error: float
    mape: float
    identified: Mapping[str, float]
    credits: Mapping[str, float] = field(default_factory=dict[str, float])


class GroupedFits:
    """Fits of one linear cost, one per group of endpoints. Groups without observations have the priors.

    Args:
        priors: feature -> coefficient above 0, in the order of the features.
        label: label whose value groups endpoints; empty: all endpoints are one group.
        max_factor: see `LinearFit`.
        half_life: see `LinearFit`.
        least: feature -> least factor of its prior, where that is not the inverse of `max_factor`.
    """

    def __init__(
        self,
        priors: Mapping[str, float],
        *,
        label: str = "",
        max_factor: float = 20.0,
        half_life: float = 1000.0,
        least: Mapping[str, float] = NO_BOUNDS,
    ) -> None:
        self._column: tuple[Sequence[float], FloatArray] = (), np.empty((0, 1))
        self._names, self._priors, self._label = tuple(priors), tuple(priors.values()), label
        self._max_factor, self._half_life = max_factor, half_life
        self._lows = tuple(max(1.0 / max_factor, least.get(name, 0.0)) for name in priors)
        self._fits: dict[str, LinearFit] = {}
        self._directory: Directory | None = None
        self._used: frozenset[str] = frozenset()
        """Groups that have endpoints, as far as that is known."""
        self.published: set[str] = set()
        """Groups that began at costs which an engine publishes."""
        self.shared = SharedSums(
            self._own_sums, self._add_up, lambda: tuple(self._fits), interval_s=PUBLISH_S
        )
        """Sums of each group's observations."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features, in their order."""
        return self._names

    def reports(self) -> list[FitReport]:
        """Return the costs of each group seen so far, in order of appearance."""
        return [self._report(group, fit) for group, fit in self._fits.items()]

    def follow(self, candidates: Candidates) -> None:
        """Note which groups have endpoints. Cost: O(1) while the fleet stays.

        Args:
            candidates: endpoints of the whole fleet's directory.
        """
        if self._label and candidates.directory is not self._directory:
            self._directory = candidates.directory
            self._used = frozenset(value or "" for value in candidates.labelled(self._label).values)

    def costs(self, candidates: Candidates) -> FloatArray:
        """Return the cost of each feature: shape (features, 1), or (features, n) if there are groups."""
        if not self._label:
            costs = self.costs_of("")
            if costs is not self._column[0]:  # it is the same tuple until something is learned
                self._column = costs, np.array(costs)[:, np.newaxis]
                self._column[1].flags.writeable = False
            return self._column[1]
        labels = candidates.labelled(self._label)
        by_value = np.array([self.costs_of(self.group(value or "")) for value in labels.values])
        by_row: FloatArray = by_value.reshape(len(labels.values), len(self._priors))[labels.codes].T
        return by_row

    def costs_of(self, group: str) -> Sequence[float]:
        """Return the costs of one group, in the order of the features."""
        fit = self._fits.get(group)
        return fit.coefficients if fit is not None else self._priors

    def start_at(self, group: str, factors: Mapping[str, float]) -> None:
        """Begin a group's costs at published ones, as multiples of the priors by feature.

        Once one of its times was observed here a group stays as it is; what others observed of it does not matter.
        """
        if group in self.published:
            return
        fit = self._fits.get(group)
        if fit is None or not fit.has_observed:
            self.published.add(group)
            self._fit(group).start_at(
                [
                    prior * factors.get(name, 1.0)
                    for name, prior in zip(self._names, self._priors, strict=True)
                ]
            )

    @property
    def has_learned(self) -> bool:
        """Whether any group has at least `MIN_OBSERVATIONS`."""
        return any(fit.n_observations >= MIN_OBSERVATIONS for fit in self._fits.values())

    def where_learned(self, candidates: Candidates, expected_ms: FloatArray) -> FloatArray:
        """Return the expected times, NaN for groups with fewer than `MIN_OBSERVATIONS`."""
        if not self._label:
            return expected_ms
        is_learned = candidates.labelled(self._label).where(self._is_learned)
        return np.where(is_learned, expected_ms, np.nan)

    def observe(
        self, group: str, features: Sequence[float], milliseconds: float, *, expected_ms: float, pace: float
    ) -> None:
        """Learn from one observed time.

        Args:
            group: of the endpoint, see `group`.
            features: as they were at the pick.
            milliseconds: the time.
            expected_ms: what was predicted at the pick.
            pace: factor of the endpoint, by which its time is divided before the fit.
        """
        if self.group(group) == group:  # it may have lost its place since
            self._fit(group).observe(features, milliseconds / pace, expected_ms=expected_ms / pace)
            self.shared.note(group)

    def group(self, label: str) -> str:
        """Return the group of endpoints with this value of the label."""
        group = label if self._label else ""
        return group if self._may_have(group) else ""

    def group_of(self, candidate: Candidate) -> str:
        """Return the group of one endpoint."""
        return self.group(candidate.labels.get(self._label, "")) if self._label else ""

    def _may_have(self, group: str) -> bool:
        """Return whether a group has coefficients, or a place for them."""
        if group in self._fits or len(self._fits) < MAX_GROUPS:
            return True
        return group in self._used and self._unused() is not None

    def _unused(self) -> str | None:
        """Return the first group that has no endpoints, None if all have some."""
        return next((each for each in self._fits if each and each not in self._used), None)

    def _fit(self, group: str) -> LinearFit:
        fit = self._fits.get(group)
        if fit is None:
            unused = self._unused() if len(self._fits) >= MAX_GROUPS and group in self._used else None
            if unused is not None:
                del self._fits[unused]
                self.published.discard(unused)
                self.shared.note(unused)
            fit = self._fits[group] = LinearFit(
                self._priors, max_factor=self._max_factor, half_life=self._half_life, lows=self._lows
            )
        return fit

    def _own_sums(self, group: str, _: float) -> Sequence[float] | None:
        fit = self._fits.get(group)
        return fit.sums() if fit is not None else None

    def _add_up(self, group: str, siblings: Sequence[Contribution]) -> None:
        if group in self._fits or (siblings and self._may_have(group)):
            self._fit(group).add_up({each.owner: each.numbers for each in siblings})

    def _is_learned(self, label: str | None) -> bool:
        fit = self._fits.get(self.group(label or ""))
        return fit is not None and fit.n_observations >= MIN_OBSERVATIONS

    def _report(self, group: str, fit: LinearFit) -> FitReport:
        state = fit.state()
        return FitReport(
            group=group,
            is_fitted=state.is_fitted,
            n_observations=state.n_observations,
            costs_ms=dict(zip(self._names, state.coefficients, strict=True)),
            fit_error=state.fit_error,
            prior_error=state.prior_error,
            mape=state.mape,
            identified=dict(zip(self._names, state.identified, strict=True)),
        )
