"""What is expected of caches while many requests run at once, on simulated engines whose events arrive at once."""

from __future__ import annotations

import pytest

from support.requests_at_once import Caches, crowd

SMALL = Caches(gpu_blocks=72, cpu_blocks=120, n_running=4)
USUAL = Caches(gpu_blocks=400, cpu_blocks=500, n_running=16)
"""As in docs/vllm-check.md."""


@pytest.mark.parametrize(
    ("caches", "at_once", "exact"),
    [
        pytest.param(USUAL, 4, 0.98, id="usual_4"),
        pytest.param(USUAL, 16, 0.97, id="usual_16"),
        pytest.param(USUAL, 32, 0.94, id="usual_32"),
        pytest.param(SMALL, 4, 0.98, id="small_4"),
        pytest.param(SMALL, 16, 0.93, id="small_16"),
        pytest.param(SMALL, 32, 0.85, id="small_32"),
    ],
)
async def test_nearly_all_requests_find_what_was_expected_at_the_pick(
    caches: Caches, at_once: int, exact: float
) -> None:
    async with crowd(caches, seed=1) as clients:
        sent = clients.run(n_requests=300, at_once=at_once)
    assert len(sent) == 300
    found = sum(each.expected == each.cached for each in sent) / len(sent)
    just_before = sum(each.at_its_step == each.cached for each in sent) / len(sent)
    assert found >= exact
    assert just_before >= 0.93, "the rules are right: what differs has changed between the pick and the step"
    if caches is USUAL:
        expected, cached = sum(each.expected for each in sent), sum(each.cached for each in sent)
        assert abs(expected - cached) <= 0.02 * cached
