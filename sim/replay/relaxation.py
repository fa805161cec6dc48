"""Lower bounds on how long jobs take together on machines that share them, whatever the schedule."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import inf


@dataclass(frozen=True, slots=True)
class Job:
    """Work of one request.

    Attributes:
        at: seconds at which it arrives.
        work_s: seconds of one machine's time, more than 0, that must be spent on it after its arrival.
    """

    at: float
    work_s: float


def pooled_flow_s(jobs: Sequence[Job], *, machines: float) -> float:
    """Return a lower bound of the sum of the jobs' times from arrival to end, on machines of speed 1.

    It is the larger of two. (1) One machine as fast as all together, which may interrupt jobs, can imitate every schedule.
    Its best is to do the job with the least work left (SRPT). (2) Work at most one machine at a time on a job. Then it ends
    at least `work_s / 2` after the mean time at which it was worked on. The sum of these mean times is least on the one fast
    machine if it does the smallest job first (Goemans, Queyranne, Schulz, Skutella and Wang 2002, lemma on mean busy times).

    Args:
        jobs: in any order.
        machines: their number, or the sum of their speeds relative to the fastest.
    Cost: O(n log n).
    """
    return max(_shortest_remaining(jobs, machines), _mean_busy(jobs, machines))


def _shortest_remaining(jobs: Sequence[Job], machines: float) -> float:
    """Sum the times from arrival to end with SRPT on one machine of speed `machines`."""
    left: list[float] = []
    total = 0.0
    for job, until in _with_next(jobs):
        heapq.heappush(left, job.work_s / machines)
        at = job.at
        while left and at + left[0] <= until:
            at += heapq.heappop(left)
            total += at
        if left:
            heapq.heapreplace(left, left[0] - (until - at))
    return total - sum(job.at for job in jobs)


def _mean_busy(jobs: Sequence[Job], machines: float) -> float:
    """Sum the mean times of work on each job, smallest job first, from its arrival, and half of each job's work."""
    left: list[tuple[float, int]] = []
    rest = dict[int, float]()
    total = 0.0
    for place, (job, until) in enumerate(_with_next(jobs)):
        rest[place] = job.work_s
        heapq.heappush(left, (job.work_s, place))
        at = job.at
        while left and at < until:
            work_s, number = left[0]
            ends_at = min(until, at + rest[number] / machines)
            part = (ends_at - at) * machines
            total += (at + ends_at) / 2 * part / work_s
            rest[number] -= part
            if ends_at < until:
                heapq.heappop(left)
            at = ends_at
    return total + sum(job.work_s / 2 - job.at for job in jobs)


def _with_next(jobs: Sequence[Job]) -> list[tuple[Job, float]]:
    """Return the jobs by arrival, each with the arrival of the next."""
    ordered = sorted(jobs, key=lambda job: job.at)
    return [(job, later.at if later else inf) for job, later in zip_longest(ordered, ordered[1:])]
