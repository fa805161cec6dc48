from __future__ import annotations

import pytest

from kvatlas.sim.workload import Turn, WorkloadResult, WorkloadSpec


def make_turn(
    *, server: str = "a", ttft_s: float = 0.1, prompt_tokens: int = 100, cached_tokens: int = 0
) -> Turn:
    return Turn(server, ttft_s, ttft_s + 1, prompt_tokens, cached_tokens)


def test_hit_rate_weighs_turns_by_their_tokens() -> None:
    result = WorkloadResult([make_turn(prompt_tokens=300), make_turn(prompt_tokens=100, cached_tokens=80)])

    assert result.hit_rate == 0.2


@pytest.mark.parametrize(("n_turns", "p90"), [(1, 1), (9, 9), (10, 9), (20, 18)])
def test_p90_is_the_nearest_rank(n_turns: int, p90: int) -> None:
    result = WorkloadResult([make_turn(ttft_s=float(number)) for number in range(n_turns, 0, -1)])

    assert result.p90_ttft_s == p90


def test_empty_result_is_all_zero() -> None:
    result = WorkloadResult([], ["it failed"])

    assert (result.hit_rate, result.mean_ttft_s, result.p90_ttft_s, result.requests_by_server) == (
        0,
        0,
        0,
        {},
    )


def test_spec_counts_its_requests() -> None:
    spec = WorkloadSpec(
        groups=2, conversations=3, turns=4, system_words=1, user_words=1, reply_tokens=1, concurrency=1
    )

    assert spec.n_requests == 24
