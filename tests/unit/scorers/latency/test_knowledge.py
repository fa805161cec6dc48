"""What a cost model says of itself: which costs are in force, until when, and how far off it is."""

from __future__ import annotations

import pytest

from kvatlas.scorers.core.model import PREFILL_SPEED, Candidate, RequestView
from kvatlas.scorers.latency.cost import LatencyCostScorer
from kvatlas.scorers.latency.fit import MIN_OBSERVATIONS
from kvatlas.scorers.latency.knowledge import CostState, Knowledge, knowledge
from kvatlas.scorers.latency.params import LatencyCostParams
from support.candidates import endpoint
from support.rating import routed_to


def taught(
    n: int, *, factor: float = 1.0, to: Candidate | None = None, params: LatencyCostParams | None = None
) -> Knowledge:
    """Return what is known after `n` first tokens that came `factor` times as late as the configured costs say."""
    scorer = LatencyCostScorer(params or LatencyCostParams(prefill_tokens_per_second=1000.0), ("gpu",))
    for number in range(n):
        n_tokens = (1000, 3000)[number % 2]
        decision = routed_to(to or endpoint(), n_tokens=n_tokens)
        scorer.picked(RequestView(model="m", now=0.0, n_tokens=n_tokens), decision)
        scorer.answered(decision, ttft_s=factor * (n_tokens / 1000.0 + 0.03))
        scorer.ended(decision, tpot_s=0.03)
    model = scorer.model
    (found,) = knowledge(model.ttft.fits, model.tpot.fits, learns=model.learns)
    return found


def test_configured_costs_are_named_before_anything_is_observed() -> None:
    assert taught(0) == Knowledge(
        "",
        CostState.FEW,
        0.0,
        "Costs are not learned yet: 0 of 30 times to first token are known. Until then the configured ones "
        "(1,000 prompt tokens/s) are in force.",
    )


def test_speed_that_an_engine_publishes_is_named_when_it_is_the_prior() -> None:
    found = taught(5, to=endpoint(attributes={PREFILL_SPEED: 4000.0}))

    assert found.state is CostState.FEW
    assert "5 of 30" in found.says
    assert "those that the engine publishes (4,000 prompt tokens/s) are in force" in found.says


def test_learned_costs_and_their_errors_are_named_when_they_predict_better() -> None:
    found = taught(200, factor=3.0)

    assert found.state is CostState.LEARNED
    assert found.says.startswith("Costs are learned from 1")
    assert "Predictions of times to first token are off by" in found.says
    assert "of times per output token" in found.says


def test_configured_costs_stay_when_learned_ones_are_no_better() -> None:
    found = taught(MIN_OBSERVATIONS + 10)

    assert found.state is CostState.REJECTED
    assert "do not predict better than the configured ones" in found.says


@pytest.mark.parametrize("n", [0, 50])
def test_costs_that_are_not_to_be_learned_are_fixed(n: int) -> None:
    found = taught(n, factor=3.0, params=LatencyCostParams(fit=False))

    assert found.state is CostState.FIXED
    assert "fit: false" in found.says
