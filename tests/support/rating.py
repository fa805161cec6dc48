"""Plugins called with endpoints as objects, and their results read as objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvatlas.scorers.core.base import Filter, Rng, Scorer
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.columns import FloatArray
from kvatlas.scorers.core.decision import Decision, known
from kvatlas.scorers.core.model import Candidate, Rating, RequestView
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.core.scheduler import Deciding
from kvatlas.scorers.latency.cost_model import CostModel
from support.candidates import no_chance


def rated(scorer: Scorer, request: RequestView, candidates: Sequence[Candidate]) -> list[Rating]:
    """Return one rating per candidate."""
    table = Candidates.of(candidates)
    ratings = scorer.rate(request, table)
    scores, inputs = ratings.scores.tolist(), ratings.inputs
    assert len(scores) == len(candidates)
    if inputs is None:
        return [Rating(raw=None, score=score) for score in scores]
    raws, ages = inputs.column(table).tolist(), inputs.ages_s(table, now=request.now).tolist()
    return [
        Rating(raw=known(raw), score=score, age_s=known(age))
        for raw, score, age in zip(raws, scores, ages, strict=True)
    ]


def part_of(name: str, scorer: Scorer, request: RequestView, *candidates: Candidate) -> list[float]:
    """Return one part of the costs that a scorer rates, by candidate."""
    inputs = scorer.rate(request, Candidates.of(candidates)).inputs
    assert inputs is not None
    assert inputs.parts is not None
    values: list[float] = inputs.parts.values[inputs.parts.names.index(name)].tolist()
    return values


def judged(
    plugin: Filter, request: RequestView, candidates: Sequence[Candidate], *, rng: Rng = no_chance
) -> list[str | None]:
    """Return one verdict per candidate: None keeps it, a text is the reason why it is dropped."""
    table = Candidates.of(candidates)
    verdicts = plugin.judge(request, table, rng=rng)
    keep = verdicts.keep.tolist()
    assert len(keep) == len(candidates)
    reasons = iter(verdicts.reasons(table.take((~verdicts.keep).nonzero()[0])))
    found = [None if kept else next(reasons) for kept in keep]
    assert not list(reasons)
    return found


def decide(
    profile: Deciding, request: RequestView, candidates: Sequence[Candidate], *, rng: Rng = no_chance
) -> Decision:
    """Return the decision between these endpoints."""
    return profile.decide(request, Candidates.of(candidates), rng=rng)


class _First:
    """Picker of the first candidate."""

    type = "first"

    def pick(self, totals: FloatArray, *, rng: Rng) -> tuple[Sequence[int], bool]:  # noqa: ARG002 (Picker)
        return [0], False


def teach(model: CostModel, decision: Decision) -> None:
    """Have a model learn what requests need from one that it follows, whose prompt is computed without a first token."""
    request = model.accounts.find(decision)
    assert request is not None
    model.teach(request)


def routed_to(
    first: Candidate, *others: Candidate, model: str = "m", n_tokens: int = 0, **more: Any
) -> Decision:
    """Return a decision for the first of some candidates, with further fields."""
    view = RequestView(model=model, now=0.0, n_tokens=n_tokens)
    decision = decide(Profile([], _First()), view, [first, *others])
    return msgspec.structs.replace(decision, **more)
