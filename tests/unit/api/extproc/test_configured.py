"""Threads for connections."""

from __future__ import annotations

import os

import pytest

from kvatlas.api.extproc.configured import MAX_THREADS, thread_count


@pytest.mark.parametrize(
    ("n_cores", "n_processes", "n_threads"),
    [(1, 1, 1), (2, 1, 1), (4, 1, 3), (64, 1, MAX_THREADS), (8, 2, 3), (4, 8, 1)],
)
def test_a_process_leaves_one_of_its_cores_to_decisions(
    n_cores: int, n_processes: int, n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cores(_pid: int) -> set[int]:
        return set(range(n_cores))

    monkeypatch.setattr(os, "sched_getaffinity", cores)

    assert thread_count("auto", n_processes=n_processes) == n_threads
    assert thread_count(5, n_processes=n_processes) == 5
