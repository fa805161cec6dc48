"""What the tokens after the first cost in a mixed fleet, in the costs of `fleet-cost-scorer`."""

from __future__ import annotations

import msgspec
import pytest

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.latency.arithmetic import ALIKE
from kvatlas.scorers.latency.fleet_cost import RESPONSE, FleetCostParams, FleetCostScorer
from support.candidates import TIERS, endpoint
from support.rating import routed_to

PARAMS = FleetCostParams(group_label="zone", displacement_factor=0.0, price_factor=0.0)
FAST, SLOW = (endpoint(name, labels={"zone": name}) for name in ("fast", "slow"))
N_OUTPUT = 200
FASTER_S = 0.01
"""Seconds per output token of the quickest endpoint."""
REQUEST = RequestView(model="m", now=0.0, n_tokens=160)


def responses(scorer: FleetCostScorer, *fleet: Candidate) -> list[float]:
    """Return the part `response` of the costs."""
    rows = scorer.rate(REQUEST, Candidates.of(fleet)).inputs
    assert rows is not None
    assert rows.parts is not None
    found: list[float] = rows.parts.values[rows.parts.names.index("response")].tolist()
    return found


def learned(slower_s: float) -> FleetCostScorer:
    """Return a scorer that has seen responses of `N_OUTPUT` tokens at both speeds."""
    scorer = FleetCostScorer(PARAMS, TIERS)
    for _ in range(300):
        for each, tpot_s in ((FAST, FASTER_S), (SLOW, slower_s)):
            decision = routed_to(each, n_tokens=160)
            scorer.picked(REQUEST, decision)
            scorer.generated(decision, n_tokens=N_OUTPUT)
            scorer.ended(decision, tpot_s=tpot_s)
    return scorer


@pytest.mark.parametrize(
    ("slower_s", "beyond_ms"),
    [
        pytest.param(0.03, 1000.0 * N_OUTPUT * (0.03 - ALIKE * FASTER_S), id="slower"),
        pytest.param(0.012, 0.0, id="about_as_quick"),
    ],
)
def test_slower_tokens_count_a_little_beside_the_quickest_endpoint(slower_s: float, beyond_ms: float) -> None:
    scorer = learned(slower_s)

    assert responses(scorer, FAST, SLOW) == [0.0, pytest.approx(RESPONSE * beyond_ms, rel=0.05)]
    assert responses(scorer, SLOW, SLOW) == [0.0, 0.0]


def test_an_equal_fleet_costs_nothing_more() -> None:
    params = msgspec.structs.replace(PARAMS, group_label="")

    assert responses(FleetCostScorer(params, TIERS), FAST, SLOW) == [0.0, 0.0]
    assert responses(FleetCostScorer(params, TIERS)) == []
