"""The outcome of one pick, with its reasons."""

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
        ratings: one a candidate.
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
        """What the term adds to the total."""
        return self.weight * self.rating.score


class Dropped(msgspec.Struct, frozen=True, gc=False):
    """The filter that dropped a candidate, by its name in the profile, and why, in words."""

    by: str
    reason: str


class ScoredCandidate(msgspec.Struct, frozen=True, gc=False):
    """A candidate with its terms, in the profile's order; a dropped one was not scored and has none."""

    candidate: Candidate
    terms: tuple[ScoreTerm, ...]
    total: float
    dropped: Dropped | None = None


@dataclass(frozen=True, slots=True)
class PluginFault:
    """What was wrong with one plugin's answer in one decision.

    Attributes:
        name: the plugin's name in the profile.
        reason: bounded word for counters: `raised`, `wrong_length`, `wrong_answer`, `not_finite` or `out_of_range`.
        detail: the same for people, one line.
    """

    name: str
    reason: str
    detail: str


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Whose request it was, as its headers tell.

    Attributes:
        request_id: `x-request-id`.
        traceparent: W3C trace context, empty without one.
        objective: name of its objective, empty without one.
        priority: of the objective.
        fairness_id: whom it counts for.
    """

    request_id: str
    traceparent: str
    objective: str
    priority: int
    fairness_id: str


class Decision(msgspec.Struct, frozen=True):
    """Every candidate's score and the picked ones.

    It holds what deciding made anyway, by columns; the terms of each candidate are put together when somebody asks. A
    msgspec struct for the same reason as `Rating`.

    Attributes:
        model: as asked for.
        n_tokens: prompt tokens, 0 without tokenization.
        candidates: all candidates, in the fleet's order.
        columns: ratings by scorer, in the profile's order.
        totals: of the candidates that filters kept, in the fleet's order.
        picked: names, best first; empty when filters dropped every candidate.
        tie: whether chance decided the first place.
        dropped: candidates that filters dropped, by name.
        at: monotonic seconds of the request; ages of inputs count up to it.
        picker: type of the plugin that picked.
        filters: names of the filters, in the order in which they ran.
        no_prefix_reason: why the request has no token ids, None when it has.
        cut_reason: why its token ids end before the prompt does, None when they are all.
        faults: plugins whose answers had to be repaired, in the profile's order.
        origin: whose request it was, None when nothing is routed by the decision.
        config_generation: which configuration decided, alone; 1 is that of the start.
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
        """The candidates that filters kept, in the order of `totals` and ratings. Cost: O(1) without dropped ones."""
        if not self.dropped:
            return self.candidates
        return [each for each in self.candidates if each.name not in self.dropped]

    @property
    def scored(self) -> tuple[ScoredCandidate, ...]:
        """All candidates with their terms, in the fleet's order. Cost: O(candidates * scorers)."""
        rows = iter(range(len(self.totals)))
        return tuple(
            ScoredCandidate(each, (), 0.0, self.dropped[each.name])
            if each.name in self.dropped
            else self._scored(each, next(rows))
            for each in self.candidates
        )

    @property
    def best(self) -> Candidate:
        """The first of the picked; only where `picked` is not empty. Cost: O(candidates)."""
        name = self.picked[0]
        for each in self.candidates:  # several times a request: half of what `next` takes
            if each.name == name:
                return each
        raise LookupError(f"{name!r} was picked and is no candidate")

    @property
    def first(self) -> ScoredCandidate:
        """`best` with its terms."""
        row = next(row for row, each in enumerate(self.kept) if each.name == self.picked[0])
        return self._scored(self.kept[row], row)

    @property
    def runner_up(self) -> ScoredCandidate | None:
        """The best of those that filters kept, but for the first of the picked; None where there is no other.

        Cost: O(candidates).
        """
        kept = self.kept
        others = (row for row, each in enumerate(kept) if each.name not in self.picked[:1])
        row = max(others, key=self.totals.__getitem__, default=None)
        return self._scored(kept[row], row) if row is not None else None

    @property
    def tied(self) -> tuple[str, ...]:
        """Names of the endpoints that share the highest total, in the fleet's order; none where all were dropped."""
        best = max(self.totals, default=0.0)
        return tuple(each.name for each, total in zip(self.kept, self.totals, strict=True) if total == best)

    def filters_passed(self, scored: ScoredCandidate) -> tuple[str, ...]:
        """Names of the filters that kept one of the candidates, in their order."""
        if scored.dropped is None:
            return self.filters
        return self.filters[: self.filters.index(scored.dropped.by)]

    def _scored(self, candidate: Candidate, row: int) -> ScoredCandidate:
        terms = (ScoreTerm(name, kind, weight, ratings[row]) for name, kind, weight, ratings in self.columns)
        return ScoredCandidate(candidate, tuple(terms), self.totals[row])
