"""`fleet-cost-scorer`: requests that wait again because an engine took their blocks back."""

from __future__ import annotations

import pytest

from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.latency.fleet_cost import FleetCostParams, FleetCostScorer
from kvatlas.scorers.latency.lengths import PRIOR_TOKENS
from kvatlas.scorers.latency.tpot import TOKEN_MS
from support.candidates import TIERS, endpoint, load
from support.rating import part_of

N_TOKENS = 160
REQUEST = RequestView(model="m", now=0.0, n_tokens=N_TOKENS)
PARAMS = FleetCostParams(residency_factor=2.0, displacement_factor=0.0, fit=False)
ALL_KNOWN = (53, 53 * N_TOKENS)
"""Requests and tokens in flight: those that run and those that wait."""

TAKEN_MS = PARAMS.residency_factor * PRIOR_TOKENS * TOKEN_MS / 2
"""What the half of all blocks, which the prompt takes, costs one request for the time of a response."""


@pytest.mark.parametrize(
    ("kv", "waiting", "sent", "n_delayed"),
    [
        pytest.param(0.99, 3, ALL_KNOWN, 0.99 + 3.0, id="taken_back"),
        pytest.param(0.99, 0, ALL_KNOWN, 0.99, id="none_waits"),
        pytest.param(0.99, 3, (0, 0), 0.99, id="those_of_others_may_be_new"),
        pytest.param(0.9, 3, ALL_KNOWN, 0.9, id="with_room_they_begin_soon"),
    ],
)
def test_blocks_cost_each_request_that_waits_again_as_much(
    kv: float, waiting: int, sent: tuple[int, int], n_delayed: float
) -> None:
    of = load(kv=kv, gpu_tokens=2 * N_TOKENS, running=50, waiting=waiting)

    (cost_ms,) = part_of("memory", FleetCostScorer(PARAMS, TIERS), REQUEST, endpoint(of=of, in_flight=sent))

    assert cost_ms == pytest.approx(TAKEN_MS * n_delayed)
