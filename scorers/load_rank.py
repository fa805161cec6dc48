"""Rating by place between the lightest and the heaviest load, as two scorers do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .model import Candidate, Load, Rating, Ratings


def place_between(candidates: Sequence[Candidate], count: Callable[[Load], int], *, now: float) -> Ratings:
    """`(max - n) / (max - min)` of each candidate's count, 1 when all known counts are equal.

    An unknown load rates 0 and takes no part in min and max: an endpoint that nobody can see must not look idle.
    """
    known = [count(candidate.load) for candidate in candidates if candidate.load is not None]
    heaviest = max(known, default=0)
    spread = heaviest - min(known, default=0)
    ratings: list[Rating] = []
    for candidate in candidates:
        load = candidate.load
        if load is None:
            ratings.append(Rating(raw=None, score=0.0))
            continue
        n = count(load)
        score = (heaviest - n) / spread if spread else 1.0
        ratings.append(Rating(raw=float(n), score=score, age_s=load.age_s(now)))
    return ratings
