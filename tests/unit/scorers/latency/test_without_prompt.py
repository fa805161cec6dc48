"""Requests without a prompt, such as those for stored responses or lists of models: nothing is learned from them."""

from __future__ import annotations

import pytest

from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.filters.roles import ROLE_LABEL
from kvatlas.scorers.latency.fleet_cost import FleetCostParams, FleetCostScorer
from support.candidates import endpoint
from support.joint import answer, model_of, scheduler, send
from support.rating import rated, routed_to


def serve(scorer: FleetCostScorer, n_tokens: int, *, now: float, ttft_s: float, tpot_s: float) -> None:
    decision = routed_to(endpoint("a"), n_tokens=n_tokens, at=now)
    scorer.picked(RequestView("m", now, n_tokens=n_tokens, has_body=bool(n_tokens)), decision)
    scorer.answered(decision, ttft_s=ttft_s)
    scorer.ended(decision, tpot_s=tpot_s)


def test_requests_without_prompt_change_no_cost() -> None:
    scorers = [FleetCostScorer(FleetCostParams(), ("gpu", "cpu")) for _ in range(2)]
    for number in range(100):
        for each in scorers:
            serve(each, 1000 + number, now=number, ttft_s=0.2 + number / 1000, tpot_s=0.02)
    plain, polled = scorers
    for number in range(300):
        serve(polled, 0, now=100 + number / 10, ttft_s=0.001, tpot_s=0.0001)

    def costs_ms(scorer: FleetCostScorer) -> list[float]:
        fleet = [endpoint("a"), endpoint("b", in_flight=(9, 20_000))]
        return [each.raw or 0.0 for each in rated(scorer, RequestView("m", 1000.0, n_tokens=3000), fleet)]

    assert costs_ms(polled) == pytest.approx(costs_ms(plain))
    assert polled.model.work_tokens == plain.model.work_tokens
    assert polled.model.residence_ms("m") == plain.model.residence_ms("m")
    assert (polled.model.ttft_error, polled.model.tpot_error) == (
        plain.model.ttft_error,
        plain.model.tpot_error,
    )
    assert not len(polled.model.accounts)


def test_requests_without_prompt_raise_no_price_of_stages() -> None:
    made = scheduler(fit=False)
    fleet = [endpoint("d", labels={ROLE_LABEL: "decode"}), endpoint("p", labels={ROLE_LABEL: "prefill"})]
    answer(made, send(made, fleet, n_tokens=1000), ms=100.0)
    before = model_of(made).answered_per_ms.at(2.0)

    for _ in range(20):
        answer(made, send(made, fleet, n_tokens=0, now=1.0), ms=1.0)
        made.ended(send(made, fleet, n_tokens=0, now=1.0), tpot_s=None, is_refused=True)

    assert model_of(made).answered_per_ms.at(2.0) == before
