"""Profile: a predictor, admitters, filters, weighted scorers and a picker, called once per request."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from ..errors import NoCandidatesError, ProfileError
from .base import (
    AcceptsOldLoad,
    Admitter,
    Filter,
    Picker,
    PicksNear,
    Predictor,
    ReadsMedia,
    Rng,
    Scorer,
)
from .candidates import Candidates
from .columns import FloatArray, RowArray, weighted_sums
from .decision import Decision, WeightedScorer
from .drops import Denied, Drop
from .faults import PluginFault
from .guard import (
    checked_admission,
    checked_pick,
    checked_predictions,
    checked_ratings,
    checked_verdicts,
    repaired,
)
from .learners import Learners
from .max_score import MaxScorePicker
from .model import RequestView
from .operations import weigh
from .ratings import Inputs
from .shared import Shared


class Profile:
    """Decision procedure: filters drop candidates, scorers rate the others, and a picker chooses by their totals.

    Before the filters a predictor may expect times, and admitters may refuse the request.

    `total = sum(weight * score)`, not divided by the weights. Chance decides between equal totals, and between those that scorers
    cannot tell apart, see `Ratings.resolution`. A plugin that raises or returns an invalid result never
    breaks a request: its result is dropped or clamped, and the decision names it in `faults`.

    Args:
        scorers: (name, scorer, weight) in the order of the terms; names are unique, weights finite; a negative one turns a preference around.
        picker: chooses by the totals.
        filters: (name, filter), called in this order, each with the candidates that the previous ones kept; names are unique.
        screeners: names of those filters that act for every profile, and come first.
        admitters: (name, admitter), called in this order until one refuses; names are unique.
        predictor: (name, predictor), None if no plugin reads predictions.

    Raises:
        ProfileError: a name is not unique, or a weight is impossible.
    """

    def __init__(
        self,
        scorers: Sequence[tuple[str, Scorer, float]],
        picker: Picker,
        filters: Sequence[tuple[str, Filter]] = (),
        *,
        screeners: Sequence[str] = (),
        admitters: Sequence[tuple[str, Admitter]] = (),
        predictor: tuple[str, Predictor] | None = None,
    ) -> None:
        _check_unique("admitter", (name for name, _ in admitters))
        _check_unique("filter", (name for name, _ in filters))
        _check_unique("scorer", (name for name, _, _ in scorers))
        for name, _, weight in scorers:
            if not math.isfinite(weight):
                raise ProfileError(f"weight of scorer {name!r} is {weight}, want a finite number")
        self._filters, self._scorers, self._picker = tuple(filters), tuple(scorers), picker
        self._admitters, self._predictor = tuple(admitters), predictor
        self._weighted = tuple(WeightedScorer(name, each.type, weight) for name, each, weight in scorers)
        self._weights = tuple(weight for _, _, weight in scorers)
        self._filter_names = tuple(name for name, _ in (*admitters, *filters))
        self._screeners = frozenset(screeners)
        self._fallback = MaxScorePicker()
        self._picks_near = isinstance(picker, PicksNear)
        plugins: list[tuple[str, object]] = [
            *([predictor] if predictor is not None else ()),
            *filters,
            *((name, scorer) for name, scorer, _ in scorers),
            (picker.type, picker),
        ]
        self._learners = Learners(plugins)
        self.shared = Shared.of(plugins)
        """What plugins share with other processes."""
        self.reads_media = any(isinstance(each, ReadsMedia) for _, each in plugins)
        """Whether a plugin reads the media of requests."""
        self.max_load_age_s = min(_max_load_age_s(each) for _, each in (*plugins, *admitters))
        """Age in seconds up to which the load of endpoints with known requests will do, infinite if none is read."""

    @property
    def scorers(self) -> tuple[tuple[str, Scorer, float], ...]:
        """Return (name, scorer, weight) in the order of the terms."""
        return self._scorers

    @property
    def predictor(self) -> tuple[str, Predictor] | None:
        """Return name and predictor, None if there is none."""
        return self._predictor

    def decide(
        self, request: RequestView, candidates: Candidates, *, rng: Rng, after: Decision | None = None
    ) -> Decision:
        """Score all candidates and pick; no endpoint is picked if an admitter refused the request, or filters dropped all.

        The decision has the arrays of `candidates`; see `Decision.lasting`.

        Args:
            request: the request.
            candidates: endpoints that can take it.
            rng: uniform draws.
            after: a decision on the same candidates that picked an endpoint: those that it dropped stay dropped, and its
                predictions hold. None if this is the first.

        Raises:
            NoCandidatesError: `candidates` is empty.
        Cost: one call of every filter and scorer with all candidates.
        """
        if not len(candidates):
            raise NoCandidatesError(f"no endpoint to score for model {request.model!r}")
        faults: list[PluginFault] = []
        drops: list[Drop] = []
        denied: Denied | None = None
        if self._predictor is not None:
            candidates = self._predicted(self._predictor, request, candidates, faults)
        if self._admitters:
            denied = self._denied(request, candidates, rng, faults)
        kept: Candidates = candidates
        rows: RowArray | None = None
        names = self._filter_names
        if after is not None:
            candidates, kept, rows = after.candidates, after.kept, after.rows
            drops += after.drops
            names = after.filters + names
        if denied is not None:
            kept, rows = _all_dropped(candidates, denied, drops)
        elif self._filters:
            kept, rows = self._filtered(request, kept, rows, rng, drops, faults)
        scores, totals, inputs, resolution = self._rated(request, kept, faults)
        picked, tie = self._picked(totals, resolution, rng, faults)
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
            filters=names,
            faults=tuple(faults),
            is_estimated=request.is_estimated,
            denied=denied,
            resolution=resolution,
            filtered=kept if rows is not None else None,
        )

    def is_screened(self, decision: Decision) -> bool:
        """Return whether a screener dropped the last candidates of a decision that picked none."""
        return bool(decision.drops) and decision.drops[-1].by in self._screeners

    def picked(self, request: RequestView, decision: Decision) -> tuple[PluginFault, ...]:
        """Call the plugins after the request was routed; see `Learners.picked`."""
        return self._learners.picked(request, decision)

    def answered(self, decision: Decision, *, ttft_s: float) -> tuple[PluginFault, ...]:
        """Call the plugins with the time to first token; see `Learners.answered`."""
        return self._learners.answered(decision, ttft_s=ttft_s)

    def ended(
        self,
        decision: Decision,
        *,
        tpot_s: float | None,
        n_output: int | None = None,
        is_refused: bool = False,
    ) -> tuple[PluginFault, ...]:
        """Call the plugins after a routed request ended; see `Learners.ended`."""
        return self._learners.ended(decision, tpot_s=tpot_s, n_output=n_output, is_refused=is_refused)

    def response_headers(self, decision: Decision) -> tuple[dict[str, str], tuple[PluginFault, ...]]:
        """Return the headers to set on the response to a routed request, and the faults of plugins."""
        return self._learners.response_headers(decision)

    @staticmethod
    def _predicted(
        predictor: tuple[str, Predictor],
        request: RequestView,
        candidates: Candidates,
        faults: list[PluginFault],
    ) -> Candidates:
        """Return the candidates with what the predictor expects of them."""
        predictions, fault = checked_predictions(*predictor, request, candidates)
        if fault is not None:
            faults.append(fault)
        return candidates.predicted(predictions)

    def _denied(
        self, request: RequestView, candidates: Candidates, rng: Rng, faults: list[PluginFault]
    ) -> Denied | None:
        """Return the first refusal of an admitter, None if all admit the request."""
        for name, plugin in self._admitters:
            reason, fault = checked_admission(name, plugin, request, candidates, rng)
            if fault is not None:
                faults.append(fault)
            if reason is not None:
                return Denied(name, reason)
        return None

    def _filtered(
        self,
        request: RequestView,
        kept: Candidates,
        rows: RowArray | None,
        rng: Rng,
        drops: list[Drop],
        faults: list[PluginFault],
    ) -> tuple[Candidates, RowArray | None]:
        """Return those of `kept` that stay and their rows, None for all; add what filters dropped to `drops`."""
        for name, plugin in self._filters:
            verdicts, fault = checked_verdicts(name, plugin, request, kept, rng)
            if fault is not None:
                faults.append(fault)
            if verdicts is None:
                continue
            here, dropped = verdicts.keep.nonzero()[0], (~verdicts.keep).nonzero()[0]
            drops.append(Drop(name, dropped if rows is None else rows[dropped], verdicts.reasons))
            kept, rows = kept.take(here), here if rows is None else rows[here]
            if not len(here):
                break
        return kept, rows

    def _rated(
        self, request: RequestView, candidates: Candidates, faults: list[PluginFault]
    ) -> tuple[FloatArray, FloatArray, tuple[Inputs | None, ...], float]:
        """Return the scores of shape (scorers, candidates), the totals, the inputs of each scorer, and the totals' resolution."""
        n = len(candidates)
        if not n:
            return np.empty((len(self._scorers), 0)), np.empty(0), (None,) * len(self._scorers), 0.0
        resolution = 0.0
        columns: list[FloatArray] = []
        inputs: list[Inputs | None] = []
        bad: dict[str, PluginFault] = {}
        for name, scorer, weight in self._scorers:
            scores, shown, known_to, fault = checked_ratings(name, scorer, request, candidates, n)
            if known_to and self._picks_near:
                resolution += abs(weight) * known_to
            columns.append(scores)
            inputs.append(shown)
            if fault is not None:
                bad[name] = fault
        weighed = weigh(columns, self._weights, n)
        if weighed is None:
            weighed = self._repaired(columns, inputs, n, bad)
        if bad:
            faults.extend(bad[name] for name, _, _ in self._scorers if name in bad)
        return *weighed, tuple(inputs), resolution

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

    def _picked(
        self, totals: FloatArray, resolution: float, rng: Rng, faults: list[PluginFault]
    ) -> tuple[Sequence[int], bool]:
        if not len(totals):
            return (), False
        rows, tie, fault = checked_pick(self._picker, totals, resolution, rng, self._fallback)
        if fault is not None:
            faults.append(fault)
        return rows, tie


def _all_dropped(candidates: Candidates, denied: Denied, drops: list[Drop]) -> tuple[Candidates, RowArray]:
    """Drop every candidate for the reason of the refusal; return the empty rest."""
    reason, nobody = denied.reason, np.empty(0, np.intp)
    drops.append(Drop(denied.by, np.arange(len(candidates)), lambda dropped: [reason] * len(dropped)))
    return candidates.take(nobody), nobody


def _max_load_age_s(plugin: object) -> float:
    return plugin.max_load_age_s if isinstance(plugin, AcceptsOldLoad) else 0.0


def _check_unique(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ProfileError(f"{kind} {name!r} is in the profile twice; give each its own name")
        seen.add(name)
