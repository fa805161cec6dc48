"""What the copy of a prompt that many requests share saves later ones, in the costs of `fleet-cost-scorer`."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from kvatlas.indexer.prefix import Prefix
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.latency.fleet_cost import FleetCostParams, FleetCostScorer
from kvatlas.scorers.latency.ttft import BATCH_MS
from support.candidates import TIERS, endpoint, held, load
from support.rating import routed_to, teach

REQUEST = RequestView(model="m", now=0.0, n_tokens=160, prefix=Prefix(array("I", range(160))))
PARAMS = FleetCostParams(
    prefill_tokens_per_second=1000.0, displacement_factor=0.0, price_factor=0.0, fit=False
)


def batch(n_running: int, *, n_held: int = 0, n_sent: int = 0) -> Candidate:
    """Return an endpoint that has so many requests in a batch; `n_sent` were sent by all processes."""
    return endpoint(
        f"{n_running}-{n_held}", prefix=held(gpu=n_held), in_flight=(n_sent, 0), of=load(running=n_running)
    )


def savings(n_sharing: int, *fleet: Candidate, params: FleetCostParams = PARAMS) -> list[float]:
    """Return the part `copy` of the costs while own requests of the first endpoint share all tokens of the prompt."""
    scorer = FleetCostScorer(params, TIERS)
    for _ in range(n_sharing):
        decision = routed_to(fleet[0], n_tokens=160)
        scorer.picked(REQUEST, decision)
        teach(scorer.model, decision)
    rows = scorer.rate(REQUEST, Candidates.of(fleet)).inputs
    assert rows is not None
    assert rows.parts is not None
    found: list[float] = rows.parts.values[rows.parts.names.index("copy")].tolist()
    return found


@pytest.mark.parametrize(
    ("n_sharing", "other", "saved"),
    [
        pytest.param(20, batch(0), 20 / 21 * 160.37, id="all_share_the_work"),
        pytest.param(20, batch(18), 2 * 20 * 2 * BATCH_MS, id="no_more_than_the_smaller_batches_save"),
        pytest.param(10, batch(18, n_sent=18), 2 * 18 * 2 * BATCH_MS, id="other_processes_send_as_many"),
        pytest.param(20, batch(20), 0.0, id="batches_alike"),
        pytest.param(20, batch(30), 0.0, id="larger_batch"),
        pytest.param(0, batch(0), 0.0, id="nobody_shares_it"),
    ],
)
def test_a_copy_saves_later_requests_the_larger_batch(n_sharing: int, other: Candidate, saved: float) -> None:
    found = savings(n_sharing, batch(20, n_held=10), other)

    assert found == [0.0, pytest.approx(-saved, rel=0.01)]


def test_all_share_the_cost_of_what_a_copy_displaces() -> None:
    params = msgspec.structs.replace(PARAMS, displacement_factor=2.0)

    found = savings(20, batch(40, n_held=9), batch(0), params=params)

    n_displaced = 160 - 16  # the 16 that no endpoint has displace fewer where less was placed
    assert found == [0.0, pytest.approx(-20 / 21 * (160.37 + 2.0 * n_displaced), rel=0.01)]
