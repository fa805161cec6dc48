"""A profile: weighted scorers and a picker, run once per request."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence

from .base import PickerPlugin, Rng, Scorer
from .decision import Decision, ScoredCandidate, ScorerFault, ScoreTerm
from .errors import NoCandidatesError, ProfileError
from .model import Candidate, Rating, RequestView


class Profile:
    """Rates every candidate with every scorer and picks by `total = sum(weight * score)`.

    The total is not divided by the weights. A scorer that raises or rates outside [0, 1] never breaks a request: its
    ratings are zeroed or clamped, and the decision names it in `faults`.

    Args:
        scorers: (name, scorer, weight) in the order of the terms; names are unique, weights finite and >= 0.
        picker: chooses among the totals.

    Raises:
        ProfileError: a name comes twice, or a weight is impossible.
    """

    def __init__(self, scorers: Sequence[tuple[str, Scorer, float]], picker: PickerPlugin) -> None:
        names: set[str] = set()
        for name, _, weight in scorers:
            if name in names:
                raise ProfileError(f"scorer {name!r} is in the profile twice; give each its own name")
            if not (math.isfinite(weight) and weight >= 0):
                raise ProfileError(
                    f"weight of scorer {name!r} is {weight}, want a finite number of at least 0"
                )
            names.add(name)
        self._scorers = tuple(scorers)
        self._picker = picker

    def decide(
        self, request: RequestView, candidates: Sequence[Candidate], *, rng: Rng, count: int = 1
    ) -> Decision:
        """Scores of all candidates, and the best `count` of them.

        Raises:
            NoCandidatesError: `candidates` is empty.
            ProfileError: `count` is below 1.
        Cost: one pass of every scorer over all candidates.
        """
        if not candidates:
            raise NoCandidatesError(f"no endpoint to score for model {request.model!r}")
        if count < 1:
            raise ProfileError(f"count is {count}, want at least 1")
        faults: list[ScorerFault] = []
        columns: list[list[ScoreTerm]] = []
        for name, scorer, weight in self._scorers:
            ratings, fault = _sound_ratings(name, scorer, request, candidates)
            plugin_type = scorer.type
            columns.append([ScoreTerm(name, plugin_type, weight, rating) for rating in ratings])
            if fault is not None:
                faults.append(fault)
        rows = zip(*columns, strict=True) if columns else (() for _ in candidates)
        scored = tuple(_scored(candidate, terms) for candidate, terms in zip(candidates, rows, strict=True))
        picked, tie = self._picker.pick([entry.total for entry in scored], count=count, rng=rng)
        return Decision(
            model=request.model,
            n_tokens=request.n_tokens,
            scored=scored,
            picked=tuple(candidates[row].name for row in picked),
            tie=tie,
            faults=tuple(faults),
        )


def _scored(candidate: Candidate, terms: tuple[ScoreTerm, ...]) -> ScoredCandidate:
    total = 0.0
    for term in terms:
        total += term.product
    return ScoredCandidate(candidate, terms, total)


def _sound_ratings(
    name: str, scorer: Scorer, request: RequestView, candidates: Sequence[Candidate]
) -> tuple[list[Rating], ScorerFault | None]:
    """Ratings with every score in [0, 1], and what had to be repaired for that."""
    unknown = [Rating(raw=None, score=0.0)] * len(candidates)
    try:
        ratings = list(scorer.rate(request, candidates))
        outside = [rating.score for rating in ratings if not 0.0 <= rating.score <= 1.0]
        n_not_finite = sum(not math.isfinite(score) for score in outside)
    except Exception as error:  # noqa: BLE001 (plugin code; the fault carries what happened)
        return unknown, ScorerFault(name, "raised", _description(error))
    if len(ratings) != len(candidates):
        detail = f"rated {len(ratings)} endpoints, want {len(candidates)}"
        return unknown, ScorerFault(name, "wrong_length", detail)
    if not outside:
        return ratings, None
    if n_not_finite:
        reason, detail = "not_finite", f"{n_not_finite} of {len(ratings)} scores are not finite, taken as 0"
    else:
        reason, detail = "out_of_range", f"{len(outside)} of {len(ratings)} scores outside [0, 1], clamped"
    return [_clamped(rating) for rating in ratings], ScorerFault(name, reason, detail)


def _clamped(rating: Rating) -> Rating:
    score = min(1.0, max(0.0, rating.score)) if math.isfinite(rating.score) else 0.0
    return Rating(raw=rating.raw, score=score, age_s=rating.age_s)


def _description(error: Exception) -> str:
    """Type, message and the line that raised; one line."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())
    file_name = where.filename.rpartition("/")[2]
    return f"{type(error).__name__}: {message} ({file_name}:{where.lineno})"
