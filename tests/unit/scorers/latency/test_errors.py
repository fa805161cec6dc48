"""Errors of predictions, by which objectives are weighed."""

from __future__ import annotations

import pytest

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.latency.cost_model import CostModel
from kvatlas.scorers.latency.params import LatencyCostParams
from support.candidates import endpoint
from support.rating import routed_to


@pytest.mark.parametrize("n_before", [pytest.param(0, id="the_first"), pytest.param(200, id="a_later_one")])
def test_one_odd_time_does_not_make_the_errors_of_all_predictions(n_before: int) -> None:
    model = CostModel(LatencyCostParams(overhead_ms=100.0, prefill_tokens_per_second=1e9), ("gpu",))

    def serve(*, ttft_s: float, tpot_s: float) -> None:
        view = RequestView(model="m", now=0.0, n_tokens=0)
        model.expect(view, Candidates.of([endpoint("a")]))
        decision = routed_to(endpoint("a"))
        model.picked(view, decision)
        model.answered(decision, ttft_s=ttft_s)
        model.ended(decision, tpot_s=tpot_s)

    for _ in range(n_before):
        serve(ttft_s=0.1, tpot_s=0.015)
    serve(ttft_s=100_000.0, tpot_s=1e-20)
    for _ in range(50):
        serve(ttft_s=0.1, tpot_s=0.015)

    assert (model.ttft_error or 0.0) < 0.2
    assert (model.tpot_error or 0.0) < 0.2
