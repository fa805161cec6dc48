"""`lmetric-scorer`: tokens to compute times requests in flight."""

from __future__ import annotations

import pytest

from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.params import BuildContext
from support.built import built
from support.candidates import TIERS, endpoint, held
from support.rating import rated

REQUEST = RequestView(model="m", now=0.0, n_tokens=165)


@pytest.mark.parametrize(
    ("fleet", "ratings"),
    [
        pytest.param(
            [
                endpoint("cold", prefix=held()),
                endpoint("half", prefix=held(gpu=5), in_flight=(3, 0)),
                endpoint("warm", prefix=held(gpu=10), in_flight=(9, 0)),
                endpoint("doubted", prefix=held(gpu=10), credit=0.5),
            ],
            [(160, 0.5), (320, 0), (0, 1), (80, 0.75)],
            id="costs",
        ),
        pytest.param(
            [endpoint("a", prefix=held()), endpoint("b", prefix=held())], [(160, 1), (160, 1)], id="all_equal"
        ),
        pytest.param(
            [endpoint("a"), endpoint("b", prefix=held())], [(None, 0), (160, 1)], id="unknown_prefix"
        ),
        pytest.param([endpoint("a"), endpoint("b")], [(None, 0), (None, 0)], id="no_prefix_at_all"),
        pytest.param([endpoint("a", prefix=held(n_blocks=0))], [(None, 0)], id="no_full_block"),
    ],
)
def test_cost_is_tokens_to_compute_times_requests(
    fleet: list[Candidate], ratings: list[tuple[float | None, float]]
) -> None:
    scorer = built(builtin_registry().scorers, "lmetric-scorer", {}, BuildContext(tiers=TIERS))

    assert [(each.raw, each.score) for each in rated(scorer, REQUEST, fleet)] == ratings
