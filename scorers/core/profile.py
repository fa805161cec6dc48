"""Profile: filters, weighted scorers and a picker, called once per request."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ..errors import NoCandidatesError, ProfileError
from .base import Filter, LearnsFromAnswers, LearnsFromPicks, MarksResponses, Picker, Rng, Scorer
from .decision import Column, Decision, Dropped, PluginFault
from .guard import call_plugin, checked_headers, checked_pick, checked_ratings, checked_verdicts
from .max_score import MaxScorePicker
from .model import Candidate, RequestView


class Profile:
    """Decision procedure: filters drop candidates, scorers rate the others, and a picker chooses by their totals.

    `total = sum(weight * score)`, not divided by the weights. A plugin that raises or returns an invalid result never
    breaks a request: its result is dropped or clamped, and the decision names it in `faults`.

    Args:
        scorers: (name, scorer, weight) in the order of the terms; names are unique, weights finite and >= 0.
        picker: chooses by the totals.
        filters: (name, filter), called in this order, each with the candidates that the previous ones kept; names are unique.

    Raises:
        ProfileError: a name is not unique, or a weight is impossible.
    """

    def __init__(
        self,
        scorers: Sequence[tuple[str, Scorer, float]],
        picker: Picker,
        filters: Sequence[tuple[str, Filter]] = (),
    ) -> None:
        _check_unique("filter", (name for name, _ in filters))
        _check_unique("scorer", (name for name, _, _ in scorers))
        for name, _, weight in scorers:
            if not (math.isfinite(weight) and weight >= 0):
                raise ProfileError(
                    f"weight of scorer {name!r} is {weight}, want a finite number of at least 0"
                )
        self._filters, self._scorers, self._picker = tuple(filters), tuple(scorers), picker
        self._filter_names = tuple(name for name, _ in filters)
        self._fallback = MaxScorePicker()
        plugins: list[tuple[str, object]] = [
            *filters,
            *((name, scorer) for name, scorer, _ in scorers),
            (picker.type, picker),
        ]
        self._learn_picks = [(name, each) for name, each in plugins if isinstance(each, LearnsFromPicks)]
        self._learn_answers = [(name, each) for name, each in plugins if isinstance(each, LearnsFromAnswers)]
        self._mark = [(name, each) for name, each in plugins if isinstance(each, MarksResponses)]

    @property
    def scorers(self) -> tuple[tuple[str, Scorer, float], ...]:
        """Return (name, scorer, weight) in the order of the terms."""
        return self._scorers

    def decide(self, request: RequestView, candidates: Sequence[Candidate], *, rng: Rng) -> Decision:
        """Score all candidates and pick; no endpoint is picked if filters dropped all.

        Raises:
            NoCandidatesError: `candidates` is empty.
        Cost: one call of every filter and scorer with all candidates.
        """
        if not candidates:
            raise NoCandidatesError(f"no endpoint to score for model {request.model!r}")
        faults: list[PluginFault] = []
        dropped = self._filtered(request, candidates, rng, faults) if self._filters else {}
        kept = [each for each in candidates if each.name not in dropped] if dropped else candidates
        columns, totals = self._rated(request, kept, faults)
        rows, tie = self._picked(totals, rng, faults)
        return Decision(
            model=request.model,
            n_tokens=request.n_tokens,
            candidates=candidates,
            columns=columns,
            totals=totals,
            picked=tuple(kept[row].name for row in rows),
            tie=tie,
            dropped=dropped,
            at=request.now,
            picker=self._picker.type,
            filters=self._filter_names,
            faults=tuple(faults),
        )

    def picked(self, request: RequestView, decision: Decision) -> tuple[PluginFault, ...]:
        """Call the plugins after the request was routed; return the faults of those that raised."""
        if not self._learn_picks:
            return ()
        calls = ((name, partial(each.picked, request, decision)) for name, each in self._learn_picks)
        return _faults_of(calls)

    def answered(self, decision: Decision, *, ttft_s: float) -> tuple[PluginFault, ...]:
        """Call the plugins with the time to first token; return the faults of those that raised."""
        calls = (
            (name, partial(each.answered, decision, ttft_s=ttft_s)) for name, each in self._learn_answers
        )
        return _faults_of(calls)

    def response_headers(self, decision: Decision) -> tuple[dict[str, str], tuple[PluginFault, ...]]:
        """Return the headers to set on the response to a routed request, and the faults of plugins."""
        if not self._mark:
            return {}, ()
        headers: dict[str, str] = {}
        faults: list[PluginFault] = []
        for name, each in self._mark:
            marked, fault = checked_headers(name, each, decision)
            headers |= marked
            if fault is not None:
                faults.append(fault)
        return headers, tuple(faults)

    def _filtered(
        self, request: RequestView, candidates: Sequence[Candidate], rng: Rng, faults: list[PluginFault]
    ) -> dict[str, Dropped]:
        """Return candidate name -> filter and reason, of the dropped candidates."""
        dropped: dict[str, Dropped] = {}
        kept = candidates
        for name, plugin in self._filters:
            if not kept:
                break
            verdicts, fault = checked_verdicts(name, plugin, request, kept, rng)
            if fault is not None:
                faults.append(fault)
            for candidate, reason in zip(kept, verdicts, strict=True):
                if reason is not None:
                    dropped[candidate.name] = Dropped(name, reason)
            kept = [each for each, reason in zip(kept, verdicts, strict=True) if reason is None]
        return dropped

    def _rated(
        self, request: RequestView, candidates: Sequence[Candidate], faults: list[PluginFault]
    ) -> tuple[list[Column], Sequence[float]]:
        """Return the ratings per scorer, and the total per candidate."""
        columns: list[Column] = []
        totals = [0.0] * len(candidates)
        for name, scorer, weight in self._scorers if candidates else ():
            ratings, scores, fault = checked_ratings(name, scorer, request, candidates)
            columns.append(Column(name, scorer.type, weight, ratings))
            totals = [total + weight * score for total, score in zip(totals, scores, strict=True)]
            if fault is not None:
                faults.append(fault)
        return columns, array("d", totals)

    def _picked(
        self, totals: Sequence[float], rng: Rng, faults: list[PluginFault]
    ) -> tuple[Sequence[int], bool]:
        if not totals:
            return (), False
        rows, tie, fault = checked_pick(self._picker, totals, rng, self._fallback)
        if fault is not None:
            faults.append(fault)
        return rows, tie


def _check_unique(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ProfileError(f"{kind} {name!r} is in the profile twice; give each its own name")
        seen.add(name)


def _faults_of(calls: Iterable[tuple[str, Callable[[], None]]]) -> tuple[PluginFault, ...]:
    return tuple(fault for name, call in calls if (fault := call_plugin(name, call)) is not None)
