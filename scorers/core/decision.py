"""Decision: the outcome of one pick, with its reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from .candidates import Candidates
from .columns import FloatArray, RowArray, shown, weighted_sums
from .drops import Denied, Drop, Dropped, reasons_of
from .faults import PluginFault
from .kept_table import KeptTable
from .model import Candidate, Rating
from .placement_option import PlacementOption
from .prefix_columns import PrefixColumns
from .ratings import Inputs
from .slo import Slo

PREFILL, ENCODE = "prefill", "encode"
"""Names of stages that other endpoints can do than the one that answers."""

PROFILE = "profile"
"""In place of such a name: the request names a profile that does not exist."""


class WeightedScorer(NamedTuple):
    """A scorer of a profile.

    Attributes:
        name: its name in the profile.
        type: its plugin type.
        weight: its weight.
    """

    name: str
    type: str
    weight: float


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


class ScoredCandidate(msgspec.Struct, frozen=True, gc=False):
    """A candidate with its terms in the profile's order; a dropped candidate has no terms."""

    candidate: Candidate
    terms: tuple[ScoreTerm, ...]
    total: float
    dropped: Dropped | None = None


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Origin of a request, from its headers.

    Attributes:
        request_id: `x-request-id`.
        traceparent: W3C trace context, empty if the request has none.
        objective: name of its objective, empty if the request has none.
        priority: priority of the objective.
        fairness_id: tenant or user that the request counts for.
        slo: objectives that the client named, None if it named none.
    """

    request_id: str
    traceparent: str
    objective: str
    priority: int
    fairness_id: str
    slo: Slo | None = None


class Stage(msgspec.Struct, frozen=True):
    """A stage of a request that another endpoint does than the one that answers.

    Attributes:
        name: `prefill` or `encode`.
        profile: name of the profile that picked.
        decision: its decision; at least one endpoint is picked.
    """

    name: str
    profile: str
    decision: Decision


class Placement(msgspec.Struct, frozen=True):
    """The profiles that a handler ran for a request, beside the decision of the one that answers.

    Attributes:
        kind: bounded word for counters, such as `prefill-decode`.
        profile: name of the profile that picked the endpoint that answers.
        stages: the other stages.
        headers: lower-case name -> value, for the sidecar of the endpoint that answers.
        port: port to which the request goes instead of the endpoint's own; None for that.
        lacking: stage that the request needs and that no endpoint can do, or `PROFILE`; then none is picked. None otherwise.
        options: the placement itself and the best others, if the handler compares them by cost; the chosen one first.
    """

    kind: str
    profile: str
    stages: tuple[Stage, ...] = ()
    headers: Mapping[str, str] = {}
    port: int | None = None
    lacking: str | None = None
    options: tuple[PlacementOption, ...] = ()


class Decision(msgspec.Struct, frozen=True, eq=False):
    """Scores of all candidates, and the picked ones, as columns; objects of single candidates are built on access.

    `lasting` returns a decision with smaller columns of its own, to be kept.

    Attributes:
        model: name in the request.
        n_tokens: prompt tokens; 0 if nothing is known of the prompt.
        table: all candidates, in the fleet's order.
        scorers: scorers in the profile's order; shared by all decisions of a profile.
        inputs: inputs of each scorer's scores, None if it shows none.
        scores: shape (scorers, kept candidates).
        picked: names, best first; empty if filters dropped every candidate or the request was denied.
        row: position of the first picked among the kept candidates, -1 if none is picked.
        chosen: the first picked candidate as it was, None if none is picked; `best` returns it.
        tie: whether chance decided the first place.
        drops: candidates that filters dropped, in the order of the filters; an admitter that denies drops all.
        rows: rows of `table` that filters kept, None if they kept all.
        at: monotonic seconds of the request; ages of inputs are relative to it.
        picker: type of the plugin that picked.
        filters: names of the admitters and filters, in the order of their calls.
        no_prefix_reason: why the request has no token ids, None if it has.
        cut_reason: why its token ids end before the prompt, None if they are complete.
        faults: plugins with invalid results, in the profile's order.
        origin: origin of the request, None if the decision routes nothing.
        config_generation: number of the configuration that decided; 1 is that of the start.
        n_prompts: prompts in the request; the decision is about one of them.
        n_choices: responses that the client wants to each prompt.
        is_estimated: whether `n_tokens` is an estimate.
        denied: the admitter that refused the request, None if it was admitted.
        placement: the other stages of the request, None if the configuration has one profile.
        resolution: difference of totals below which chance decided; 0 if only between equal ones.
        filtered: the candidates that filters kept, None if they kept all, or are to be taken from `table` again.
    """

    model: str
    n_tokens: int
    table: Candidates | KeptTable
    scorers: tuple[WeightedScorer, ...]
    inputs: tuple[Inputs | None, ...]
    scores: FloatArray
    picked: tuple[str, ...]
    row: int
    chosen: Candidate | None
    tie: bool
    drops: tuple[Drop, ...] = ()
    rows: RowArray | None = None
    at: float = 0.0
    picker: str = ""
    filters: tuple[str, ...] = ()
    no_prefix_reason: str | None = None
    cut_reason: str | None = None
    faults: tuple[PluginFault, ...] = ()
    origin: Origin | None = None
    config_generation: int = 1
    n_prompts: int = 1
    n_choices: int = 1
    is_estimated: bool = False
    denied: Denied | None = None
    placement: Placement | None = None
    resolution: float = 0.0
    filtered: Candidates | None = None

    def lasting(self) -> Decision:
        """Return the decision with small columns of its own, in at most 32 bits but for the scores. Cost: about 4 us.

        Scores keep their 64 bits: totals, ties and the effect of other weights depend on the last one.
        """
        if isinstance(self.table, KeptTable):
            return self
        table, placement = KeptTable.of(self.table, now=self.at), self.placement
        decision = self.lasting_with(table)
        if placement is None or not placement.stages:
            return decision
        stages = tuple(replace(each, decision=each.decision.lasting_with(table)) for each in placement.stages)
        return replace(decision, placement=replace(placement, stages=stages))

    def lasting_with(self, table: KeptTable) -> Decision:
        """Return the decision with this copy of its table, and small inputs of its own."""
        inputs = [each if each is None or callable(each.raw) else each.lasting() for each in self.inputs]
        return replace(self, table=table, inputs=tuple(inputs), filtered=None)

    @property
    def n_bytes(self) -> int:
        """Upper bound of the memory of a lasting decision that grows with the fleet; stages share the table."""
        n_table = self.table.n_bytes if isinstance(self.table, KeptTable) else 0
        return n_table + self.n_own_bytes + sum([each.decision.n_own_bytes for each in self.stages])

    @property
    def n_own_bytes(self) -> int:
        """Upper bound of its memory that grows with the fleet, without the table."""
        n_bytes = self.scores.nbytes
        for inputs in self.inputs:
            if inputs is not None and not callable(inputs.raw):
                n_bytes += inputs.n_bytes
        for each in self.drops:
            n_bytes += each.rows.nbytes
        return n_bytes if self.rows is None else n_bytes + self.rows.nbytes

    @property
    def candidates(self) -> Candidates:
        """Return all candidates, in the fleet's order. Cost: of a lasting decision, about 50 us."""
        return self.table.table(now=self.at) if isinstance(self.table, KeptTable) else self.table

    @property
    def totals(self) -> FloatArray:
        """Return the totals of the candidates that filters kept, in the fleet's order. Cost: O(candidates * scorers), 3 us."""
        return weighted_sums(self.scores, [each.weight for each in self.scorers])

    @property
    def kept(self) -> Candidates:
        """Return the candidates that filters kept, in the order of `totals` and scores."""
        if self.filtered is not None:
            return self.filtered
        return self.candidates if self.rows is None else self.candidates.take(self.rows)

    @property
    def kept_names(self) -> Sequence[str]:
        """Return the names of the candidates that filters kept. Cost: O(1) if none was dropped."""
        return self.table.directory.select(self.table.directory.names, self._places)

    @property
    def kept_addresses(self) -> Sequence[str]:
        """Return the addresses of the candidates that filters kept. Cost: O(1) if none was dropped."""
        return self.table.directory.select(self.table.directory.addresses, self._places)

    @property
    def prefixes(self) -> PrefixColumns | None:
        """Return the prefixes of all candidates, None if the request has no block keys."""
        return self.table.prefixes() if isinstance(self.table, KeptTable) else self.table.prefix

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Return the stages that other endpoints do, in the order of their decisions."""
        return self.placement.stages if self.placement is not None else ()

    @property
    def computing(self) -> Decision:
        """Return the decision about the endpoint that computes the prompt: of the prefill stage, or this one."""
        for stage in self.stages:
            if stage.name == PREFILL:
                return stage.decision
        return self

    @property
    def picked_addresses(self) -> tuple[str, ...]:
        """Return the addresses of the picked endpoints, best first. Cost: O(candidates) if more than one is picked."""
        if len(self.picked) == 1:
            return (self.best.address,)
        addresses = dict(zip(self.kept_names, self.kept_addresses, strict=True))
        return tuple(addresses[name] for name in self.picked)

    @property
    def best(self) -> Candidate:
        """Return the first picked candidate as it was; `picked` must not be empty."""
        if self.chosen is None:
            raise LookupError("no endpoint is picked")
        return self.chosen

    @property
    def n_dropped(self) -> int:
        """Return the number of candidates that filters dropped."""
        return sum([len(each.rows) for each in self.drops]) if self.drops else 0

    @property
    def dropped(self) -> dict[str, Dropped]:
        """Return name -> filter and reason, of the candidates that filters dropped. Cost: each access makes the reasons."""
        if not self.drops:
            return {}
        candidates = self.candidates
        return {
            candidates.name(row): Dropped(each.by, reason)
            for each in self.drops
            for row, reason in zip(each.rows.tolist(), reasons_of(each, candidates), strict=True)
        }

    @property
    def scored(self) -> tuple[ScoredCandidate, ...]:
        """Return all candidates with their terms, in the fleet's order. Cost: O(candidates * scorers)."""
        dropped = self.dropped
        terms, totals = iter(self.terms), iter(self.totals.tolist())
        return tuple(
            ScoredCandidate(each, (), 0.0, dropped[each.name])
            if each.name in dropped
            else ScoredCandidate(each, next(terms), next(totals))
            for each in self.candidates
        )

    @property
    def terms(self) -> list[tuple[ScoreTerm, ...]]:
        """Return the terms of each kept candidate. Cost: O(candidates * scorers)."""
        return self._terms(self.kept, slice(None))

    def rated(self, number: int, kept: Candidates) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return inputs, scores and ages of the inputs in seconds, by one scorer; an input or age that is unknown is NaN.

        Args:
            number: position of the scorer in `scorers`.
            kept: the kept candidates, as `kept` returns them.
        """
        scores: FloatArray = self.scores[number]
        inputs = self.inputs[number]
        if inputs is None:
            nothing = np.full(len(scores), np.nan)
            return nothing, scores, nothing
        return shown(inputs.column(kept)), scores, inputs.ages_s(kept, now=self.at)

    @property
    def first(self) -> ScoredCandidate:
        """Return `best` with its terms."""
        return replace(self._scored(self.row), candidate=self.best)

    @property
    def runner_up(self) -> ScoredCandidate | None:
        """Return the best kept candidate except the first picked one; None if there is no other."""
        others = self.totals
        if self.row >= 0:
            others[self.row] = -np.inf
        return self._scored(int(others.argmax())) if len(others) > 1 else None

    @property
    def tied(self) -> tuple[str, ...]:
        """Return the names of the endpoints that chance could have picked, in the fleet's order; empty if all were dropped."""
        return self.leaders(self.totals)

    def leaders(self, totals: FloatArray) -> tuple[str, ...]:
        """Return the names of the kept endpoints with the highest of these totals, or less than the resolution below, in the fleet's order."""
        if not len(totals):
            return ()
        names, highest = self.kept_names, totals.max()
        leads = totals > highest - self.resolution if self.resolution else totals == highest
        return tuple(names[row] for row in np.flatnonzero(leads).tolist())

    def filters_passed(self, dropped: Dropped | None) -> tuple[str, ...]:
        """Return the names of the filters that kept a candidate, in their order; `dropped` is None if all did."""
        return self.filters if dropped is None else self.filters[: self.filters.index(dropped.by)]

    @property
    def _places(self) -> RowArray | None:
        """Rows of the directory that filters kept, None for all."""
        rows = self.table.rows
        if self.rows is None:
            return rows
        return self.rows if rows is None else rows[self.rows]

    def _scored(self, row: int) -> ScoredCandidate:
        kept = self.kept
        return ScoredCandidate(kept[row], self._terms(kept, slice(row, row + 1))[0], float(self.totals[row]))

    def _terms(self, kept: Candidates, rows: slice) -> list[tuple[ScoreTerm, ...]]:
        columns = [
            [ScoreTerm(*scorer, rating) for rating in self._ratings(number, kept, rows)]
            for number, scorer in enumerate(self.scorers)
        ]
        return list(zip(*columns, strict=True)) if columns else [()] * self.scores[:, rows].shape[1]

    def _ratings(self, number: int, kept: Candidates, rows: slice) -> Iterator[Rating]:
        columns = (each[rows].tolist() for each in self.rated(number, kept))
        return (
            Rating(raw=known(raw), score=score, age_s=known(age_s))
            for raw, score, age_s in zip(*columns, strict=True)
        )


def known(number: float) -> float | None:
    """Return a number, None if it is NaN, which stands for unknown."""
    return number if number == number else None  # noqa: PLR0124 - ten times as fast as `isnan`


def qualified(profile: str, plugin: str) -> str:
    """Return the name of a plugin in one of several profiles."""
    return f"{profile}/{plugin}"
