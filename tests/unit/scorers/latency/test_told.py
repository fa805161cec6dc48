"""What other processes tell a cost model: whatever it is, costs stay numbers, and are the own ones when these are gone."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas.fleet.replicas.sums import Sums
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.latency.fleet_cost import FleetCostParams, FleetCostScorer
from support.candidates import TIERS, endpoint, held, load
from support.rating import routed_to

NUMBERS = st.sampled_from(
    (0.0, 1.0, 50.0, -5.0, 1e-300, 1000.0, 1e15, -1e15, 1e200, -1.7e308, math.inf, math.nan)
)
TABLE = Candidates.of(
    [endpoint(name, of=load(waiting=2, kv=0.5), prefix=held(gpu=n)) for name, n in (("a", 5), ("b", 0))]
)


def serve(scorer: FleetCostScorer, now: float) -> None:
    """Have it decide on a request, and follow it to its end."""
    request = RequestView(model="m", now=now, n_tokens=1000)
    assert all(0.0 <= each <= 1.0 for each in scorer.rate(request, TABLE).scores.tolist())
    decision = msgspec.structs.replace(routed_to(endpoint("a"), n_tokens=1000), at=now)
    scorer.picked(request, decision)
    scorer.answered(decision, ttft_s=0.1)
    scorer.generated(decision, n_tokens=200)
    scorer.ended(decision, tpot_s=0.02)


@settings(max_examples=200)
@given(data=st.data())
def test_costs_stay_numbers_whatever_a_process_tells(data: st.DataObject) -> None:
    scorer, other = (FleetCostScorer(FleetCostParams(), TIERS) for _ in range(2))
    channels = [Sums(lambda: 0.0), Sums(lambda: 0.0)]
    for each, channel in zip((scorer, other), channels, strict=True):
        channel.use(each.shared_sums())
        for number in range(3):
            serve(each, float(number))
    told = {
        key: list(numbers)
        for payload in channels[1].whole()
        for key, numbers in msgspec.msgpack.decode(payload).items()
    }
    for key in sorted(data.draw(st.sets(st.sampled_from(sorted(told)), min_size=1))):
        bad = data.draw(st.dictionaries(st.integers(0, len(told[key]) - 1), NUMBERS, max_size=12))
        told[key] = [bad.get(place, number) for place, number in enumerate(told[key])]

    for number in range(2):
        channels[0].apply("other", msgspec.msgpack.encode(told))
        serve(scorer, 10.0 + number)
        assert 0.0 <= scorer.model.residence_ms("m") < math.inf
        assert 1 / 8.01 < scorer.model.accounts.pace(scorer.model.accounts.row("a")) < 8.01
    channels[0].drop("other")

    serve(scorer, 20.0)
    assert all(math.isfinite(cost) for report in scorer.reports() for cost in report.costs_ms.values())
