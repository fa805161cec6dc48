"""Decision: the outcome of one pick, with its reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from .model import Candidate, Rating


class Column(NamedTuple):
    """One scorer's ratings of the candidates that filters kept, in the fleet's order.

    Attributes:
        name: the scorer's name in the profile.
        type: its plugin type.
        weight: its weight.
        ratings: one per candidate.
    """

    name: str
    type: str
    weight: float
    ratings: Sequence[Rating]


class ScoreTerm(msgspec.Struct, frozen=True, gc=False):
    """One scorer's part in one candidate's total: `product = weight * rating.score`."""

    name: str
    type: str
    weight: float
    rating: Rating

    @property
    def product(self) -> float:
        """Return the contribution of the term to the total."""
        return self.weight * self.rating.score


class Dropped(msgspec.Struct, frozen=True, gc=False):
    """Why a candidate was dropped: the name of the filter in the profile, and its reason for people."""

    by: str
    reason: str


class ScoredCandidate(msgspec.Struct, frozen=True, gc=False):
    """A candidate with its terms in the profile's order; a dropped candidate has no terms."""

    candidate: Candidate
    terms: tuple[ScoreTerm, ...]
    total: float
    dropped: Dropped | None = None


@dataclass(frozen=True, slots=True)
class PluginFault:
    """An invalid result of one plugin in one decision.

    Attributes:
        name: the plugin's name in the profile.
        reason: bounded word for counters: `raised`, `wrong_length`, `wrong_answer`, `not_finite` or `out_of_range`.
        detail: the same for people, one line.
    """

    name: str
    reason: str
    detail: str


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Origin of a request, from its headers.

    Attributes:
        request_id: `x-request-id`.
        traceparent: W3C trace context, empty if the request has none.
        objective: name of its objective, empty if the request has none.
        priority: priority of the objective.
        fairness_id: tenant or user that the request counts for.
    """

    request_id: str
    traceparent: str
    objective: str
    priority: int
    fairness_id: str


class Decision(msgspec.Struct, frozen=True):
    """Scores of all candidates, and the picked ones.

    Ratings are stored by column, as they were computed; the terms of a candidate are built on access. A msgspec struct
    for the same reason as `Rating`.

    Attributes:
        model: name in the request.
        n_tokens: prompt tokens, 0 without tokenization.
        candidates: all candidates, in the fleet's order.
        columns: ratings per scorer, in the profile's order.
        totals: totals of the candidates that filters kept, in the fleet's order.
        picked: names, best first; empty if filters dropped every candidate.
        tie: whether chance decided the first place.
        dropped: name -> reason, of the candidates that filters dropped.
        at: monotonic seconds of the request; ages of inputs are relative to it.
        picker: type of the plugin that picked.
        filters: names of the filters, in the order of their calls.
        no_prefix_reason: why the request has no token ids, None if it has.
        cut_reason: why its token ids end before the prompt, None if they are complete.
        faults: plugins with invalid results, in the profile's order.
        origin: origin of the request, None if the decision routes nothing.
        config_generation: number of the configuration that decided; 1 is that of the start.
        n_prompts: prompts in the request; the decision is about one of them.
    """

    model: str
    n_tokens: int
    candidates: Sequence[Candidate]
    columns: Sequence[Column]
    totals: Sequence[float]
    picked: tuple[str, ...]
    tie: bool
    dropped: Mapping[str, Dropped] = {}
    at: float = 0.0
    picker: str = ""
    filters: tuple[str, ...] = ()
    no_prefix_reason: str | None = None
    cut_reason: str | None = None
    faults: tuple[PluginFault, ...] = ()
    origin: Origin | None = None
    config_generation: int = 1
    n_prompts: int = 1

    @property
    def kept(self) -> Sequence[Candidate]:
        """Return the candidates that filters kept, in the order of `totals` and ratings. Cost: O(1) if none was dropped."""
        if not self.dropped:
            return self.candidates
        return [each for each in self.candidates if each.name not in self.dropped]

    @property
    def scored(self) -> tuple[ScoredCandidate, ...]:
        """Return all candidates with their terms, in the fleet's order. Cost: O(candidates * scorers)."""
        rows = iter(range(len(self.totals)))
        return tuple(
            ScoredCandidate(each, (), 0.0, self.dropped[each.name])
            if each.name in self.dropped
            else self._scored(each, next(rows))
            for each in self.candidates
        )

    @property
    def best(self) -> Candidate:
        """Return the first picked candidate; `picked` must not be empty. Cost: O(candidates)."""
        name = self.picked[0]
        for each in self.candidates:  # called several times per request, and twice as fast as `next`
            if each.name == name:
                return each
        raise LookupError(f"{name!r} was picked and is no candidate")

    @property
    def first(self) -> ScoredCandidate:
        """Return `best` with its terms."""
        row = next(row for row, each in enumerate(self.kept) if each.name == self.picked[0])
        return self._scored(self.kept[row], row)

    @property
    def runner_up(self) -> ScoredCandidate | None:
        """Return the best kept candidate except the first picked one; None if there is no other.

        Cost: O(candidates).
        """
        kept = self.kept
        others = (row for row, each in enumerate(kept) if each.name not in self.picked[:1])
        row = max(others, key=self.totals.__getitem__, default=None)
        return self._scored(kept[row], row) if row is not None else None

    @property
    def tied(self) -> tuple[str, ...]:
        """Return the names of the endpoints with the highest total, in the fleet's order; empty if all were dropped."""
        best = max(self.totals, default=0.0)
        return tuple(each.name for each, total in zip(self.kept, self.totals, strict=True) if total == best)

    def filters_passed(self, scored: ScoredCandidate) -> tuple[str, ...]:
        """Return the names of the filters that kept this candidate, in their order."""
        if scored.dropped is None:
            return self.filters
        return self.filters[: self.filters.index(scored.dropped.by)]

    def _scored(self, candidate: Candidate, row: int) -> ScoredCandidate:
        terms = (ScoreTerm(name, kind, weight, ratings[row]) for name, kind, weight, ratings in self.columns)
        return ScoredCandidate(candidate, tuple(terms), self.totals[row])
