"""Rating by place between the lightest and the heaviest load, as two scorers do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .model import Candidate, Load, Ratings
from .rating_column import RatingColumn


def place_between(candidates: Sequence[Candidate], count: Callable[[Load], int], *, now: float) -> Ratings:
    """`(max - n) / (max - min)` of each candidate's count, 1 when all known counts are equal.

    An unknown load rates 0 and takes no part in min and max: an endpoint that nobody can see must not look idle.
    """
    counts = [None if candidate.load is None else count(candidate.load) for candidate in candidates]
    known = [n for n in counts if n is not None]
    heaviest = max(known, default=0)
    spread = heaviest - min(known, default=0)
    if spread:
        scores = [0.0 if n is None else (heaviest - n) / spread for n in counts]
    else:
        scores = [0.0 if n is None else 1.0 for n in counts]
    return RatingColumn(scores, counts, loaded=candidates, now=now)
