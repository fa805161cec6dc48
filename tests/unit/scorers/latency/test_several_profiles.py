"""Cost scorers in the profiles of several stages, which see a request one after the other."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvatlas.routing.plan.plan import Plan, make_plan
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import InFlightLoad, RequestView
from kvatlas.scorers.latency.cost import LatencyCostScorer
from support.plans import config
from support.rating import decide
from support.stages import ALWAYS, server

SCORER, OTHER = "latency-cost-scorer", "queue-scorer"
STAGES = ("decode", "prefill")


def staged(costs_of: tuple[str, ...]) -> Plan:
    """Return a plan in which the profiles of these stages have the scorer."""
    sections = [
        {
            "name": stage,
            "plugins": [
                {"pluginRef": f"{stage}-filter"},
                {"pluginRef": SCORER if stage in costs_of else OTHER},
            ],
        }
        for stage in STAGES
    ]
    filters = (f"{stage}-filter" for stage in STAGES)
    handler = {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": ALWAYS}}}
    return make_plan(config(SCORER, OTHER, *filters, ALWAYS, handler, schedulingProfiles=sections))


@pytest.mark.parametrize("costs_of", [("prefill",), STAGES], ids=["one", "both"])
def test_what_each_profile_expected_is_kept_from_the_pick(costs_of: tuple[str, ...]) -> None:
    plan = staged(costs_of)
    scorer = plan.built["scorer", SCORER].plugin
    assert isinstance(scorer, LatencyCostScorer)
    prefill = server("p", "prefill")

    def sent(now: float, n_ahead: int) -> Decision:
        busy = replace(prefill, in_flight=InFlightLoad(n_ahead, 20_000 * n_ahead))
        request = RequestView("m", now, n_tokens=20_000)
        decision = replace(decide(plan.profile, request, [server("d", "decode"), busy]), at=now)
        assert plan.profile.picked(request, decision) == ()
        return decision

    sent(0.0, 0)
    second = sent(1.0, 1)
    computing = second.computing
    (shown_ms,) = computing.rated(0, computing.kept)[0].tolist()
    plan.profile.answered(second, ttft_s=shown_ms / 1000.0)

    assert computing.best.name == "p"
    assert scorer.model.ttft_error == pytest.approx(0.0, abs=1e-9)


def test_what_was_expected_of_one_request_is_not_that_of_the_next() -> None:
    plan = staged(STAGES)
    scorer = plan.built["scorer", SCORER].plugin
    assert isinstance(scorer, LatencyCostScorer)
    fleet = [server("d", "decode"), server("p", "prefill")]
    long, short = (RequestView("m", 0.0, n_tokens=n) for n in (20_000, 100))
    decision = decide(plan.profile, short, fleet)
    decide(plan.profile, long, fleet)

    plan.profile.picked(short, decision)
    plan.profile.answered(decision, ttft_s=0.036)

    assert scorer.model.ttft_error == pytest.approx(0.0, abs=0.1)
