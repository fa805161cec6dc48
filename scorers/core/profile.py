"""Profile: filters, weighted scorers and a picker, called once per request."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from ..errors import NoCandidatesError, ProfileError
from .base import Filter, LearnsFromAnswers, LearnsFromPicks, MarksResponses, Picker, Rng, Scorer
from .candidates import Candidates
from .columns import FloatArray, RowArray, weighted_sums
from .decision import Decision, Drop, PluginFault, WeightedScorer
from .guard import (
    call_plugin,
    checked_headers,
    checked_pick,
    checked_ratings,
    checked_verdicts,
    repaired,
)
from .max_score import MaxScorePicker
from .model import RequestView
from .operations import weigh
from .ratings import Inputs


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
        self._weighted = tuple(WeightedScorer(name, each.type, weight) for name, each, weight in scorers)
        self._weights = tuple(weight for _, _, weight in scorers)
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

    def decide(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Decision:
        """Score all candidates and pick; no endpoint is picked if filters dropped all.

        The decision has the arrays of `candidates`; see `Decision.lasting`.

        Raises:
            NoCandidatesError: `candidates` is empty.
        Cost: one call of every filter and scorer with all candidates.
        """
        if not len(candidates):
            raise NoCandidatesError(f"no endpoint to score for model {request.model!r}")
        faults: list[PluginFault] = []
        drops: list[Drop] = []
        kept, rows = (
            self._filtered(request, candidates, rng, drops, faults) if self._filters else (candidates, None)
        )
        scores, totals, inputs = self._rated(request, kept, faults)
        picked, tie = self._picked(totals, rng, faults)
        chosen = kept[picked[0]] if picked else None
        return Decision(
            model=request.model,
            n_tokens=request.n_tokens,
            table=candidates,
            scorers=self._weighted,
            inputs=inputs,
            scores=scores,
            picked=(chosen.name,)
            if chosen is not None and len(picked) == 1
            else tuple(map(kept.name, picked)),
            row=picked[0] if picked else -1,
            chosen=chosen,
            tie=tie,
            drops=tuple(drops),
            rows=rows,
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
        self,
        request: RequestView,
        candidates: Candidates,
        rng: Rng,
        drops: list[Drop],
        faults: list[PluginFault],
    ) -> tuple[Candidates, RowArray | None]:
        """Return the kept candidates and their rows, None for all; add what filters dropped to `drops`."""
        kept, rows = candidates, None
        for name, plugin in self._filters:
            verdicts, fault = checked_verdicts(name, plugin, request, kept, rng)
            if fault is not None:
                faults.append(fault)
            if verdicts is None:
                continue
            here = np.flatnonzero(verdicts.keep)
            dropped = np.flatnonzero(~verdicts.keep)
            drops.append(Drop(name, dropped if rows is None else rows[dropped], verdicts.reasons))
            kept, rows = kept.take(here), here if rows is None else rows[here]
            if not len(here):
                break
        return kept, rows

    def _rated(
        self, request: RequestView, candidates: Candidates, faults: list[PluginFault]
    ) -> tuple[FloatArray, FloatArray, tuple[Inputs | None, ...]]:
        """Return the scores of shape (scorers, candidates), the totals, and the inputs of each scorer."""
        n = len(candidates)
        if not n:
            return np.empty((len(self._scorers), 0)), np.empty(0), (None,) * len(self._scorers)
        columns: list[FloatArray] = []
        inputs: list[Inputs | None] = []
        bad: dict[str, PluginFault] = {}
        for name, scorer, _ in self._scorers:
            scores, shown, fault = checked_ratings(name, scorer, request, candidates, n)
            columns.append(scores)
            inputs.append(shown)
            if fault is not None:
                bad[name] = fault
        weighed = weigh(columns, self._weights, n)
        if weighed is None:
            weighed = self._repaired(columns, inputs, n, bad)
        if bad:
            faults.extend(bad[name] for name, _, _ in self._scorers if name in bad)
        return *weighed, tuple(inputs)

    def _repaired(
        self,
        columns: list[FloatArray],
        inputs: list[Inputs | None],
        n: int,
        bad: dict[str, PluginFault],
    ) -> tuple[FloatArray, FloatArray]:
        """Return scores and totals of columns that are not all valid; add what was wrong to `bad`."""
        scores = np.empty((len(columns), n))
        for number, (name, _, _) in enumerate(self._scorers):
            scores[number], fault = repaired(name, columns[number], n)
            if fault is not None:
                bad[name] = fault
                inputs[number] = None if fault.reason == "raised" else inputs[number]
        return scores, weighted_sums(scores, self._weights)

    def _picked(self, totals: FloatArray, rng: Rng, faults: list[PluginFault]) -> tuple[Sequence[int], bool]:
        if not len(totals):
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
