"""Lower bounds of schedules are below the best schedule, found by trying all."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.sim.replay.relaxation import Job, pooled_flow_s


def best_flow(jobs: list[Job], machines: int) -> float:
    """Try all schedules that may switch jobs every second, with each job on at most one machine at a time."""

    @cache
    def best(now: int, left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        here = [number for number, job in enumerate(jobs) if job.at <= now and left[number]]
        n_open = sum(1 for number, job in enumerate(jobs) if job.at <= now and left[number])
        found: list[int] = []
        for chosen in combinations(here, min(machines, len(here))):
            then = tuple(n - (number in chosen) for number, n in enumerate(left))
            found.append(n_open + best(now + 1, then))
        return min(found)

    return best(0, tuple(int(job.work_s) for job in jobs))


JOBS = st.lists(
    st.builds(Job, st.integers(0, 4).map(float), st.integers(1, 4).map(float)), min_size=1, max_size=5
)


@given(jobs=JOBS, machines=st.integers(1, 3))
def test_bound_is_at_most_the_best_schedule(jobs: list[Job], machines: int) -> None:
    assert pooled_flow_s(jobs, machines=machines) <= best_flow(jobs, machines) + 1e-9


@given(jobs=JOBS)
def test_bound_is_the_best_schedule_on_one_machine(jobs: list[Job]) -> None:
    assert pooled_flow_s(jobs, machines=1) == pytest.approx(best_flow(jobs, 1))


def test_bound_is_near_the_best_schedule_when_a_job_cannot_be_divided() -> None:
    jobs = [Job(0.0, 3.0)] * 4

    assert best_flow(jobs, 4) == 12.0
    assert pooled_flow_s(jobs, machines=4) >= 12.0 * 0.6


def test_nothing_takes_no_time() -> None:
    assert pooled_flow_s([], machines=2) == 0.0
