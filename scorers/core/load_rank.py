"""Rating by position between the lowest and the highest load, shared by two scorers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .model import Candidate, Load, Ratings
from .rating_column import RatingColumn


def rate_by_load(candidates: Sequence[Candidate], count: Callable[[Load], int], *, now: float) -> Ratings:
    """Rate each candidate `(max - n) / (max - min)` for its count n, or 1 if all known counts are equal.

    An unknown load scores 0 and is not part of min and max: an endpoint without metrics must not look idle.
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
